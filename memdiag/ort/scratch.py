"""Working memory that kernels of the CPU provider take from the arena while they run.

Measured: for each operator here but two, the regions that the arena takes at ten sizes are those
that these buffers need (tests/ort/test_scratch.py, on the installed release). The two are
DynamicQuantizeMatMul and DynamicQuantizeLSTM, whose buffers agree with the growth of the first run
of models with them (docs/estimates.md). Kernels that are not listed were not examined, and count as
if they took none.
"""

from collections.abc import Callable, Mapping
from math import prod

from memdiag.model.graph_index import integer
from memdiag.model.tensor_types import TensorType
from memdiag.ort.executed_graph import ExecutedNode

Types = Mapping[str, TensorType]

_FLOAT = 4


def scratch_bytes(node: ExecutedNode, types: Types) -> list[int]:
    """Return the sizes of the buffers that the kernel of `node` takes, in bytes."""
    found = _BUFFERS.get(node.op_type)
    return [] if found is None else [size for size in found(node, types) if size > 0]


def _shape(types: Types, name: str) -> tuple[int, ...]:
    kind = types.get(name)
    if kind is None or kind.shape is None or None in kind.shape:
        return ()
    return tuple(size or 0 for size in kind.shape)


def _output_bytes(node: ExecutedNode, types: Types) -> int:
    kind = types.get(node.output[0])
    return 0 if kind is None else kind.nbytes or 0


def _where(node: ExecutedNode, types: Types) -> list[int]:
    """Both choices in the shape of the output."""
    return [_output_bytes(node, types)] * 2


def _one_output(node: ExecutedNode, types: Types) -> list[int]:
    return [_output_bytes(node, types)]


def _quantized_input(node: ExecutedNode, types: Types) -> list[int]:
    """The left operand in 8 bits."""
    return [prod(_shape(types, node.input[0]))] if node.input else []


def _recurrent(gates: int) -> Callable[[ExecutedNode, Types], list[int]]:
    def buffers(node: ExecutedNode, types: Types) -> list[int]:
        """The state; for each direction the gates of all steps, in the reverse one between its
        reversed input and output. Smaller buffers follow, of which one counts: where a chunk was
        not split, it needs another one."""
        shape = _shape(types, node.input[0]) if node.input else ()
        if len(shape) != 3:
            return []
        steps, batch, width = shape
        hidden = integer(node.source, "hidden_size", 0)
        if integer(node.source, "layout", 0):
            steps, batch = batch, steps
        state = batch * hidden * _FLOAT
        of_gates, given = steps * gates * state, steps * batch * width * _FLOAT
        forward, reverse = [of_gates, state], [given, of_gates, steps * state, state]
        direction = _direction(node)
        if direction == "bidirectional":
            return [state, *forward, *reverse]
        return [state, *(reverse if direction == "reverse" else forward)]

    return buffers


def _gate(node: ExecutedNode, types: Types) -> list[int]:
    """The gate of all steps: as large as the output of one direction."""
    shape = _shape(types, node.input[0]) if node.input else ()
    return [prod(shape[:2]) * integer(node.source, "hidden_size", 0) * _FLOAT]


def _direction(node: ExecutedNode) -> str:
    for attribute in node.source.attribute:
        if attribute.name == "direction":
            return bytes(attribute.s).decode(errors="replace")
    return "forward"


def _columns(node: ExecutedNode, types: Types) -> list[int]:
    """The columns of one image of a ConvTranspose."""
    if len(node.source.input) < 2:
        return []
    weight, given = _shape(types, node.source.input[1]), _shape(types, node.input[0])
    if len(weight) < 3 or len(given) != len(weight):
        return []
    return [prod(weight[1:]) * prod(given[2:]) * _FLOAT]


_BUFFERS: dict[str, Callable[[ExecutedNode, Types], list[int]]] = {
    "Where": _where,
    "BiasGelu": _one_output,
    "DynamicQuantizeMatMul": _quantized_input,
    "DynamicQuantizeLSTM": _recurrent(4),
    "LSTM": _recurrent(4),
    "GRU": _recurrent(3),
    "RNN": _gate,
    "ConvTranspose": _columns,
}
