"""What holds the data of a model's weights, packed as nodes are."""

from functools import cached_property

from google.protobuf.message import Message
from onnx import AttributeProto, SparseTensorProto, TensorProto

from memdiag.graph.name_index import NameIndex, hashes_of
from memdiag.graph.spool import Spool, Stored
from memdiag.graph.weights import Found
from memdiag.records.weights import Weight

Source = TensorProto | SparseTensorProto | AttributeProto

_KINDS: tuple[type[Message], ...] = (TensorProto, SparseTensorProto, AttributeProto)


class WeightSources:
    """The weights of a model, and for each of them what holds its data."""

    def __init__(self, spool: Spool) -> None:
        self.weights: list[Weight] = []
        self._kinds = bytearray()
        self._data = Stored(spool)

    def add(self, found: Found) -> None:
        """Add a weight, before any is asked for."""
        self.weights.append(found.weight)
        self._kinds.append(_KINDS.index(found.source))
        self._data.append(found.data)

    def source(self, weight: Weight) -> Source | None:
        """Return what holds the data of a weight; None where they are plain bytes in a file.

        Raises:
            KeyError: it is no weight of the model.
        """
        place = self._index.last_place(weight)
        if place is None or self.weights[place] != weight:
            raise KeyError(weight)
        data = self._data[place]
        source: Source | None = _KINDS[self._kinds[place]].FromString(data) if data else None
        return source

    @cached_property
    def _index(self) -> NameIndex:
        return NameIndex(hashes_of(self.weights))
