"""The dense initializers of a graph, packed as its nodes are."""

from collections.abc import Iterator, Mapping
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from memdiag.graph.name_index import NameIndex, hashes_of
from memdiag.graph.spool import Spool, Stored

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, bytes]).decode


class Initializers(Mapping[str, TensorProto]):
    """Initializers by their names, each parsed anew; of those with one name the last one counts."""

    def __init__(self, spool: Spool) -> None:
        self._packed = Stored(spool)

    def append(self, tensor: TensorProto) -> None:
        """Add an initializer, before any is asked for by its name."""
        self._packed.append(_encode((tensor.name, tensor.SerializeToString())))

    @property
    def place_count(self) -> int:
        """How many there are in the list, those of one name counted each."""
        return len(self._packed)

    @property
    def hashes(self) -> NDArray[np.int64]:
        """The hashes of their names, sorted."""
        return self._index.hashes

    def serialized(self) -> Iterator[bytes]:
        """Yield all initializers as ONNX writes them, in the order of the graph."""
        return (serialized for _, serialized in map(_decode, self._packed))

    def __getitem__(self, name: str) -> TensorProto:
        place = self.place(name)
        if place is None:
            raise KeyError(name)
        tensor: TensorProto = TensorProto.FromString(_decode(self._packed.at(place))[1])
        return tensor

    def __contains__(self, name: object) -> bool:
        return self.place(name) is not None  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[str]:
        return (name for place, name in enumerate(self._names()) if self.place(name) == place)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @cached_property
    def _index(self) -> NameIndex:
        return NameIndex(hashes_of(self._names()))

    def _names(self) -> Iterator[str]:
        return (name for name, _ in map(_decode, self._packed))

    def place(self, name: str) -> int | None:
        """Return the place of an initializer in the graph's list; None if there is none."""
        return self._index.last_place(name)
