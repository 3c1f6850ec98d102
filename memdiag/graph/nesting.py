"""In which of a graph and its subgraphs, and theirs, a name is defined or read."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from memdiag.graph.name_index import NameIndex

if TYPE_CHECKING:
    from memdiag.graph.bodies import Body


class Nesting:
    """A graph and all graphs inside it, numbered from the outer to the inner ones.

    Those inside one graph have the numbers that follow its own.
    """

    def __init__(self, outermost: "Body") -> None:
        self._bodies = list(_bodies(outermost))
        self._spans: dict[int, range] = {}
        self._note(outermost, 0)

    def span(self, body: "Body") -> range:
        """Return the number of a graph, as the first one, and those of all that are inside it."""
        return self._spans[id(body)]

    def definers(self, name: str) -> Sequence[int]:
        """Return the numbers of the graphs that define `name`, in order."""
        index, starts = self._defined
        return sorted({bisect_right(starts, place) - 1 for place in index.places(name)})

    def readers(self, name: str) -> Sequence[int]:
        """Return the numbers of the graphs that have a node which reads `name`, in order."""
        index, starts = self._read
        return sorted({bisect_right(starts, place) - 1 for place in index.places(name)})

    def _note(self, body: "Body", number: int) -> int:
        end = number + 1
        for inner in body.inner_bodies():
            end = self._note(inner, end)
        self._spans[id(body)] = range(number, end)
        return end

    @cached_property
    def _defined(self) -> tuple[NameIndex, list[int]]:
        return _joined([body.defined_hashes() for body in self._bodies])

    @cached_property
    def _read(self) -> tuple[NameIndex, list[int]]:
        return _joined([body.links.read_hashes for body in self._bodies])


def _bodies(body: "Body") -> Iterator["Body"]:
    yield body
    for inner in body.inner_bodies():
        yield from _bodies(inner)


def _joined(hashes: Sequence[NDArray[np.int64]]) -> tuple[NameIndex, list[int]]:
    """Return an index of all hashes, and where those of each list start among them."""
    starts = np.cumsum([0, *map(len, hashes)])[:-1].tolist()
    return NameIndex(np.concatenate(hashes)), starts
