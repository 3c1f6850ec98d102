"""The buffers that the values of one graph share, as onnxruntime's allocation planner assigns them.

The planner goes through the nodes once, in the order in which they run. Operators that pass their
input on (Reshape, Identity) and operators that write over an input that nothing else reads (Relu,
Softmax) need no buffer of their own. Any other value reuses the buffer of a dead value of the same
shape and element size, whenever that died: a buffer is therefore allocated until the last of its
values is dead, including the times between two values. Outputs of the graph have a buffer each.

The nodes are those of `executed_graph`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import msgspec

from memdiag.model.graph_index import Scope
from memdiag.model.tensor_types import ELEMENT_TYPES_BY_NAME, TensorType
from memdiag.ort.executed_graph import ExecutedNode
from memdiag.ort.fusions import KnownAxes
from memdiag.ort.operators import IN_PLACE_OPERATORS, PASS_THROUGH_OPERATORS

MAX_VALUE_BYTES = 1 << 50
"""A larger value comes from a damaged shape. It counts as unknown."""

_BufferKind = tuple[int, KnownAxes]


class ValueBuffer(msgspec.Struct, eq=False, gc=False):
    """Memory for one value after another.

    Attributes:
        name: the first value.
        nbytes: its size.
        kind: element bits and shape, which values that share a buffer have in common; None if the
            planner does not know them.
        first, last: the steps between which the buffer is allocated.
        reads_left: the number of nodes that are still to read the present value. It stays above 0
            for an output of the graph.
    """

    name: str
    nbytes: int
    kind: _BufferKind | None
    first: int
    last: int
    reads_left: int = 0


class BufferPlan:
    """The buffers of one graph.

    Args:
        scope: the graph.
        nodes: its nodes in the order in which they run.
        types: the types of its values at the given sizes.
        axes: their axes as the planner knows them: sizes, or symbols.

    Attributes:
        buffers: the buffers of more than 0 bytes, in the order of their first steps.
        unknown: the number of values of unknown size.
    """

    def __init__(
        self,
        scope: Scope,
        nodes: Sequence[ExecutedNode],
        types: Mapping[str, TensorType],
        axes: Mapping[str, KnownAxes],
    ) -> None:
        self.buffers: list[ValueBuffer] = []
        self.unknown = 0
        self._inputs, self._outputs = scope.input_names, scope.output_names
        self._types, self._axes = types, axes
        self._buffers_by_name: dict[str, ValueBuffer] = {}
        self._free: dict[_BufferKind, list[ValueBuffer]] = defaultdict(list)
        self._reads_left = Counter(
            chain(scope.outputs, chain.from_iterable(node.input for node in nodes))
        )
        for step, node in enumerate(nodes):
            for output_index, name in enumerate(node.output):
                if name:
                    self._assign_buffer(node, output_index, name, step)
            self._release_buffers(node, node.input, step)
        for buffer in self.buffers:
            if buffer.reads_left > 0:
                buffer.last = len(nodes)

    def _assign_buffer(self, node: ExecutedNode, output_index: int, name: str, step: int) -> None:
        """Assign a buffer to an output of `node`: of an input, of a dead value, or a new buffer."""
        is_first = output_index == 0
        kind, nbytes = self._value_size(name)
        buffer, is_alias = None, False
        if name not in self._outputs:
            is_alias = node.op_type in PASS_THROUGH_OPERATORS
            if is_first and is_alias:
                # An input without a buffer comes from outside of this graph.
                buffer = self._buffers_by_name.get(node.input[0]) if node.input else None
            elif is_first:
                buffer = self._overwritten_buffer(node, kind)
            if buffer is None and kind is not None and not is_alias and self._free.get(kind):
                buffer = self._free[kind].pop()
        if buffer is None:
            self.unknown += nbytes is None and not is_alias
            buffer = ValueBuffer(name, 0 if is_alias or not nbytes else nbytes, kind, step, step)
            if buffer.nbytes:
                self.buffers.append(buffer)
        buffer.reads_left += self._reads_left[name]
        self._buffers_by_name[name] = buffer

    def _value_size(self, name: str) -> tuple[_BufferKind | None, int | None]:
        """Return the kind of a value and its bytes, as far as they are known."""
        kind = self._types.get(name)
        nbytes = None if kind is None or kind.shape is None else kind.nbytes
        if kind is None or nbytes is None or nbytes > MAX_VALUE_BYTES:
            return None, None
        axes = self._axes.get(name)
        if axes is None or None in axes:
            return None, nbytes
        return (ELEMENT_TYPES_BY_NAME[kind.dtype].bits, axes), nbytes

    def _overwritten_buffer(
        self, node: ExecutedNode, kind: _BufferKind | None
    ) -> ValueBuffer | None:
        """Return the buffer of an input that the first output of `node` overwrites, or None."""
        for name in self._overwritable_inputs(node):
            buffer = self._buffers_by_name.get(name)
            if buffer is None or buffer.reads_left != 1:
                continue
            if node.overwrites or (kind is not None and kind == buffer.kind):
                return buffer
        return None

    def _overwritable_inputs(self, node: ExecutedNode) -> Sequence[str]:
        """Return the inputs over which `node` may write."""
        if node.overwrites:
            return (node.overwrites,)
        return node.input[:1] if node.op_type in IN_PLACE_OPERATORS else ()

    def _release_buffers(self, node: ExecutedNode, names: Iterable[str], step: int) -> None:
        """Free the buffers whose values nothing reads after `node`, which reads `names`."""
        buffers_by_name, reads_left = self._buffers_by_name, self._reads_left
        outputs = (buffers_by_name[name] for name in node.output if name)
        changed_buffers = {id(buffer): buffer for buffer in outputs}
        for name in names:
            buffer = buffers_by_name.get(name)
            if buffer is not None:
                buffer.reads_left -= 1
                changed_buffers[id(buffer)] = buffer
            reads_left[name] -= 1
            if not reads_left[name]:
                self._forget_value(name)
        for name in node.output:
            if name and not reads_left[name]:
                self._forget_value(name)
        for buffer in changed_buffers.values():
            if buffer.reads_left <= 0:
                buffer.last = step
                if buffer.kind is not None:
                    self._free[buffer.kind].append(buffer)

    def _forget_value(self, name: str) -> None:
        """Drop a value that nothing reads any more: most are short-lived."""
        self._buffers_by_name.pop(name, None)
