"""Sequences whose items are made when they are asked for, as there may be very many of them."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TypeVar, overload

from memdiag.graph.grouping import Indices

T = TypeVar("T")

Places = Sequence[int] | Indices


class Made(Sequence[T]):
    """A sequence that makes its items; a slice of it is some of them, not made yet."""

    __slots__ = ()

    @abstractmethod
    def at(self, place: int) -> T:
        """Return the item at `place`, which counts from the beginning."""

    @overload
    def __getitem__(self, place: int) -> T: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[T]: ...

    def __getitem__(self, place: int | slice) -> T | Sequence[T]:
        if isinstance(place, slice):
            return self.some(range(*place.indices(len(self))))
        return self.at(range(len(self))[place])

    def __iter__(self) -> Iterator[T]:
        return map(self.at, range(len(self)))

    def some(self, places: Places) -> "Some[T]":
        """Return the items at `places`, in that order."""
        return Some(self, places)


class Some(Made[T]):
    """Some of the items `of` another sequence, in any order, by their `places` there."""

    def __init__(self, of: Made[T], places: Places) -> None:
        self.of, self.places = of, places

    def __len__(self) -> int:
        return len(self.places)

    def at(self, place: int) -> T:
        """Return the item at `place` among these."""
        return self.of.at(int(self.places[place]))

    def __iter__(self) -> Iterator[T]:
        return map(self.of.at, map(int, self.places))
