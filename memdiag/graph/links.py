"""Who makes and who reads each value of one graph, without its subgraphs."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from memdiag.graph.name_index import NameIndex
from memdiag.graph.nodes import Node, Nodes

_AT_ONCE = 1 << 16


class Links:
    """The values of one graph: which node makes each, and which read it.

    All calls of a function have them in common. `has_constants` says whether any node is a
    Constant, be it one of a tensor or not, `is_sorted` tells that no node stands before one
    whose output it reads.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        # The place of each node's first input among those of all nodes; of the outputs likewise.
        self._inputs, outputs = array("I"), array("I")
        self._constants = array("I")
        self.has_constants = False
        read, made = array("q"), array("q")
        for node in nodes:
            self._inputs.append(len(read))
            outputs.append(len(made))
            read.extend(map(hash, node.input))
            made.extend(map(hash, node.output))
            if node.op_type == "Constant":
                self.has_constants = True
                if node.output and tensor_of(node) is not None:
                    self._constants.append(node.place)
        self.producers = Producers(nodes, outputs, NameIndex(np.asarray(made)))
        self.is_sorted = self._has_order(np.asarray(read))
        self._read = NameIndex(np.asarray(read))

    @property
    def read_hashes(self) -> NDArray[np.int64]:
        """The hashes of the names that nodes read, sorted."""
        return self._read.hashes

    def reads(self, name: str) -> Iterator[tuple[Node, int]]:
        """Yield the nodes that read a value, in order, each with the input at which it does."""
        for place in self._read.places(name):
            reader = bisect_right(self._inputs, place) - 1
            yield self._nodes.at(reader), place - self._inputs[reader]

    def constants(self) -> Iterator[str]:
        """Yield the values that Constants make which are tensors."""
        return (self._nodes.at(place).output[0] for place in self._constants)

    def constant(self, name: str) -> Node | None:
        """Return the Constant that makes a value which is a tensor; None if it is none."""
        maker = self.producers.get(name) if self._constants else None
        if maker is None:
            return None
        found = bisect_left(self._constants, maker.place)
        is_one = found < len(self._constants) and self._constants[found] == maker.place
        return maker if is_one else None

    def _has_order(self, read: NDArray[np.int64]) -> bool:
        for start in range(0, len(read), _AT_ONCE):
            part = read[start : start + _AT_ONCE]
            places = np.arange(start, start + len(part))
            readers = np.searchsorted(np.asarray(self._inputs), places, "right") - 1
            if np.any((self.producers.makers(part) >= readers) & (part != hash(""))):
                return False
        return True


class Producers(Mapping[str, Node]):
    """The nodes that make the values of a graph, by the values' names: of several the last one.

    `place` returns the place of a value among the outputs of all nodes; None if none makes it.
    """

    def __init__(self, nodes: Nodes, outputs: "array[int]", index: NameIndex) -> None:
        self._nodes, self._outputs, self._index = nodes, outputs, index
        self.place: Callable[[str], int | None] = index.last_place

    @property
    def place_count(self) -> int:
        """How many outputs all nodes have: places are below it."""
        return len(self._index)

    @property
    def hashes(self) -> NDArray[np.int64]:
        """The hashes of the values' names, sorted."""
        return self._index.hashes

    def makers(self, hashes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of the nodes that make what has these hashes, -1 for none."""
        places = self._index.last_places(hashes)
        return np.searchsorted(np.asarray(self._outputs), places, "right") - 1

    def maker_place(self, name: str) -> int | None:
        """Return the place of the node that makes a value; None if there is none."""
        place = self.place(name)
        return None if place is None else bisect_right(self._outputs, place) - 1

    def __getitem__(self, name: str) -> Node:
        place = self.maker_place(name)
        if place is None:
            raise KeyError(name)
        return self._nodes.at(place)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the node that makes a value, or `default`."""
        place = self.maker_place(name)
        return default if place is None else self._nodes.at(place)

    def __contains__(self, name: object) -> bool:
        return self.place(name) is not None  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[str]:
        for node in self._nodes:
            yield from dict.fromkeys(one for one in node.output if self[one] == node)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def tensor_of(constant: Node) -> TensorProto | None:
    """Return the tensor that a Constant node holds, if it holds one."""
    held = (attribute.t for attribute in constant.attribute if attribute.HasField("t"))
    return next(held, None)
