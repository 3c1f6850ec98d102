"""Finding copies in a child whose memory is known by construction."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memdiag.attribution import scan as scanning
from memdiag.attribution.address_space import read_address_space
from memdiag.attribution.anchors import Sieve, choose
from memdiag.attribution.intervals import Ranges
from memdiag.attribution.layouts import Uses, VirtualCopy, layouts
from memdiag.attribution.process_memory import ProcessMemory
from memdiag.attribution.scan import scan
from memdiag.attribution.verify import Verifier

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")

# Holds the arrays of a file at the alignments asked for, in memory of its own.
HOLDER = """
import ctypes, mmap, sys
import numpy as np
kept = []
with np.load(sys.argv[1]) as archive:
    arrays = dict(archive)
for name, alignment in zip(sys.argv[2::2], map(int, sys.argv[3::2])):
    data = arrays[name].tobytes()
    area = mmap.mmap(-1, len(data) + 8192, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area[4096 + alignment : 4096 + alignment + len(data)] = data
    kept.append(area)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area)) + 4096 + alignment
    print(address, flush=True)
del arrays
sys.stdin.read()
"""

RANDOM = np.random.default_rng(20261121)
WEIGHT = RANDOM.standard_normal((300, 200), np.float32)


@contextmanager
def holding(folder: Path, *copies: tuple[str, np.ndarray, int]) -> Iterator[tuple[int, list[int]]]:
    """A process that holds the arrays; gives its id and the addresses."""
    archive = folder / "arrays.npz"
    arrays: dict[str, Any] = {name: array for name, array, _ in copies}
    np.savez(archive, **arrays)
    words = [word for name, _, alignment in copies for word in (name, str(alignment))]
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(archive), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        addresses = [int(process.stdout.readline()) for _ in copies]
        yield process.pid, addresses


def copies_of(weight: np.ndarray) -> list[VirtualCopy]:
    return [copy for layout in layouts() for copy in layout.candidates(weight, Uses())]


def found(pid: int, copies: list[VirtualCopy], *, sampled: bool = False) -> set[tuple[str, int]]:
    """The verified copies as (layout, address)."""
    with ProcessMemory(pid) as memory:
        candidates, read = scan(memory, read_address_space(pid).anonymous, choose(copies))
        assert read > 0
        verifier = Verifier(memory, lambda: None, sampled=sampled)
        return {
            (copies[one.number].layout, one.address)
            for one in candidates
            if verifier.verify(copies[one.number], one.address)
        }


@pytest.mark.parametrize("sampled", [False, True])
def test_copies_are_found_where_they_are_in_each_layout(tmp_path: Path, sampled: bool) -> None:
    turned = np.ascontiguousarray(WEIGHT.T)
    with holding(tmp_path, ("plain", WEIGHT, 64), ("turned", turned, 128)) as (pid, addresses):
        seen = found(pid, copies_of(WEIGHT), sampled=sampled)
    assert {("original", addresses[0]), ("transposed", addresses[1])} <= seen


@pytest.mark.parametrize("alignment", range(0, 64, 8))
def test_a_plain_copy_may_lie_at_any_multiple_of_8(tmp_path: Path, alignment: int) -> None:
    with holding(tmp_path, ("plain", WEIGHT, alignment)) as (pid, addresses):
        assert ("original", addresses[0]) in found(pid, copies_of(WEIGHT))


def test_a_model_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    other = RANDOM.standard_normal((300, 200), np.float32)
    with holding(tmp_path, ("plain", WEIGHT, 64)) as (pid, _):
        assert found(pid, copies_of(other)) == set()


def test_one_changed_element_is_seen(tmp_path: Path) -> None:
    changed = WEIGHT.copy()
    changed[123, 45] += 1
    with holding(tmp_path, ("plain", changed, 64), ("same", WEIGHT, 64)) as (pid, addresses):
        originals = {
            place for layout, place in found(pid, copies_of(WEIGHT)) if layout == "original"
        }
    assert addresses[0] not in originals
    assert addresses[1] in originals


def test_two_copies_are_two(tmp_path: Path) -> None:
    with holding(tmp_path, ("one", WEIGHT, 64), ("two", WEIGHT, 192)) as (pid, addresses):
        originals = {
            place for layout, place in found(pid, copies_of(WEIGHT)) if layout == "original"
        }
    assert set(addresses) <= originals


def test_content_that_tells_nothing_gives_no_anchors() -> None:
    anchors = choose(copies_of(np.zeros((64, 64), np.float32)))
    assert len(anchors.keys) == 0
    anchors = choose(copies_of(np.full((64, 64), 1.5, np.float32)))
    assert len(anchors.keys) == 0


def test_a_sampled_comparison_says_how_little_it_compared(tmp_path: Path) -> None:
    large = RANDOM.standard_normal((1000, 1000), np.float32)
    (original, *_) = copies_of(large)
    with (
        holding(tmp_path, ("plain", large, 64)) as (pid, addresses),
        ProcessMemory(pid) as memory,
    ):
        part = Verifier(memory, lambda: None, sampled=True).verify(original, addresses[0])
        assert 0 < part < large.nbytes / 4


def test_verifying_says_how_many_bytes_it_compared(tmp_path: Path) -> None:
    (original, *_) = copies_of(WEIGHT)
    with (
        holding(tmp_path, ("plain", WEIGHT, 64)) as (pid, addresses),
        ProcessMemory(pid) as memory,
    ):
        assert Verifier(memory, lambda: None).verify(original, addresses[0]) == WEIGHT.nbytes
        assert Verifier(memory, lambda: None).verify(original, addresses[0] + 64) == 0


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans and buffers so small that copies lie across many of them."""
    monkeypatch.setattr(scanning, "SPAN_BYTES", 64 << 10)
    monkeypatch.setattr(scanning, "BUFFER_BYTES", 16 << 10)


