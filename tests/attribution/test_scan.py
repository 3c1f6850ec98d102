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
from memdiag.attribution.intervals import Ranges
from memdiag.attribution.layouts import Uses, VirtualCopy, layouts
from memdiag.attribution.process_memory import ProcessMemory
from memdiag.attribution.scan import STEP, AnchorFilter, choose_anchors, scan
from memdiag.attribution.search import Verifier

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
        candidates, read = scan(memory, read_address_space(pid).anonymous, choose_anchors(copies))
        assert read > 0
        verifier = Verifier(memory, lambda: None, sampled=sampled)
        return {
            (copies[one.copy].layout, one.address)
            for one in candidates
            if verifier.verify(copies[one.copy], one.address)
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
    anchors = choose_anchors(copies_of(np.zeros((64, 64), np.float32)))
    assert len(anchors.keys) == 0
    anchors = choose_anchors(copies_of(np.full((64, 64), 1.5, np.float32)))
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
        ranges, anchors = read_address_space(pid).anonymous, choose_anchors(copies)
        alone, *others = [scan(memory, ranges, anchors, threads=count) for count in (1, 2, 5)]
    assert others == [alone, alone]
    assert set(addresses) <= {one.address for one in alone[0]}


class _Dying(ProcessMemory):
    """The memory of a process that ends as soon as something of it was read."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        super().__init__(process.pid)
        self._process = process

    def iter_chunks(
        self, ranges: Ranges, buffer: np.ndarray, *, overlap: int = 0
    ) -> Iterator[tuple[int, int]]:
        for piece in super().iter_chunks(ranges, buffer, overlap=overlap):
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
            candidates, read = scan(memory, ranges, choose_anchors(copies_of(WEIGHT)))
            assert memory.ended
    assert candidates == []
    assert 0 < read < int((ranges[:, 1] - ranges[:, 0]).sum())


@pytest.mark.usefixtures("small_steps")
def test_an_error_in_a_thread_is_the_scans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(sieve: AnchorFilter, steps: np.ndarray) -> np.ndarray:
        raise MemoryError("no room for marks")

    with holding(tmp_path, ("plain", WEIGHT, 64)) as (pid, _), ProcessMemory(pid) as memory:
        ranges, anchors = read_address_space(pid).anonymous, choose_anchors(copies_of(WEIGHT))
        monkeypatch.setattr(AnchorFilter, "possible_anchors", fail)
        with pytest.raises(MemoryError, match="no room for marks"):
            scan(memory, ranges, anchors, threads=2)


# The choice of anchors.


def original(weight: np.ndarray) -> VirtualCopy:
    (copy,) = (
        copy
        for layout in layouts()
        for copy in layout.candidates(weight, Uses())
        if copy.layout == "original"
    )
    return copy


def test_a_large_copy_has_few_anchors_and_both_its_ends_are_among_them() -> None:
    weight = RANDOM.standard_normal((512, 512), np.float32)
    anchors = choose_anchors([original(weight)])
    for alignment in range(0, STEP, 8):
        offsets = np.sort(anchors.offsets[anchors.offsets % STEP == alignment])
        assert len(offsets) == 8
        assert offsets[0] == alignment
        assert weight.nbytes - offsets[-1] < 4 * STEP
        assert np.diff(offsets).max() < weight.nbytes / 4
    assert anchors.counts.tolist() == [64]


def test_what_is_telling_is_kept_where_most_tells_nothing() -> None:
    weight = np.zeros((512, 512), np.float32)
    weight[300:] = RANDOM.standard_normal((212, 512))
    offsets = choose_anchors([original(weight)]).offsets
    assert len(offsets) == 64
    assert offsets.min() >= 300 * 512 * 4


def test_each_anchor_is_met_at_its_place_and_at_no_other() -> None:
    copies = [original(RANDOM.standard_normal((300, 200), np.float32)) for _ in range(3)]
    anchors = choose_anchors(copies)
    for number, copy in enumerate(copies):
        memory = copy.blocks(np.array([0]), copy.nbytes).reshape(-1)
        steps = memory[: copy.nbytes // STEP * STEP].view(np.uint64)[:: STEP // 8]
        likely = AnchorFilter(anchors, len(steps)).possible_anchors(steps)
        where, which = anchors.match(steps[likely])
        assert set(anchors.copies[which].tolist()) == {number}
        assert (likely[where] * STEP).tolist() == anchors.offsets[which].tolist()
        assert len(which) == 8


def test_a_large_model_is_let_go_of_between_the_copies() -> None:
    small, large = (RANDOM.standard_normal((rows, 1024), np.float32) for rows in (64, 4096))
    times: list[int] = []
    choose_anchors([original(large)] * 5, lambda: times.append(1))
    # 16 MiB each: after three of them.
    assert len(times) == 1
    choose_anchors([original(small)] * 5, lambda: times.append(1))
    assert len(times) == 1


def test_equal_keys_of_several_copies_are_all_met() -> None:
    weight = RANDOM.standard_normal((64, 64), np.float32)
    anchors = choose_anchors([original(weight), original(weight.copy())])
    assert len(anchors.keys) == 2 * len(np.unique(anchors.keys))
    rows, which = anchors.match(anchors.keys[:1])
    assert rows.tolist() == [0, 0]
    assert sorted(anchors.copies[which].tolist()) == [0, 1]


def test_a_key_that_too_many_copies_share_is_no_anchor() -> None:
    start = RANDOM.standard_normal(16, np.float32)
    weights = [RANDOM.standard_normal((64, 64), np.float32) for _ in range(33)]
    for weight in weights:
        weight[0, :16] = start
    copies = [original(weight) for weight in weights]
    assert choose_anchors(copies[:32]).offsets.min() == 0
    assert choose_anchors(copies).offsets.min() > STEP
