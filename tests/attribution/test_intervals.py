import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memdiag.attribution import intervals
from memdiag.attribution.intervals import ByteRanges

PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


def bytes_in(ranges: ByteRanges) -> set[int]:
    return {byte for start, end in ranges.tolist() for byte in range(start, end)}


def is_normal(ranges: ByteRanges) -> bool:
    flat = ranges.ravel()
    return ranges.shape[1:] == (2,) and ranges.dtype == np.int64 and bool((np.diff(flat) > 0).all())


@given(PAIRS)
def test_a_normal_set_has_the_same_bytes(pairs: list[tuple[int, int]]) -> None:
    found = intervals.normalized_ranges(pairs)
    assert is_normal(found)
    assert bytes_in(found) == {byte for start, end in pairs for byte in range(start, end)}
    assert intervals.total_bytes(found) == len(bytes_in(found))


@given(PAIRS, PAIRS)
def test_sets_combine_as_sets_of_bytes_do(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    a, b = intervals.normalized_ranges(one), intervals.normalized_ranges(other)
    for found, expected in (
        (intervals.union(a, b), bytes_in(a) | bytes_in(b)),
        (intervals.intersect(a, b), bytes_in(a) & bytes_in(b)),
        (intervals.subtract(a, b), bytes_in(a) - bytes_in(b)),
    ):
        assert is_normal(found)
        assert bytes_in(found) == expected


def test_high_addresses_are_no_special_case() -> None:
    high = intervals.normalized_ranges([((1 << 57) - 4096, 1 << 57)])
    assert intervals.total_bytes(intervals.subtract(high, intervals.empty_ranges())) == 4096
    assert intervals.total_bytes(intervals.subtract(high, high)) == 0
