"""Searching for copies: each is found once, in a child process with known memory content."""

from pathlib import Path

import numpy as np
import pytest

from memdiag.attribution import search as search_module
from memdiag.attribution.address_space import read_address_space
from memdiag.attribution.layout import LayoutHints
from memdiag.attribution.layouts.reordered_onednn import ReorderedOnednn
from memdiag.attribution.process_memory import ProcessMemory
from memdiag.attribution.search import CopyVerifier, SearchResult, search_copies
from memdiag.attribution.search_target import WeightContent
from memdiag.attribution.virtual_copy import VirtualCopy
from tests.attribution.conftest import Start
from tests.builders import noise

# Stores the given number of copies of each array, each in its own pages.
CHILD = """
import numpy
kept = []
out["at"] = []
for path, count in {wanted!r}:
    data = numpy.load(path, mmap_mode="r")
    for _ in range(count):
        area = mmap.mmap(-1, data.nbytes + 3 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # An empty page separates it from the previous content.
        numpy.frombuffer(area, data.dtype, data.size, 4096)[:] = data.reshape(-1)
        kept.append(area)
        out["at"].append(address_of(area) + 4096)
"""


def content(values: np.ndarray, name: str = "w") -> WeightContent:
    return WeightContent(names=(name,), values=values, hints=LayoutHints(), readers=())


def searched(
    start: Start, folder: Path, arrays: list[tuple[np.ndarray, int]], contents: list[WeightContent]
) -> tuple[SearchResult, list[int]]:
    """Search a child with the given number of copies of each array; return their addresses too."""
    paths = []
    for index, (array, count) in enumerate(arrays):
        np.save(folder / f"{index}.npy", array)
        paths.append((str(folder / f"{index}.npy"), count))
    child = start(CHILD.format(wanted=paths))
    with ProcessMemory(child.pid) as memory:
        space = read_address_space(child.pid)
        result = search_copies(memory, space.anonymous, space.mapped_names, contents, lambda: None)
        return result, child.out["at"]


def test_each_copy_is_found_once_and_in_order(start: Start, tmp_path: Path) -> None:
    weight = noise(200, 300)
    transposed = np.ascontiguousarray(weight.T)
    result, at = searched(start, tmp_path, [(weight, 2), (transposed, 1)], [content(weight)])
    assert [(copy.address, copy.copy.layout) for copy in result.found] == sorted(
        zip(at, ["original", "original", "transposed"], strict=True)
    )
    assert all(copy.verified_bytes == weight.nbytes for copy in result.found)


def test_layouts_of_a_library_are_searched_for_where_it_is_loaded(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = noise(300, 64)
    blocked = np.ascontiguousarray(weight.reshape(300, 4, 16).transpose(1, 0, 2))
    absent, _ = searched(start, tmp_path, [(blocked, 1)], [content(weight)])
    assert absent.found == ()
    # Every process has loaded the C library.
    monkeypatch.setattr(ReorderedOnednn, "libraries", ("libmissing", "libc."))
    loaded, at = searched(start, tmp_path, [(blocked, 1)], [content(weight)])
    assert [(found.address, found.copy.layout) for found in loaded.found] == [
        (at[0], "reordered_onednn")
    ]


def test_content_inside_a_larger_copy_is_a_part_of_it(start: Start, tmp_path: Path) -> None:
    large = noise(256, 256)
    part = large[64:128].copy()
    contents = [content(part, "part"), content(large, "large")]
    inside, at = searched(start, tmp_path, [(large, 1)], contents)
    assert [(copy.content.names, copy.address) for copy in inside.found] == [(("large",), at[0])]
    beside, at = searched(start, tmp_path, [(large, 1), (part, 1)], contents)
    assert {copy.address for copy in beside.found} == {*at}


@pytest.mark.parametrize("period", [256, 1024])
def test_content_that_repeats_itself_is_found_once_where_it_starts(
    start: Start, tmp_path: Path, period: int
) -> None:
    row = noise(period)
    repeated = np.tile(row, 400_000 // period).reshape(-1, period)
    result, at = searched(start, tmp_path, [(repeated, 2)], [content(repeated)])
    assert {copy.address for copy in result.found if copy.copy.layout == "original"} == {*at}


def test_content_that_only_looks_alike_is_not_tried_without_end(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "_MAX_FAILED_CANDIDATES", 5)
    tried: list[int] = []

    class Counting(CopyVerifier):
        def verify(self, copy: VirtualCopy, address: int) -> int:
            tried.append(id(copy))
            return super().verify(copy, address)

    monkeypatch.setattr(search_module, "CopyVerifier", Counting)
    repeated = np.tile(noise(256), (1000, 1))
    result, _ = searched(start, tmp_path, [(repeated[:500], 1)], [content(repeated)])
    assert result.found == ()
    assert max(tried.count(copy) for copy in tried) == 6
