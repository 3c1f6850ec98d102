import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from typing import IO

import pytest

from memdiag.runner.observer import Observer, ProcessGone, ProcObserver, PsutilObserver

MB = 1_000_000
SLACK = 2 * MB  # the kernel sums its counters lazily, per processor


# Holds a spike of 80 MB for a moment, then waits: each line in makes one spike, a line out ends it.
SPIKER = """
import mmap, sys
for line in sys.stdin:
    area = mmap.mmap(-1, 80_000_000)
    area.write(b"x" * 80_000_000)
    area.close()
    print("done", flush=True)
"""


def touch(area: mmap.mmap) -> None:
    """Make all of `area` resident, and nothing else with it."""
    for start in range(0, len(area), mmap.PAGESIZE):
        area[start] = 1


class Spiker:
    """A child that spikes on demand."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SPIKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> "Spiker":
        self.spike()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def spike(self) -> None:
        self._stream(self.process.stdin).write(b"\n")
        self._stream(self.process.stdin).flush()
        assert self._stream(self.process.stdout).readline() == b"done\n"

    def end(self) -> None:
        self._stream(self.process.stdin).close()
        self._stream(self.process.stdout).close()
        self.process.wait()

    @staticmethod
    def _stream(stream: IO[bytes] | None) -> IO[bytes]:
        assert stream is not None
        return stream


def test_the_mark_catches_a_spike_that_no_sample_saw_and_is_reset_by_reading() -> None:
    with Spiker() as spiker:
        observer = ProcObserver(spiker.process.pid)
        quiet = observer.boundary()
        spiker.spike()
        loud = observer.boundary()
        again = observer.boundary()
        observer.close()
    assert quiet.peak_rss_bytes is not None
    assert loud.peak_rss_bytes is not None
    assert again.peak_rss_bytes is not None
    assert loud.peak_rss_bytes > quiet.memory.rss_bytes + 80 * MB - SLACK
    assert loud.memory.rss_bytes < quiet.memory.rss_bytes + 40 * MB
    assert again.peak_rss_bytes < loud.memory.rss_bytes + SLACK


def test_the_parts_are_told_apart() -> None:
    observer = ProcObserver(os.getpid())
    before = observer.boundary().memory
    shared = mmap.mmap(-1, 20 * MB)
    touch(shared)
    halfway = observer.sample()
    private = mmap.mmap(-1, 30 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    touch(private)
    after, sample = observer.boundary().memory, observer.sample()
    private.close()
    shared.close()
    observer.close()
    assert before.shared_bytes is not None
    assert after.shared_bytes is not None
    assert before.anonymous_bytes is not None
    assert after.anonymous_bytes is not None
    assert abs(after.shared_bytes - before.shared_bytes - 20 * MB) < SLACK
    assert abs(after.anonymous_bytes - before.anonymous_bytes - 30 * MB) < SLACK
    assert after.rss_bytes == sum(
        (after.anonymous_bytes, after.file_bytes or 0, after.shared_bytes)
    )
    assert halfway.shared_bytes is not None
    assert abs(halfway.shared_bytes - before.shared_bytes - 20 * MB) < SLACK
    assert sample.shared_bytes == after.shared_bytes
    assert sample.anonymous_bytes is not None
    assert abs(sample.anonymous_bytes - after.anonymous_bytes) < SLACK


def test_where_the_mark_cannot_be_reset_no_peak_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refuse(path: str, flags: int, *more: int) -> int:
        if str(path).endswith("clear_refs"):
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, *more)

    monkeypatch.setattr(os, "open", refuse)
    observer = ProcObserver(os.getpid())
    assert observer.boundary().peak_rss_bytes is None
    assert observer.sample().rss_bytes > 0
    observer.close()


def test_a_system_that_takes_the_reset_and_does_nothing_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Spiker() as spiker:
        monkeypatch.setattr(ProcObserver, "_reset_mark", lambda self: None)
        observer = ProcObserver(spiker.process.pid)
        assert observer.boundary().peak_rss_bytes is None
        observer.close()


@pytest.mark.parametrize("make", [ProcObserver, PsutilObserver])
def test_a_process_that_ended_is_said_to_be_gone(make: Callable[[int], Observer]) -> None:
    with Spiker() as spiker:
        observer = make(spiker.process.pid)
        assert observer.sample().rss_bytes > 1 * MB
        spiker.end()
        with pytest.raises(ProcessGone):
            observer.sample()
        with pytest.raises(ProcessGone):
            observer.boundary()
        observer.close()


def test_the_portable_observer_claims_no_more_than_it_knows() -> None:
    observer = PsutilObserver(os.getpid())
    reading = observer.boundary()
    assert reading.peak_rss_bytes is None
    assert reading.memory.anonymous_bytes is None
    assert reading.memory.rss_bytes > 1 * MB
