"""Store block-quantized weights as MatMulNBits wants them, instead of having it done at each load.

onnxruntime makes one MatMulNBits of DequantizeLinear and MatMul while it loads a model: it writes
the weight, its scales and zero points anew, transposed, and for a while has them twice. Here the
same node is in the file, with the attributes that the runtime chooses by default
(``accuracy_level`` 4: products in 8 bits), and the transposed weights are computed once, in slices.
Where the runtime does not fuse the two, and dequantizes in every run, the node is told to take
products in fp32, as those two do.

It hurts where something else than onnxruntime is to run the model: MatMulNBits is no operator of
ONNX. Before onnxruntime 1.22 it takes 4 bits only, so that weights of 8 bits are refused.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from memdiag.records.finding import Finding
from memdiag.remedies.computed import Slices, computed
from memdiag.remedies.constants import Tensor, take_out, tensor_of
from memdiag.remedies.draft import Draft
from memdiag.remedies.nesting import Nesting
from memdiag.remedies.rewrite import Rewrite
from memdiag.remedies.turned import turned, turned_nibbles

REWRITE = Rewrite(
    name="dequantize-to-matmulnbits",
    summary="store block-quantized weights for MatMulNBits, as the runtime makes them at load",
    rules=("dequantized-matmul",),
    arithmetic="reordered",
)

_DOMAIN = "com.microsoft"
_ONNX = ("", "ai.onnx")
_BITS = 4
_FUSED_LEVEL = 4
_FP32_LEVEL = 0
_BLOCKS = (16, 32, 64, 128, 256)
_DTYPES = {ir.DataType.INT4: True, ir.DataType.UINT4: False}
"""The types of weights, with whether they are signed."""


class Weights(NamedTuple):
    """A weight of blocks of `block` values with its scales; `zeros` None is a zero point of 0."""

    weight: Tensor
    scales: Tensor
    zeros: Tensor | None
    block: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The weight's rows and columns, and the blocks in a column."""
        rows, columns = self.weight.shape.numpy()
        return rows, columns, -(-rows // self.block)

    @property
    def signed(self) -> bool:
        """Whether values are signed: MatMulNBits has them with 8 added."""
        return _DTYPES[self.weight.dtype]


class Plan(NamedTuple):
    """A DequantizeLinear and the MatMuls that read it."""

    dequantize: ir.Node
    products: tuple[ir.Node, ...]
    weights: Weights


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why none of it can be a MatMulNBits; None if some can."""
    found = [_plan(draft, node) for node in _dequantizers(draft, finding)]
    if not found:
        return "no DequantizeLinear of the model is named"
    reasons = [one for one in found if isinstance(one, str)]
    return reasons[0] if len(reasons) == len(found) else None


def apply(draft: Draft, finding: Finding) -> bool:
    """Replace each pair of nodes, and drop the weights that only they read."""
    changed = False
    for node in _dequantizers(draft, finding):
        plan = _plan(draft, node)
        if isinstance(plan, Plan):
            # What is dequantized in the first run is not fused, and multiplied in fp32.
            fused = finding.phase != "first_run"
            _replace(draft, plan, _FUSED_LEVEL if fused else _FP32_LEVEL)
            changed = True
    return changed


def packed_weight(weights: Weights) -> Iterator[NDArray[Any]]:
    """Yield the weight as MatMulNBits has it, ``[N][blocks][bytes of a block]``, in slices."""
    rows, columns, blocks = weights.sizes
    padded = blocks * weights.block
    return turned_nibbles(weights.weight, rows, columns, padded, flip=weights.signed)


def packed_scales(weights: Weights) -> Iterator[NDArray[Any]]:
    """Yield the scales, ``[N][blocks]``, in slices."""
    _, columns, blocks = weights.sizes
    return turned(weights.scales, blocks, columns, 4)


def packed_zeros(weights: Weights) -> Iterator[NDArray[Any]]:
    """Yield the zero points, ``[N][bytes of a column]``: zeros where the model has none."""
    _, columns, blocks = weights.sizes
    padded = blocks + blocks % 2
    if weights.zeros is None:
        return iter([np.zeros(columns * padded // 2, np.uint8)])
    return turned_nibbles(weights.zeros, blocks, columns, padded, flip=weights.signed)


def _dequantizers(draft: Draft, finding: Finding) -> list[ir.Node]:
    """Return the DequantizeLinear nodes that the finding names or that read its weights."""
    named = [draft.node(name) for name in finding.nodes]
    near = [node for node in named if node is not None]
    for name in finding.weights:
        value = draft.value(name)
        near += [node for node, _ in value.uses()] if value is not None else []
    return [node for node in dict.fromkeys(near) if node.op_type == "DequantizeLinear"]


def _plan(draft: Draft, node: ir.Node) -> Plan | str:
    """Return what is to be replaced, or why it cannot be."""
    if node.domain not in _ONNX:
        return "the DequantizeLinear is not that of ONNX"
    if draft.function(node) is not None:
        return "it is in a function"
    block = _integer(node, "block_size", 0)
    if _integer(node, "axis", 1) not in (0, -2) or block not in _BLOCKS:
        return "the weight is not quantized by blocks of 16 to 256 along its first axis"
    if _integer(node, "output_dtype", 0) not in (0, int(ir.DataType.FLOAT)):
        return "it does not dequantize to fp32"
    inputs = [*node.inputs, None, None, None]
    weight, scales, zeros = inputs[0], inputs[1], inputs[2]
    assert weight is not None
    assert scales is not None
    problem = _weights_problem(weight, scales, zeros, block)
    if problem:
        return problem
    problem = _readers_problem(draft, node)
    if problem:
        return problem
    products = tuple(dict.fromkeys(product for product, _ in node.outputs[0].uses()))
    points = _tensor(zeros) if zeros is not None else None
    return Plan(node, products, Weights(_tensor(weight), _tensor(scales), points, block))


def _weights_problem(weight: ir.Value, scales: ir.Value, zeros: ir.Value | None, block: int) -> str:
    """Return why weight, scales and zero points cannot be taken; empty if they can."""
    for value in (weight, scales, *([zeros] if zeros is not None else [])):
        if tensor_of(value) is None or value.is_graph_input():
            return f"{value.name} is no constant"
        if value.is_graph_output():
            return f"{value.name} is an output"
    tensor = _tensor(weight)
    if tensor.dtype in (ir.DataType.INT8, ir.DataType.UINT8):
        return "MatMulNBits takes 8 bits only since onnxruntime 1.22"
    if tensor.dtype not in _DTYPES:
        return f"MatMulNBits takes no {tensor.dtype.name.lower()}"
    if len(tensor.shape) != 2:
        return "the weight is no matrix"
    rows, columns = tensor.shape.numpy()
    if columns % 2 or not rows or not columns:
        return "the weight has an odd number of columns, or no values"
    blocks = (-(-rows // block), columns)
    scale = _tensor(scales)
    if scale.dtype != ir.DataType.FLOAT:
        return f"the scales are {scale.dtype.name.lower()}, for which not every release fuses"
    if tuple(scale.shape.numpy()) != blocks:
        return "the scales are not one for each block"
    if zeros is not None:
        points = _tensor(zeros)
        if points.dtype != tensor.dtype or tuple(points.shape.numpy()) != blocks:
            return "the zero points are not one for each block, of the weight's type"
    if len(weight.uses()) > 1:
        return "something else reads the weight as well"
    return ""


def _readers_problem(draft: Draft, node: ir.Node) -> str:
    """Return which reader of `node` cannot be a MatMulNBits; empty if all can."""
    output = node.outputs[0]
    if output.is_graph_output():
        return "the dequantized weight is an output"
    if not output.uses():
        return "nothing reads the dequantized weight"
    for product, slot in output.uses():
        if product.op_type != "MatMul" or product.domain not in _ONNX or slot != 1:
            return f"{product.op_type} reads the dequantized weight, not as a right operand"
        left = product.inputs[0]
        kind = draft.type_of(left) if left is not None else None
        if left is output or (kind is not None and kind.dtype != "float"):
            return "the left operand of the product is no fp32"
    return ""


def _replace(draft: Draft, plan: Plan, accuracy_level: int) -> None:
    weights = plan.weights
    rows, columns, blocks = weights.sizes
    weight, scales, zeros = [*plan.dequantize.inputs, None][:3]
    assert weight is not None
    assert scales is not None
    shape = (columns, blocks, weights.block * _BITS // 8)
    octets = ir.DataType.UINT8
    operands = [
        _add(draft, weight, partial(packed_weight, weights), octets, shape),
        _add(
            draft, scales, partial(packed_scales, weights), ir.DataType.FLOAT, (columns * blocks,)
        ),
    ]
    if zeros is not None or not weights.signed:
        made, size = partial(packed_zeros, weights), columns * ((blocks + 1) // 2)
        operands.append(_add(draft, zeros or weight, made, octets, (size,)))
    numbers = {
        "K": rows,
        "N": columns,
        "bits": _BITS,
        "block_size": weights.block,
        "accuracy_level": accuracy_level,
    }
    for node in plan.products:
        # The node itself becomes the new one, so that its output stays what it was.
        node.op_type, node.domain = "MatMulNBits", _DOMAIN
        node.resize_inputs(1 + len(operands))
        for index, operand in enumerate(operands, 1):
            node.replace_input_with(index, operand)
        for name, number in numbers.items():
            node.attributes.add(ir.AttrInt64(name, number))
        draft.require_domain(_DOMAIN, 1, node)
    graph = plan.dequantize.graph
    assert graph is not None
    graph.remove(plan.dequantize, safe=True)
    nesting = Nesting(draft)
    for value in (weight, scales, zeros):
        if value is not None and value.graph is not None and not value.uses():
            take_out(nesting, value)


def _add(
    draft: Draft, source: ir.Value, slices: Slices, dtype: ir.DataType, sizes: tuple[int, ...]
) -> ir.Value:
    """Add an initializer that is computed from `source`, to the graph of that one."""
    graph = source.graph
    assert graph is not None
    name = draft.unique_name(f"{source.name}_nbits")
    value = ir.Value(
        name=name,
        type=ir.TensorType(dtype),
        shape=ir.Shape(sizes),
        const_value=computed(slices, dtype, sizes, name),
    )
    graph.register_initializer(value)
    return value


def _tensor(value: ir.Value) -> Tensor:
    tensor = tensor_of(value)
    assert tensor is not None
    return tensor


def _integer(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    if attribute is None or attribute.is_ref():
        return default if attribute is None else -1
    return int(attribute.as_int())
