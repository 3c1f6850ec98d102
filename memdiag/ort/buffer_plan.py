"""The buffers that the values of one graph share, as onnxruntime's allocation planner assigns them.

The planner goes through the nodes once, in the order in which they run. Operators that pass their
input on (Reshape, Identity) and operators that write over an input that nothing else reads (Relu,
Softmax) need no buffer of their own. Any other value reuses the buffer of a dead value of the same
shape and element size, whenever that died: a buffer is therefore allocated until the last of its
values is dead, including the times between two values. Outputs of the graph have a buffer each.

The nodes are those of `executed_graph`. Values that `fusions.ActivationFusions` removes take
nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

import msgspec

from memdiag.model.graph_index import Scope
from memdiag.model.tensor_types import ELEMENT_TYPES_BY_NAME, TensorType
from memdiag.ort.executed_graph import ExecutedNode
from memdiag.ort.fusions import ActivationFusions
from memdiag.ort.operators import IN_PLACE, PASS_THROUGH

Reads = Callable[[ExecutedNode], Sequence[str]]
"""Returns the names that a node reads, also in its subgraphs, each once."""

IsPlannable = Callable[[TensorType, TensorType | None], bool]
"""Returns whether the planner knows the whole shape of a value, if only by symbols, from the type
at the given sizes and the type as declared."""

MAX_VALUE_BYTES = 1 << 50
"""A larger value comes from a damaged shape. It counts as unknown."""

_Kind = tuple[int, tuple[int | None, ...]]


class Buffer(msgspec.Struct, eq=False, gc=False):
    """Memory for one value after another.

    Attributes:
        name: the first value.
        nbytes: its size.
        kind: element bits and shape, which values that share a buffer have in common; None if the
            planner does not know them.
        first, last: the steps between which the buffer is allocated.
        reads_left: how many nodes are still to read the present value. It stays above 0 for an
            output of the graph.
    """

    name: str
    nbytes: int
    kind: _Kind | None
    first: int
    last: int
    reads_left: int = 0


class BufferPlan:
    """The buffers of one graph.

    Args:
        scope: the graph.
        nodes: its nodes in the order in which they run.
        reads: see `Reads`.
        types: the types of its values at the given sizes.
        declared_types: the types of its values without given sizes.
        is_plannable: see `IsPlannable`.
        fusions: the values that fusions may remove.

    Attributes:
        buffers: the buffers of more than 0 bytes, in the order of their first steps.
        unknown: the number of values of unknown size.
    """

    def __init__(
        self,
        scope: Scope,
        nodes: Sequence[ExecutedNode],
        reads: Reads,
        types: Mapping[str, TensorType],
        declared_types: Mapping[str, TensorType],
        is_plannable: IsPlannable,
        fusions: ActivationFusions,
    ) -> None:
        self.buffers: list[Buffer] = []
        self.unknown = 0
        self._inputs, self._outputs = frozenset(scope.inputs), frozenset(scope.outputs)
        self._types, self._declared_types = types, declared_types
        self._is_plannable = is_plannable
        self._fusions = fusions
        self._by_name: dict[str, Buffer] = {}
        self._free: dict[_Kind, list[Buffer]] = defaultdict(list)
        # Most values have one of a few types; the key is the identity of both type objects.
        self._sizes: dict[tuple[int, int], tuple[_Kind | None, int | None]] = {}
        self._kinds: dict[_Kind, _Kind] = {}
        self._reads_left = Counter(chain(scope.outputs, chain.from_iterable(map(reads, nodes))))
        for step, node in enumerate(nodes):
            for output_index, name in enumerate(node.output):
                if name:
                    self._assign(node, output_index, name, step)
            self._release(node, reads(node), step)
        for buffer in self.buffers:
            if buffer.reads_left > 0:
                buffer.last = len(nodes)

    def _assign(self, node: ExecutedNode, output_index: int, name: str, step: int) -> None:
        """Assign a buffer to an output of `node`: of an input, of a dead value, or a new one."""
        is_first = output_index == 0
        kind, nbytes = self._size(name)
        if is_first and node.is_of_model and self._fusions.removes(node.source):
            kind, nbytes = None, 0
        buffer, passes_on = None, False
        if name not in self._outputs:
            passes_on = self._passes_input_on(node)
            if is_first and passes_on:
                # Without a buffer the input comes from outside of this graph.
                buffer = self._by_name.get(node.input[0]) if node.input else None
            elif is_first:
                buffer = self._overwritten(node, nbytes)
            if buffer is None and kind is not None and not passes_on and self._free.get(kind):
                buffer = self._free[kind].pop()
        if buffer is None:
            self.unknown += nbytes is None and not passes_on
            buffer = Buffer(name, 0 if passes_on or not nbytes else nbytes, kind, step, step)
            if buffer.nbytes:
                self.buffers.append(buffer)
        buffer.reads_left += self._reads_left[name]
        self._by_name[name] = buffer

    def _size(self, name: str) -> tuple[_Kind | None, int | None]:
        """Return the kind of a value and its bytes, as far as they are known."""
        actual = self._types.get(name)
        if actual is None:
            return None, None
        declared = self._declared_types.get(name)
        key = id(actual), id(declared)
        size = self._sizes.get(key)
        if size is None:
            size = self._sizes[key] = self._size_of(actual, declared)
        return size

    def _size_of(
        self, actual: TensorType, declared: TensorType | None
    ) -> tuple[_Kind | None, int | None]:
        nbytes = actual.nbytes
        if actual.shape is None or nbytes is None or nbytes > MAX_VALUE_BYTES:
            return None, None
        if not self._is_plannable(actual, declared):
            return None, nbytes
        kind = (ELEMENT_TYPES_BY_NAME[actual.dtype].bits, actual.shape)
        return self._kinds.setdefault(kind, kind), nbytes

    def _overwritten(self, node: ExecutedNode, nbytes: int | None) -> Buffer | None:
        """Return the input's buffer that the first output of `node` overwrites; None without."""
        for name in self._overwritable(node):
            buffer = self._by_name.get(name)
            if buffer is not None and buffer.reads_left == 1 and buffer.nbytes == nbytes:
                return buffer
        return None

    def _passes_input_on(self, node: ExecutedNode) -> bool:
        if node.op_type in PASS_THROUGH:
            return True
        return node.is_of_model and self._fusions.passes_input_on(node.source)

    def _overwritable(self, node: ExecutedNode) -> Sequence[str]:
        """Return the inputs over which `node` may write."""
        if node.overwrites:
            return (node.overwrites,)
        return node.input[:1] if node.op_type in IN_PLACE else ()

    def _release(self, node: ExecutedNode, names: Iterable[str], step: int) -> None:
        """Free the buffers whose values nothing reads after `node`, which reads `names`."""
        by_name, reads_left = self._by_name, self._reads_left
        touched = {id(by_name[name]): by_name[name] for name in node.output if name}
        for name in names:
            buffer = by_name.get(name)
            if buffer is not None:
                buffer.reads_left -= 1
                touched[id(buffer)] = buffer
            reads_left[name] -= 1
            if not reads_left[name]:
                self._forget(name)
        for name in node.output:
            if name and not reads_left[name]:
                self._forget(name)
        for buffer in touched.values():
            if buffer.reads_left <= 0:
                buffer.last = step
                if buffer.kind is not None:
                    self._free[buffer.kind].append(buffer)

    def _forget(self, name: str) -> None:
        """Drop a value that nothing reads any more: most are short-lived."""
        self._by_name.pop(name, None)
