"""From subjects to copies: each one found once, in a child whose memory is known."""

import sys
from pathlib import Path

import numpy as np
import pytest

from memdiag.attribution import search as searching
from memdiag.attribution.address_space import read_address_space
from memdiag.attribution.layouts import Uses, VirtualCopy
from memdiag.attribution.process_memory import ProcessMemory
from memdiag.attribution.search import SearchResult, Verifier, search
from memdiag.attribution.search_target import WeightContent
from tests.attribution.conftest import Start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")

# Maps each array of the file so often, in pages of its own, and leaves nothing else of it.
HOLDER = """
import numpy
kept = []
out["at"] = []
for path, count in {wanted!r}:
    data = numpy.load(path, mmap_mode="r")
    for _ in range(count):
        area = mmap.mmap(-1, data.nbytes + 3 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # A page that nothing joins with the neighbours' content.
        numpy.frombuffer(area, data.dtype, data.size, 4096)[:] = data.reshape(-1)
        kept.append(area)
        out["at"].append(address_of(area) + 4096)
"""
RANDOM = np.random.default_rng(20261123)


def subject(values: np.ndarray, name: str = "w") -> WeightContent:
    return WeightContent(names=(name,), values=values, uses=Uses(), consumers=())


def searched(
    start: Start, folder: Path, held: list[tuple[np.ndarray, int]], wanted: list[WeightContent]
) -> tuple[SearchResult, list[int]]:
    """Search a child that holds each array so many times; return the addresses as well."""
    paths = []
    for number, (array, count) in enumerate(held):
        np.save(folder / f"{number}.npy", array)
        paths.append((str(folder / f"{number}.npy"), count))
    child = start(HOLDER.format(wanted=paths))
    with ProcessMemory(child.pid) as memory:
        space = read_address_space(child.pid)
        return search(space, memory, wanted, lambda: None), child.out["at"]


def test_each_copy_is_found_once_and_in_order(start: Start, tmp_path: Path) -> None:
    weight = RANDOM.standard_normal((200, 300), np.float32)
    turned = np.ascontiguousarray(weight.T)
    result, at = searched(start, tmp_path, [(weight, 2), (turned, 1)], [subject(weight)])
    assert [(one.address, one.copy.layout) for one in result.found] == sorted(
        zip(at, ["original", "original", "transposed"], strict=True)
    )
    assert all(one.verified_bytes == weight.nbytes for one in result.found)


def test_what_lies_inside_a_larger_copy_is_a_part_of_it(start: Start, tmp_path: Path) -> None:
    large = RANDOM.standard_normal((256, 256), np.float32)
    part = large[64:128].copy()
    subjects = [subject(part, "part"), subject(large, "large")]
    inside, at = searched(start, tmp_path, [(large, 1)], subjects)
    assert [(one.content.names, one.address) for one in inside.found] == [(("large",), at[0])]
    beside, at = searched(start, tmp_path, [(large, 1), (part, 1)], subjects)
    assert {one.address for one in beside.found} == {*at}


@pytest.mark.parametrize("period", [256, 1024])
def test_content_that_repeats_itself_is_found_once_where_it_starts(
    start: Start, tmp_path: Path, period: int
) -> None:
    row = RANDOM.standard_normal(period, np.float32)
    repeated = np.tile(row, 400_000 // period).reshape(-1, period)
    result, at = searched(start, tmp_path, [(repeated, 2)], [subject(repeated)])
    assert {one.address for one in result.found if one.copy.layout == "original"} == {*at}


def test_content_that_only_looks_alike_is_not_tried_without_end(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "_MAX_FAILURES", 5)
    tried: list[int] = []

    class Counting(Verifier):
        def verify(self, copy: VirtualCopy, address: int) -> int:
            tried.append(id(copy))
            return super().verify(copy, address)

    monkeypatch.setattr(searching, "Verifier", Counting)
    repeated = np.tile(RANDOM.standard_normal(256, np.float32), (1000, 1))
    result, _ = searched(start, tmp_path, [(repeated[:500], 1)], [subject(repeated)])
    assert result.found == ()
    assert max(tried.count(copy) for copy in tried) == 6
