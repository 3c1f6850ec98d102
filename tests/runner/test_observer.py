import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

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


class Spiker(subprocess.Popen[str]):
    """A child that spikes on demand."""

    def __init__(self) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        super().__init__([sys.executable, "-c", SPIKER], **pipes)
        self.spike()

    def spike(self) -> None:
        assert self.stdin is not None
        assert self.stdout is not None
        self.stdin.write("\n")
        self.stdin.flush()
        assert self.stdout.readline() == "done\n"


@pytest.fixture
def spiker() -> Iterator[Spiker]:
    with Spiker() as process:
        yield process


def touched(flags: int) -> mmap.mmap:
    """Return 20 MB of which all, and nothing else, is made resident."""
    area = mmap.mmap(-1, 20 * MB, flags=flags)
    for start in range(0, len(area), mmap.PAGESIZE):
        area[start] = 1
    return area


def near(nbytes: int) -> object:
    return pytest.approx(nbytes, abs=SLACK)


def test_the_mark_catches_a_spike_that_no_sample_saw_and_is_reset_by_reading(
    spiker: Spiker,
) -> None:
    observer = ProcObserver(spiker.pid)
    quiet = observer.boundary().memory
    spiker.spike()
    loud, again = observer.boundary(), observer.boundary()
    observer.close()
    assert (loud.peak_rss_bytes or 0) > quiet.rss_bytes + 80 * MB - SLACK
    assert loud.memory.rss_bytes < quiet.rss_bytes + 40 * MB
    assert 0 < (again.peak_rss_bytes or 0) < loud.memory.rss_bytes + SLACK


def test_the_parts_are_told_apart() -> None:
    observer = ProcObserver(os.getpid())
    before: Any = observer.boundary().memory
    shared = touched(mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    halfway = observer.sample()
    private = touched(mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    after: Any = observer.boundary().memory
    sample = observer.sample()
    private.close()
    shared.close()
    observer.close()
    assert after.shared_bytes - before.shared_bytes == near(20 * MB)
    assert after.anonymous_bytes - before.anonymous_bytes == near(20 * MB)
    assert after.rss_bytes == after.anonymous_bytes + after.file_bytes + after.shared_bytes
    assert halfway.shared_bytes == near(before.shared_bytes + 20 * MB)
    assert sample.shared_bytes == after.shared_bytes
    assert sample.anonymous_bytes == near(after.anonymous_bytes)


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
    monkeypatch: pytest.MonkeyPatch, spiker: Spiker
) -> None:
    monkeypatch.setattr(ProcObserver, "_reset_mark", lambda self: None)
    observer = ProcObserver(spiker.pid)
    assert observer.boundary().peak_rss_bytes is None
    observer.close()


@pytest.mark.parametrize("make", [ProcObserver, PsutilObserver])
def test_a_process_that_ended_is_said_to_be_gone(
    make: Callable[[int], Observer], spiker: Spiker
) -> None:
    observer = make(spiker.pid)
    assert observer.sample().rss_bytes > 1 * MB
    spiker.communicate()
    for read in (observer.sample, observer.boundary):
        with pytest.raises(ProcessGone):
            read()
    observer.close()


def test_the_portable_observer_claims_no_more_than_it_knows() -> None:
    reading = PsutilObserver(os.getpid()).boundary()
    assert reading.peak_rss_bytes is reading.memory.anonymous_bytes is None
    assert reading.memory.rss_bytes > 1 * MB
