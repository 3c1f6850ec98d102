import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memdiag.graph.made import Made


class Squares(Made[int]):
    """The squares of the first numbers; `made` are those that were asked for."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.made: list[int] = []

    def __len__(self) -> int:
        return self.length

    def at(self, place: int) -> int:
        self.made.append(place)
        return place * place


_ENDS = st.none() | st.integers(-9, 9)


@given(st.integers(0, 7), _ENDS, _ENDS, st.sampled_from([None, 1, 2, 3, -1, -2]))
def test_slices_are_those_of_a_list(
    count: int, start: int | None, stop: int | None, step: int | None
) -> None:
    part = slice(start, stop, step)
    squares, expected = Squares(count), [number * number for number in range(count)]
    assert list(squares) == expected
    assert list(squares[part]) == expected[part]
    assert list(squares[part][part]) == expected[part][part]
    assert len(squares[part]) == len(expected[part])


@given(st.integers(0, 5), st.integers(-7, 7))
def test_items_are_those_of_a_list(count: int, place: int) -> None:
    squares, expected = Squares(count), [number * number for number in range(count)]
    if -count <= place < count:
        assert squares[place] == expected[place]
        assert squares[:][place] == expected[place]
    else:
        with pytest.raises(IndexError):
            squares[place]
        with pytest.raises(IndexError):
            squares[:][place]


def test_what_nobody_asks_for_is_not_made() -> None:
    squares = Squares(10)
    some = squares.some(np.array([7, 3, 3]))
    assert (len(some), some[-1], list(some[:2])) == (3, 9, [49, 9])
    assert squares.made == [3, 7, 3]
