"""Scanning for copies in a child process with known memory content."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from memdiag.attribution import scan as scan_module
from memdiag.attribution.address_space import read_address_space
from memdiag.attribution.intervals import ByteRanges
from memdiag.attribution.layout import LayoutHints
from memdiag.attribution.layouts import all_layouts
from memdiag.attribution.process_memory import ProcessMemory
from memdiag.attribution.scan import SCAN_STEP_BYTES, AnchorFilter, choose_anchors, scan_for_copies
from memdiag.attribution.search import CopyVerifier
from memdiag.attribution.virtual_copy import VirtualCopy
from tests.attribution.layouts.virtual_copies import offered
from tests.builders import noise

# Stores the arrays of a file at the given alignments, each in its own mapping.
CHILD = """
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

WEIGHT, LARGE = noise(300, 200), noise(1000, 1000)
ALIGNMENTS = range(0, 64, 8)


CHANGED = WEIGHT.copy()
CHANGED[123, 45] += 1
ARRAYS = {
    **{f"plain_{alignment}": (WEIGHT, alignment) for alignment in ALIGNMENTS},
    "again": (WEIGHT, 192),
    "transposed": (np.ascontiguousarray(WEIGHT.T), 128),
    "changed": (CHANGED, 64),
    "large": (LARGE, 64),
}


class Child(NamedTuple):
    """A process that contains `ARRAYS`, with the address of each."""

    pid: int
    addresses: dict[str, int]


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """One process for all tests of this module."""
    archive = tmp_path_factory.mktemp("scan") / "arrays.npz"
    arrays: dict[str, Any] = {name: array for name, (array, _) in ARRAYS.items()}
    np.savez(archive, **arrays)
    words = [word for name, (_, alignment) in ARRAYS.items() for word in (name, str(alignment))]
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(archive), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        yield Child(process.pid, {name: int(process.stdout.readline()) for name in ARRAYS})


def copies_of(weight: np.ndarray) -> list[VirtualCopy]:
    return [copy for layout in all_layouts() for copy in layout.candidates(weight, LayoutHints())]


def found(pid: int, copies: list[VirtualCopy]) -> set[tuple[str, int]]:
    """Return the verified copies as (layout, address)."""
    with ProcessMemory(pid) as memory:
        candidates, read = scan_for_copies(
            memory, read_address_space(pid).anonymous, choose_anchors(copies)
        )
        assert read > 0
        verifier = CopyVerifier(memory, lambda: None)
        return {
            (copies[candidate.copy].layout, candidate.address)
            for candidate in candidates
            if verifier.verify(copies[candidate.copy], candidate.address)
        }


def test_each_copy_is_found_at_its_address_and_alignment(child: Child) -> None:
    copies = found(child.pid, copies_of(WEIGHT))
    for alignment in ALIGNMENTS:
        assert ("original", child.addresses[f"plain_{alignment}"]) in copies
    assert ("original", child.addresses["again"]) in copies
    assert ("transposed", child.addresses["transposed"]) in copies


def test_a_weight_that_is_not_in_memory_is_not_found(child: Child) -> None:
    assert found(child.pid, copies_of(noise(300, 200, seed=1))) == set()


def test_a_copy_with_one_changed_element_is_not_found(child: Child) -> None:
    addresses = {address for _, address in found(child.pid, copies_of(WEIGHT))}
    assert child.addresses["changed"] not in addresses
    assert child.addresses["again"] in addresses


@pytest.mark.parametrize("value", [0, 1.5])
def test_content_that_is_not_distinctive_has_no_anchors(value: float) -> None:
    copies = copies_of(np.full((64, 64), value, np.float32))
    assert copies
    assert len(choose_anchors(copies).keys) == 0


def test_a_comparison_returns_how_many_bytes_it_compared(child: Child) -> None:
    (original, *_) = copies_of(WEIGHT)
    address = child.addresses["again"]
    with ProcessMemory(child.pid) as memory:
        assert CopyVerifier(memory, lambda: None).verify(original, address) == WEIGHT.nbytes
        assert CopyVerifier(memory, lambda: None).verify(original, address + 64) == 0


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans and buffers so small that copies extend over many of them."""
    monkeypatch.setattr(scan_module, "SPAN_BYTES", 64 << 10)
    monkeypatch.setattr(scan_module, "BUFFER_BYTES", 16 << 10)


@pytest.mark.usefixtures("small_steps")
def test_the_number_of_threads_makes_no_difference(child: Child) -> None:
    with ProcessMemory(child.pid) as memory:
        ranges, anchors = read_address_space(child.pid).anonymous, choose_anchors(copies_of(WEIGHT))
        single, *others = [
            scan_for_copies(memory, ranges, anchors, threads=count) for count in (1, 2, 5)
        ]
    assert others == [single, single]
    expected = {child.addresses[name] for name in ("plain_0", "plain_16", "again", "transposed")}
    assert expected <= {candidate.address for candidate in single[0]}


class _EndingMemory(ProcessMemory):
    """The memory of a process that ends after its first chunk was read."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        super().__init__(process.pid)
        self._process = process

    def iter_chunks(
        self, ranges: ByteRanges, buffer: np.ndarray, *, overlap: int = 0
    ) -> Iterator[tuple[int, int]]:
        for chunk in super().iter_chunks(ranges, buffer, overlap=overlap):
            self._process.kill()
            self._process.wait()
            yield chunk


