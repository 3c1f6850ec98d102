import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memdiag.graph.name_index import NameIndex, hashes_of


@given(st.lists(st.text(max_size=3), max_size=60), st.text(max_size=3))
def test_names_are_found_at_all_their_places_and_others_nowhere(
    names: list[str], other: str
) -> None:
    index = NameIndex(hashes_of(names))
    assert len(index) == len(names)
    for name in {*names, other}:
        expected = [place for place, one in enumerate(names) if one == name]
        assert list(index.places(name)) == expected
        assert index.last_place(name) == (expected[-1] if expected else None)
    wanted = [*names, other]
    last = [index.last_place(name) for name in wanted]
    found = index.last_places(hashes_of(wanted))
    assert found.tolist() == [-1 if place is None else place for place in last]


def test_hashes_may_be_any_numbers_of_64_bits() -> None:
    ends = np.array([2**63 - 1, -(2**63), 0, -1, 2**62, 0])
    index = NameIndex(ends)
    assert index.last_places(ends).tolist() == [0, 1, 5, 3, 4, 5]
    assert index.last_places(np.array([1, 2**63 - 2])).tolist() == [-1, -1]
    assert len(NameIndex(ends[:0])) == 0
    assert NameIndex(ends[:0]).last_place("x") is None
    assert list(NameIndex(ends[:1]).places("x")) == []


def test_many_names_are_all_found() -> None:
    # More than are sorted at once.
    count = 70_000
    names = [f"value{number}" for number in range(count)]
    index = NameIndex(hashes_of([*names, *names]))
    assert [index.last_place(name) for name in names] == list(range(count, 2 * count))
    assert all(list(index.places(f"value{n}")) == [n, count + n] for n in range(0, count, 7))
    assert all(index.last_place(f"other{number}") is None for number in range(1000))
    assert (np.diff(index.hashes) >= 0).all()
