"""Contents of inputs change in place: in each run others, within the range, without memory."""

import tracemalloc
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from memdiag.runner.scripts.contents import CHUNK, Contents

RUNS = 200
FLOATS = ("float16", "float32", "float64")
RANGES = [
    # dtype, range, number of elements: small types, sums beyond the type, an array of many chunks
    ("int8", (0, 100), 60),
    ("uint8", (0, 256), 60),
    ("int16", (-3, 4), 60),
    ("int32", (0, 2), 128),
    ("int64", (0, 30522), 3 * CHUNK + 1),
    ("uint64", (0, 2**40), 60),
    ("float32", (0, 7), 60),
]


def contents_of(array: Any, vary: object) -> Contents:
    return Contents(np, {"x": array}, [{"name": "x", "vary": vary}])


def changed(array: np.ndarray, vary: object, runs: int = RUNS) -> list[bytes]:
    """Return the contents before the first change and after each."""
    contents = contents_of(array, vary)
    found = [array.tobytes()]
    for _ in range(runs):
        contents.change()
        found.append(array.tobytes())
    return found


def values(dtype: str, bounds: tuple[int, int], size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(*bounds, size).astype(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_floating_point_values_change_by_less_than_one_percent(dtype: str) -> None:
    array = np.random.default_rng(0).standard_normal((3, 40)).astype(dtype)
    before = array.copy()
    assert len({*changed(array, "bits")}) == RUNS + 1
    change = np.abs(array.astype("f8") / before.astype("f8") - 1)
    assert 0 < change.max() < 0.01


@pytest.mark.parametrize(("dtype", "bounds", "size"), RANGES)
def test_integers_stay_in_their_range(dtype: str, bounds: tuple[int, int], size: int) -> None:
    array = values(dtype, bounds, size)
    contents = {*changed(array, [*bounds])}
    assert len(contents) == RUNS + 1
    for content in contents:
        assert bounds[0] <= np.frombuffer(content, dtype).min()
        assert np.frombuffer(content, dtype).max() < bounds[1]


@pytest.mark.parametrize(
    ("array", "vary"),
    [(np.array(1.5, "f4"), "bits"), (np.array([0.5], "f2"), "bits"), (np.array([1]), [0, 2])],
)
def test_the_contents_of_one_element_differ_from_run_to_run(array: Any, vary: object) -> None:
    assert all(before != after for before, after in pairwise(changed(array, vary)))


@pytest.mark.parametrize("array", [np.array(["a", "b"]), np.ones(3, bool), np.ones(3), object()])
def test_other_inputs_stay_as_they_are(array: Any) -> None:
    # An array of a type that numpy lacks is no array here, but a value of the runtime.
    before = array.copy() if isinstance(array, np.ndarray) else array
    contents_of(array, None).change()
    assert np.array_equal(array, before)


def test_the_array_of_a_sequence_and_an_empty_one_change() -> None:
    array = np.ones(4, "f4")
    feeds: Any = {"parts": [array], "none": np.ones((0, 3), "f4"), "ids": np.ones((2, 0), "i8")}
    varied = {"parts": "bits", "none": "bits", "ids": [0, 5]}
    entries = [{"name": name, "vary": vary} for name, vary in varied.items()]
    Contents(np, feeds, entries).change()
    assert (array != 1).all()


@pytest.mark.parametrize(("dtype", "vary"), [("float32", "bits"), ("int32", [0, 900])])
def test_two_processes_run_with_the_same_contents(dtype: str, vary: object) -> None:
    first, second = (values(dtype, (1, 900), 50) for _ in range(2))
    assert changed(first, vary) == changed(second, vary)


@pytest.mark.parametrize(("dtype", "vary"), [("float32", "bits"), ("int32", [0, 900])])
def test_a_change_needs_no_memory_of_the_size_of_the_input(dtype: str, vary: object) -> None:
    array = values(dtype, (0, 900), 4_000_000)
    chunk_bytes = 8 * CHUNK
    tracemalloc.start()
    try:
        contents = contents_of(array, vary)
        made, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        contents.change()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # 16 MB of values: 64 KiB before the first run for integers, and next to nothing in a run.
    assert made < chunk_bytes + 8192
    assert peak - made < 8192


@pytest.mark.parametrize("is_sequence", [False, True])
@pytest.mark.parametrize(
    ("vary", "texts"), [("text", ["a 000001", "a 000002"]), (None, ["a a", "a a"])]
)
def test_texts_are_new_strings_in_each_run(
    is_sequence: bool, vary: str | None, texts: list[str]
) -> None:
    array = np.full((2, 3), texts[0].split(" 0")[0])
    feeds: dict[str, Any] = {"x": [array] if is_sequence else array}
    contents = Contents(np, feeds, [{"name": "x", "vary": vary}])
    fed = feeds["x"][0] if is_sequence else feeds["x"]
    assert (fed.dtype, fed.tolist()) == (np.dtype(object), array.tolist())
    before = fed.reshape(-1).tolist()
    for text in texts:
        contents.change()
        now = fed.reshape(-1).tolist()
        assert now == 6 * [text]
        assert not {*map(id, now)} & {*map(id, before)}
        before = now