@pytest.mark.usefixtures("small_steps")
def test_the_number_of_threads_makes_no_difference(tmp_path: Path) -> None:
    turned = np.ascontiguousarray(WEIGHT.T)
    held = [("plain", WEIGHT, 64), ("turned", turned, 128), ("again", WEIGHT, 16)]
    copies = copies_of(WEIGHT)
    with holding(tmp_path, *held) as (pid, addresses), ProcessMemory(pid) as memory:
        ranges, anchors = read_address_space(pid).anonymous, choose(copies)
        alone, *others = [scan(memory, ranges, anchors, threads=count) for count in (1, 2, 5)]
    assert others == [alone, alone]
    assert set(addresses) <= {one.address for one in alone[0]}


class _Dying(ProcessMemory):
    """The memory of a process that ends as soon as something of it was read."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        super().__init__(process.pid)
        self._process = process

    def pieces(
        self, ranges: Ranges, buffer: np.ndarray, *, overlap: int = 0
    ) -> Iterator[tuple[int, int]]:
        for piece in super().pieces(ranges, buffer, overlap=overlap):
            self._process.kill()
            self._process.wait()
            yield piece


@pytest.mark.usefixtures("small_steps")
def test_a_process_that_ends_meanwhile_is_read_as_far_as_it_was_there() -> None:
    code = "print('ready', flush=True); import sys; sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        ranges = read_address_space(process.pid).anonymous
        with _Dying(process) as memory:
            candidates, read = scan(memory, ranges, choose(copies_of(WEIGHT)))
            assert memory.ended
    assert candidates == []
    assert 0 < read < int((ranges[:, 1] - ranges[:, 0]).sum())


@pytest.mark.usefixtures("small_steps")
def test_an_error_in_a_thread_is_the_scans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(sieve: Sieve, steps: np.ndarray) -> np.ndarray:
        raise MemoryError("no room for marks")

    with holding(tmp_path, ("plain", WEIGHT, 64)) as (pid, _), ProcessMemory(pid) as memory:
        ranges, anchors = read_address_space(pid).anonymous, choose(copies_of(WEIGHT))
        monkeypatch.setattr(Sieve, "likely", fail)
        with pytest.raises(MemoryError, match="no room for marks"):
            scan(memory, ranges, anchors, threads=2)
