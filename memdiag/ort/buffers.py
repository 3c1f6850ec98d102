"""Which values of a graph share memory: the plan that the runtime makes before it runs.

Its allocation planner goes through the nodes once. Operators that hand their input on (Reshape,
Identity) and those that write over an input that nobody else reads (Relu, Softmax) take no memory
of their own. Any other value takes over the buffer of a dead one of the same shape and element
size, if there is one, whenever that died: a buffer is therefore held until the last value that
goes into it is dead, also while nothing is in it. Outputs of the graph have a buffer each.

BatchNormalization, sums and scales go into the Conv before them; of other fusions see `fusions`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain

import msgspec

from memdiag.model.graph_index import Node, Scope
from memdiag.model.tensor_types import ELEMENT_TYPES_BY_NAME, TensorType
from memdiag.ort.fusions import Fusions

TypeOf = Callable[[str], TensorType | None]
"""Returns the type of a value by its name; None where it is not known."""

Reads = Callable[[Node], Collection[str]]
"""Returns the names that a node reads, also in its subgraphs, each once."""

SharedShape = Callable[[str], bool]
"""Returns whether the runtime knows the whole shape of a value when it plans, if by symbols."""

_HANDED_ON = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Dropout"})
# Operators whose CPU kernels write over their input, where nobody else reads it. Measured: the
# arithmetic and the other element-wise operators do not.
_IN_PLACE = frozenset(
    {
        *("Cast", "Celu", "Clip", "Elu", "HardSigmoid", "LeakyRelu", "LogSoftmax", "Relu", "Selu"),
        *("Sigmoid", "Softmax", "Softplus", "Softsign", "Tanh", "ThresholdedRelu"),
    }
)
_SUMS = frozenset({"Add", "Sum"})
_LARGEST = 1 << 50
"""Values of more bytes are no values: a damaged shape says so. They count as unknown."""

_Kind = tuple[int, tuple[int | None, ...]]


class Buffer(msgspec.Struct, eq=False, gc=False):
    """Memory for one value after another, held from step `first` to `last`.

    `name` is that of the first value, `reads_left` how many nodes are still to read the present
    one; it stays above 0 for an output of the graph.
    """

    name: str
    nbytes: int
    kind: _Kind | None
    first: int
    last: int
    reads_left: int = 0


class BufferPlan:
    """The buffers of one graph, whose `nodes` come in the order in which they run.

    Those that take no bytes are left out. `unknown` counts the values whose size is not known.
    """

    def __init__(
        self,
        scope: Scope,
        nodes: Sequence[Node],
        reads: Reads,
        type_of: TypeOf,
        shared_shape: SharedShape,
        fusions: Fusions,
    ) -> None:
        self.buffers: list[Buffer] = []
        self.unknown = 0
        self._inputs, self._outputs = frozenset(scope.inputs), frozenset(scope.outputs)
        self._type_of, self._shared_shape = type_of, shared_shape
        self._fusions = fusions
        self._of: dict[str, Buffer] = {}
        self._free: dict[_Kind, list[Buffer]] = defaultdict(list)
        self._kinds: dict[tuple[_Kind, int], tuple[_Kind, int]] = {}
        self._convolved: set[str] = set()
        self._in_sum: set[str] = set()
        self._reads_left = Counter[str]()
        for name in chain(scope.outputs, chain.from_iterable(map(reads, nodes))):
            self._reads_left[name] += 1
        for step, node in enumerate(nodes):
            for slot, name in enumerate(node.output):
                if name:
                    self._make(node, slot, name, step)
            self._let_go(node, reads(node), step)
        for buffer in self.buffers:
            if buffer.reads_left > 0:
                buffer.last = len(nodes)

    def _make(self, node: Node, slot: int, name: str, step: int) -> None:
        """Give an output of `node` a buffer: an input's, a dead value's, or a new one."""
        kind, nbytes = self._size(name)
        if slot == 0 and self._fusions.leaves_out(node):
            kind, nbytes = None, 0
        buffer, handed_on = None, False
        if name not in self._outputs:
            buffer = self._of_input(node, nbytes) if slot == 0 else None
            handed_on = self._hands_on(node)  # by somebody outside this graph
            if buffer is None and kind is not None and not handed_on and self._free[kind]:
                buffer = self._free[kind].pop()
        if buffer is None:
            self.unknown += nbytes is None and not handed_on
            buffer = Buffer(name, 0 if handed_on or not nbytes else nbytes, kind, step, step)
            if buffer.nbytes:
                self.buffers.append(buffer)
        if self._joins_convolution(node):
            self._convolved.add(name)
            is_sum = node.op_type == "Conv" and buffer.reads_left > 0
            if is_sum or (node.op_type not in _SUMS and not self._in_sum.isdisjoint(node.input)):
                self._in_sum.add(name)
        buffer.reads_left += self._reads_left[name]
        self._of[name] = buffer

    def _size(self, name: str) -> tuple[_Kind | None, int | None]:
        """Return what values have in common that share a buffer, and the bytes, where known."""
        known = self._type_of(name)
        nbytes = known.nbytes if known is not None else None
        if known is None or known.shape is None or nbytes is None or nbytes > _LARGEST:
            return None, None
        if not self._shared_shape(name):
            return None, nbytes
        kind = (ELEMENT_TYPES_BY_NAME[known.dtype].bits, known.shape)
        # Many values have one kind, which is kept once.
        return self._kinds.setdefault((kind, nbytes), (kind, nbytes))

    def _of_input(self, node: Node, nbytes: int | None) -> Buffer | None:
        """Return the input's buffer that the first output of `node` goes into, if any."""
        if self._hands_on(node):
            return self._of.get(node.input[0]) if node.input else None
        for name in node.input[:2]:
            if name in self._in_sum:  # the Conv adds its result to what lies there
                return self._of[name]
        for name in self._written_over(node):
            buffer = self._of.get(name)
            if buffer is not None and buffer.reads_left == 1 and buffer.nbytes == nbytes:
                return buffer
        return None

    def _hands_on(self, node: Node) -> bool:
        return node.op_type in _HANDED_ON or self._fusions.hands_on(node)

    def _written_over(self, node: Node) -> Sequence[str]:
        """Return the inputs that `node` may write over."""
        if node.op_type in _IN_PLACE:
            return list(node.input[:1])
        if node.op_type == "Conv":
            added = self._fusions.summed_with(node)
            return [] if added is None else [added]
        if not self._joins_convolution(node):
            return ()
        names = node.input[:2]
        return [name for name in names if name in self._convolved or node.op_type in _SUMS]

    def _joins_convolution(self, node: Node) -> bool:
        """Return whether the runtime makes `node` a part of the Conv before it."""
        if node.op_type == "Conv":
            return True
        convolved = [name for name in node.input[:2] if name in self._convolved]
        if node.op_type == "Mul":
            # Only by a constant: not by what was computed, nor by what is fed.
            others = [name for name in node.input if name not in convolved]
            return bool(convolved) and not any(
                name in self._of or name in self._inputs for name in others
            )
        return bool(convolved) and node.op_type in ("BatchNormalization", *_SUMS)

    def _let_go(self, node: Node, names: Iterable[str], step: int) -> None:
        """Free what nobody reads after `node`, which reads `names`."""
        touched = {id(self._of[name]): self._of[name] for name in node.output if name}
        for name in names:
            buffer = self._of.get(name)
            if buffer is not None:
                buffer.reads_left -= 1
                touched[id(buffer)] = buffer
            self._reads_left[name] -= 1
            if not self._reads_left[name]:
                self._forget(name)
        for name in node.output:
            if name and not self._reads_left[name]:
                self._forget(name)
        for buffer in touched.values():
            if buffer.reads_left <= 0:
                buffer.last = step
                if buffer.kind is not None:
                    self._free[buffer.kind].append(buffer)

    def _forget(self, name: str) -> None:
        """Nobody asks for a value any more: most are short-lived."""
        self._of.pop(name, None)
        self._convolved.discard(name)
        self._in_sum.discard(name)
