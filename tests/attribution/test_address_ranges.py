from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memdiag.attribution import address_ranges as ranges_module
from memdiag.attribution import intervals
from memdiag.attribution.address_ranges import address_ranges
from memdiag.attribution.intervals import Ranges
from memdiag.records.attribution import AddressRange

BYTES = 60


def ranges(*pairs: tuple[int, int]) -> Ranges:
    return intervals.normal(pairs)


def extents(*pairs: tuple[int, int]) -> Ranges:
    return np.array(pairs, np.int64).reshape(-1, 2)


def one(start: int, end: int, owner: int, copy: int | None = None) -> AddressRange:
    return AddressRange(
        start=start, bytes=end - start, resident_bytes=end - start, owner=owner, copy=copy
    )


def divided(owner_of: list[int | None]) -> list[Ranges]:
    """The bytes of each owner, from the owner of each byte."""
    return [
        ranges(*((at, at + 1) for at, owner in enumerate(owner_of) if owner == wanted))
        for wanted in range(3)
    ]


owner_of_bytes = st.lists(st.none() | st.integers(0, 2), max_size=BYTES)
spans = st.tuples(st.integers(0, BYTES), st.integers(1, 20)).map(lambda at: (at[0], at[0] + at[1]))
copy_spans = st.lists(spans, max_size=6)


@given(owner_of=owner_of_bytes, copies=copy_spans)
def test_every_byte_lies_in_a_range_of_its_owner_and_copy(
    owner_of: list[int | None], copies: list[tuple[int, int]]
) -> None:
    found = address_ranges(divided(owner_of), extents(*copies))
    assert [one.start for one in found] == sorted(one.start for one in found)
    seen: dict[int, list[AddressRange]] = defaultdict(list)
    for part in found:
        assert part.resident_bytes == part.bytes
        for at in range(part.start, part.start + part.bytes):
            seen[at].append(part)
    for at, owner in enumerate(owner_of):
        holding = [n for n, (start, end) in enumerate(copies) if start <= at < end]
        smallest = min((copies[n][1] - copies[n][0] for n in holding), default=None)
        if owner is None:
            assert at not in seen
            continue
        (part,) = seen[at]
        assert part.owner == owner
        if smallest is None:
            assert part.copy is None
        else:
            assert part.copy in holding
            assert copies[part.copy][1] - copies[part.copy][0] == smallest


@given(owner_of=owner_of_bytes, copies=copy_spans, most=st.integers(6, 12))
def test_a_bounded_number_has_the_same_bytes(
    owner_of: list[int | None], copies: list[tuple[int, int]], most: int
) -> None:
    owned = divided(owner_of)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges_module, "MAX_RANGES", most)
        patch.setattr(ranges_module, "_MAX_COPIES", 1)
        found = address_ranges(owned, extents(*copies))
    assert len(found) <= most
    assert [one.start for one in found] == sorted(one.start for one in found)
    for owner, theirs in enumerate(owned):
        parts = [part for part in found if part.owner == owner]
        assert sum(part.resident_bytes for part in parts) == intervals.total(theirs)
        covered = intervals.normal([(part.start, part.start + part.bytes) for part in parts])
        assert intervals.total(intervals.subtract(theirs, covered)) == 0
        assert all(part.resident_bytes <= part.bytes for part in parts)


def test_neighbours_of_one_owner_are_one_range_unless_a_copy_ends_there() -> None:
    owned = [ranges((0, 10), (10, 30)), ranges((30, 40))]
    assert address_ranges(owned, extents()) == (one(0, 30, 0), one(30, 40, 1))
    assert address_ranges(owned, extents((10, 20), (20, 30))) == (
        one(0, 10, 0),
        one(10, 20, 0, copy=0),
        one(20, 30, 0, copy=1),
        one(30, 40, 1),
    )


def test_of_too_many_the_narrowest_gaps_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges_module, "MAX_RANGES", 3)
    mine, others = ranges((0, 1), (2, 3), (9, 10)), ranges((1, 2))
    assert address_ranges([mine, others], extents()) == (
        AddressRange(start=0, bytes=3, resident_bytes=2, owner=0, copy=None),
        one(1, 2, 1),
        one(9, 10, 0),
    )


def test_of_too_many_copies_the_smallest_are_not_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranges_module, "_MAX_COPIES", 1)
    assert address_ranges([ranges((0, 30))], extents((0, 2), (2, 30))) == (
        one(0, 2, 0),
        one(2, 30, 0, copy=1),
    )


def test_nothing_resident_has_no_range() -> None:
    assert address_ranges([], extents()) == ()
    assert address_ranges([intervals.empty()], extents((1, 2))) == ()