@pytest.mark.usefixtures("small_steps")
def test_a_process_that_ends_meanwhile_is_read_up_to_its_end() -> None:
    code = "print('ready', flush=True); import sys; sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        ranges = read_address_space(process.pid).anonymous
        with _EndingMemory(process) as memory:
            candidates, read = scan_for_copies(memory, ranges, choose_anchors(copies_of(WEIGHT)))
            assert memory.ended
    assert candidates == []
    assert 0 < read < int((ranges[:, 1] - ranges[:, 0]).sum())


@pytest.mark.usefixtures("small_steps")
def test_an_error_in_a_thread_is_raised_by_the_scan(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(anchor_filter: AnchorFilter, steps: np.ndarray) -> np.ndarray:
        raise MemoryError("no memory for marks")

    with ProcessMemory(child.pid) as memory:
        ranges, anchors = read_address_space(child.pid).anonymous, choose_anchors(copies_of(WEIGHT))
        monkeypatch.setattr(AnchorFilter, "possible_anchors", fail)
        with pytest.raises(MemoryError, match="no memory for marks"):
            scan_for_copies(memory, ranges, anchors, threads=2)


# The choice of anchors.


def original(weight: np.ndarray) -> VirtualCopy:
    (copy,) = offered(weight, "original")
    return copy


def test_a_large_copy_has_few_anchors_including_its_ends() -> None:
    weight = noise(512, 512)
    anchors = choose_anchors([original(weight)])
    for alignment in range(0, SCAN_STEP_BYTES, 8):
        offsets = np.sort(anchors.offsets[anchors.offsets % SCAN_STEP_BYTES == alignment])
        assert len(offsets) == 8
        assert offsets[0] == alignment
        assert weight.nbytes - offsets[-1] < 4 * SCAN_STEP_BYTES
        assert np.diff(offsets).max() < weight.nbytes / 4
    assert anchors.counts.tolist() == [64]


def test_anchors_are_kept_where_the_content_is_distinctive() -> None:
    weight = np.zeros((512, 512), np.float32)
    weight[300:] = noise(212, 512)
    offsets = choose_anchors([original(weight)]).offsets
    assert len(offsets) == 64
    assert offsets.min() >= 300 * 512 * 4


def test_each_anchor_matches_only_at_its_offset() -> None:
    copies = [original(noise(300, 200, seed=seed)) for seed in range(3)]
    anchors = choose_anchors(copies)
    for index, copy in enumerate(copies):
        memory = copy.blocks(np.array([0]), copy.nbytes).reshape(-1)
        steps = memory[: copy.nbytes // SCAN_STEP_BYTES * SCAN_STEP_BYTES].view(np.uint64)[
            :: SCAN_STEP_BYTES // 8
        ]
        likely = AnchorFilter(anchors, len(steps)).possible_anchors(steps)
        where, which = anchors.match(steps[likely])
        assert set(anchors.copies[which].tolist()) == {index}
        assert (likely[where] * SCAN_STEP_BYTES).tolist() == anchors.offsets[which].tolist()
        assert len(which) == 8


def test_a_large_model_is_released_between_the_copies() -> None:
    small, large = (noise(rows, 1024) for rows in (64, 4096))
    times: list[int] = []
    choose_anchors([original(large)] * 5, lambda: times.append(1))
    # 16 MiB each: after three of them.
    assert len(times) == 1
    choose_anchors([original(small)] * 5, lambda: times.append(1))
    assert len(times) == 1


def test_equal_keys_of_several_copies_all_match() -> None:
    weight = noise(64, 64)
    anchors = choose_anchors([original(weight), original(weight.copy())])
    assert len(anchors.keys) == 2 * len(np.unique(anchors.keys))
    rows, which = anchors.match(anchors.keys[:1])
    assert rows.tolist() == [0, 0]
    assert sorted(anchors.copies[which].tolist()) == [0, 1]


def test_a_key_that_too_many_copies_share_is_no_anchor() -> None:
    start = noise(16)
    weights = [noise(64, 64, seed=seed) for seed in range(33)]
    for weight in weights:
        weight[0, :16] = start
    copies = [original(weight) for weight in weights]
    assert choose_anchors(copies[:32]).offsets.min() == 0
    assert choose_anchors(copies).offsets.min() > SCAN_STEP_BYTES
