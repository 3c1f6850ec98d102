import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memdiag.graph.grouping import first_equal, groups


def test_the_first_of_equal_ones_is_found() -> None:
    assert first_equal(np.array([7, 3, 7, 3, 5])).tolist() == [0, 1, 0, 1, 4]


def test_all_keys_have_to_be_equal() -> None:
    keys = np.array([1, 1, 1, 2]), np.array([5, 6, 5, 5], np.uint64)
    assert first_equal(*keys).tolist() == [0, 1, 0, 3]


def test_a_label_that_one_item_has_is_no_group() -> None:
    found = [group.tolist() for group in groups(np.array([4, 0, 9, 4, 0, 0]))]
    assert found == [[1, 4, 5], [0, 3]]


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_items_are_no_group(count: int) -> None:
    assert first_equal(np.zeros(count, np.int64)).tolist() == list(range(count))
    assert list(groups(np.zeros(count, np.int64))) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**64 - 1) | st.integers(0, 2))))
def test_the_groups_are_those_of_a_dictionary(items: list[tuple[int, int]]) -> None:
    by_key: dict[tuple[int, int], list[int]] = {}
    for place, item in enumerate(items):
        by_key.setdefault(item, []).append(place)
    keys = (
        np.array([one for one, _ in items], np.int64),
        np.array([other for _, other in items], np.uint64),
    )
    found = [group.tolist() for group in groups(first_equal(*keys))]
    assert found == [places for places in by_key.values() if len(places) > 1]
