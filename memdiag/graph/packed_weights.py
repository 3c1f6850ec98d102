"""The weights of a model and what holds their data, packed as nodes are."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain

import msgspec
import numpy as np
from google.protobuf.message import Message
from onnx import AttributeProto, SparseTensorProto, TensorProto

from memdiag.graph.grouping import Indices
from memdiag.graph.made import Made, Places, Some
from memdiag.graph.name_index import NameIndex, hashes_of
from memdiag.graph.spool import Spool, Stored
from memdiag.graph.weights import Found
from memdiag.records.weights import Weight

MOST_HELD = 2048
"""Weights that are at hand: half a kilobyte each, which models of a few need not make again."""

Source = TensorProto | SparseTensorProto | AttributeProto

_KINDS: tuple[type[Message], ...] = (TensorProto, SparseTensorProto, AttributeProto)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Weight).decode


class Weights(Made[Weight]):
    """The weights of a model, in its order; each is made when it is asked for, but for the first.

    Those that are made of one weight are equal, and not the same object.
    """

    def __init__(self, spool: Spool) -> None:
        self._held: list[Weight] = []
        # By themselves, as all are read in a row more often than one of them.
        self._packed = Stored(Spool())
        self._kinds = bytearray()
        self._data = Stored(spool)

    def add(self, found: Found) -> None:
        """Add a weight, before any is asked for."""
        if len(self._held) < MOST_HELD:
            self._held.append(found.weight)
        else:
            self._packed.append(_encode(found.weight))
        self._kinds.append(_KINDS.index(found.source))
        self._data.append(found.data)

    def __len__(self) -> int:
        return len(self._held) + len(self._packed)

    def at(self, place: int) -> Weight:
        """Return the weight at `place`."""
        index = place - len(self._held)
        return self._held[place] if index < 0 else _decode(self._packed.at(index))

    def __iter__(self) -> Iterator[Weight]:
        return chain(self._held, map(_decode, self._packed))

    def places(self, graph: str, name: str) -> Sequence[int]:
        """Return the places of the weights of that name in the graph of that path."""
        return self._index.places((graph, name))

    def place(self, weight: Weight) -> int:
        """Return the place of a weight, the last one of those that are equal.

        Raises:
            KeyError: it is no weight of the model.
        """
        for place in reversed(self.places(weight.graph, weight.name)):
            if self.at(place) == weight:
                return place
        raise KeyError(weight)

    def source(self, weight: Weight) -> Source | None:
        """Return what holds the data of a weight; None where they are plain bytes in a file.

        Raises:
            KeyError: it is no weight of the model.
        """
        place = self.place(weight)
        data = self._data.at(place)
        source: Source | None = _KINDS[self._kinds[place]].FromString(data) if data else None
        return source

    def those(self, wanted: Callable[[Weight], bool]) -> "SomeWeights":
        """Return those of which `wanted` is true, in the order of the model."""
        which = np.fromiter(map(wanted, self), np.bool_, len(self))
        return SomeWeights(self, np.flatnonzero(which))

    @cached_property
    def _index(self) -> NameIndex:
        return NameIndex(hashes_of((one.graph, one.name) for one in self))


class SomeWeights(Some[Weight]):
    """Some of a model's weights."""

    def __init__(self, weights: Weights, places: Places) -> None:
        super().__init__(weights, places)
        self.weights = weights

    def ranges(self) -> tuple[Indices, Indices]:
        """Return, for each weight, a number of its file and its offset there.

        Files are numbered in the order of their names. What no file has as it is has the number 0,
        and its own index for an offset.
        """
        names: dict[str | None, int] = {None: 0}
        found = np.empty((2, len(self)), np.int64)
        for index, weight in enumerate(self):
            number = names.setdefault(weight.file, len(names))
            found[:, index] = number, index if weight.file is None else weight.offset or 0
        ranks = np.zeros(len(names), np.int64)
        ranks[[names[name] for name in sorted(filter(None, names))]] = np.arange(1, len(names))
        return ranks[found[0]], found[1]


class WeightGroups(Made[SomeWeights]):
    """Groups of a model's weights, by their places: each group is made when it is asked for.

    `places` has those of the first group, then those of the second; `starts` where each begins.
    """

    def __init__(self, weights: Weights, places: Indices, starts: Indices) -> None:
        self._weights, self.places, self._starts = weights, places, starts

    def __len__(self) -> int:
        return len(self._starts)

    def at(self, index: int) -> SomeWeights:
        """Return the group of that number."""
        stop = self._starts[index + 1] if index + 1 < len(self) else len(self.places)
        return SomeWeights(self._weights, self.places[self._starts[index] : stop])

    def number_of(self, place: int) -> int | None:
        """Return the number of the group that has the weight at `place`; None if none has."""
        order, ordered = self._by_place
        found = int(np.searchsorted(ordered, place))
        if found == len(ordered) or ordered[found] != place:
            return None
        return int(np.searchsorted(self._starts, order[found], "right")) - 1

    @cached_property
    def _by_place(self) -> tuple[Indices, Indices]:
        """The indices of the places ordered by place, and the places in that order."""
        order = np.argsort(self.places)
        return order, self.places[order]
