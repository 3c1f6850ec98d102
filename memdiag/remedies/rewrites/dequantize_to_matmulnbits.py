"""Store quantized weights as MatMulNBits wants them, instead of having it done at each load.

onnxruntime makes one MatMulNBits of DequantizeLinear and MatMul while it loads a model: it writes
the weight, its scales and zero points anew, transposed, and for a while has them twice. Here the
same node is in the file, with the attributes that the runtime chooses by default
(``accuracy_level`` 4: products in 8 bits), and the transposed weights are computed once, in slices.
Where the runtime does not fuse the two, and dequantizes in every run, the node is told to take
products in fp32, as those two do. A Gemm is such a product, too; what it adds is added after.

Where a column has one scale, each of its blocks has it: blocks of 32 values, as the runtime makes
them, or where it does not fuse, of as many as there are, up to 256, for a scale takes 4 bytes.

It hurts where something else than onnxruntime is to run the model: MatMulNBits is no operator of
ONNX. Of 8 bits it is one only since 1.22, and since 1.23 with products in fp32 (1.20.1, 1.22.1,
1.23.2, 1.24.4 and 1.31.1 measured): older releases do not run the model any more.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import onnx_ir as ir

from memdiag.ort.runtime import Runtime
from memdiag.records.finding import Finding
from memdiag.remedies.computed import computed
from memdiag.remedies.constants import Tensor, take_out, tensor_of
from memdiag.remedies.draft import Draft
from memdiag.remedies.nbits import (
    BITS,
    Array,
    Weights,
    packed_scales,
    packed_weight,
    packed_zeros,
    sizes_problem,
)
from memdiag.remedies.nesting import Nesting
from memdiag.remedies.rewrite import Rewrite

REWRITE = Rewrite(
    name="dequantize-to-matmulnbits",
    summary="store quantized weights for MatMulNBits, as the runtime makes them at load",
    rules=("dequantized-matmul",),
    arithmetic="reordered",
)

EIGHT_BITS_SINCE = Runtime(1, 23)
"""Since then MatMulNBits takes 8 bits, whatever its accuracy level."""

_DOMAIN = "com.microsoft"
_ONNX = ("", "ai.onnx")
_FUSED_LEVEL = 4
_FP32_LEVEL = 0
_BLOCKS = (16, 32, 64, 128, 256)
_FUSED_BLOCK = 32


class Plan(NamedTuple):
    """A DequantizeLinear, the products that read it, and the weights as they are to be stored."""

    dequantize: ir.Node
    products: tuple[ir.Node, ...]
    weights: Weights


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why none of it can be a MatMulNBits; None if some can."""
    found = [_plan(draft, node, finding) for node in _dequantizers(draft, finding)]
    if not found:
        return "no DequantizeLinear of the model is named"
    reasons = [one for one in found if isinstance(one, str)]
    return reasons[0] if len(reasons) == len(found) else None


def apply(draft: Draft, finding: Finding) -> bool:
    """Replace each pair of nodes, and drop the weights that only they read."""
    changed = False
    for node in _dequantizers(draft, finding):
        plan = _plan(draft, node, finding)
        if isinstance(plan, Plan):
            _replace(draft, plan, _FUSED_LEVEL if _is_fused(finding) else _FP32_LEVEL)
            changed = True
    return changed


def _is_fused(finding: Finding) -> bool:
    """Return whether the runtime fuses the nodes: else they dequantize in the first run."""
    return finding.phase != "first_run"


def _dequantizers(draft: Draft, finding: Finding) -> list[ir.Node]:
    """Return the DequantizeLinear nodes that the finding names or that read its weights."""
    named = [draft.node(name) for name in finding.nodes]
    near = [node for node in named if node is not None]
    for name in finding.weights:
        value = draft.value(name)
        near += [node for node, _ in value.uses()] if value is not None else []
    return [node for node in dict.fromkeys(near) if node.op_type == "DequantizeLinear"]


def _plan(draft: Draft, node: ir.Node, finding: Finding) -> Plan | str:
    """Return what is to be replaced, or why it cannot be."""
    if node.domain not in _ONNX:
        return "the DequantizeLinear is not that of ONNX"
    if draft.function(node) is not None:
        return "it is in a function"
    if _integer(node, "output_dtype", 0) not in (0, int(ir.DataType.FLOAT)):
        return "it does not dequantize to fp32"
    weight, scales, zeros = [*node.inputs, None][:3]
    assert weight is not None
    assert scales is not None
    problem = _constants_problem(weight, scales, zeros) or _readers_problem(draft, node)
    if problem:
        return problem
    products = tuple(dict.fromkeys(product for product, _ in node.outputs[0].uses()))
    turned = {_integer(product, "transB", 0) for product in products}
    if len(turned) > 1:
        return "one product reads the weight transposed, and one as it is"
    found = _weights(node, _tensor(weight), _tensor(scales), turned == {1}, _is_fused(finding))
    if isinstance(found, str):
        return found
    weights = found._replace(zeros=_tensor(zeros) if zeros is not None else None)
    return sizes_problem(weights) or Plan(node, products, weights)


def _weights(
    node: ir.Node, weight: Tensor, scales: Tensor, by_columns: bool, fused: bool
) -> Weights | str:
    """Return weight and scales as `node` has them, or why they cannot be taken."""
    if weight.dtype not in BITS:
        return f"MatMulNBits takes no {weight.dtype.name.lower()}"
    if BITS[weight.dtype] == 8 and Runtime.installed() < EIGHT_BITS_SINCE:
        return "MatMulNBits takes 8 bits in any way only since onnxruntime 1.23"
    if len(weight.shape) != 2:
        return "the weight is no matrix"
    block, axis = _integer(node, "block_size", 0), _integer(node, "axis", 1) % 2
    if block:
        summed = 1 if by_columns else 0
        if axis != summed or block not in _BLOCKS:
            return "the blocks are not of 16 to 256 values along the axis that is summed"
        return Weights(weight, scales, None, block, True, by_columns)
    if scales.size > 1 and axis == (1 if by_columns else 0):
        return "the values that a product sums have scales of their own"
    depth = int(weight.shape.numpy()[1 if by_columns else 0])
    block = next((one for one in _BLOCKS if one >= depth), _BLOCKS[-1])
    return Weights(
        weight, scales, None, min(block, _FUSED_BLOCK) if fused else block, False, by_columns
    )


def _constants_problem(weight: ir.Value, scales: ir.Value, zeros: ir.Value | None) -> str:
    """Return why weight, scales and zero points cannot be replaced; empty if they can."""
    for value in (weight, scales, *([zeros] if zeros is not None else [])):
        if tensor_of(value) is None or value.is_graph_input():
            return f"{value.name} is no constant"
        if value.is_graph_output():
            return f"{value.name} is an output"
    return "something else reads the weight as well" if len(weight.uses()) > 1 else ""


def _readers_problem(draft: Draft, node: ir.Node) -> str:
    """Return which reader of `node` cannot be a MatMulNBits; empty if all can."""
    output = node.outputs[0]
    if output.is_graph_output():
        return "the dequantized weight is an output"
    if not output.uses():
        return "nothing reads the dequantized weight"
    for product, slot in output.uses():
        name = product.op_type
        if name not in ("MatMul", "Gemm") or product.domain not in _ONNX or slot != 1:
            return f"{name} reads the dequantized weight, not as a right operand"
        left = product.inputs[0]
        kind = draft.type_of(left) if left is not None else None
        if left is output or (kind is not None and kind.dtype != "float"):
            return "the left operand of the product is no fp32"
        producer = left.producer() if left is not None else None
        if producer is not None and producer.op_type == "DequantizeLinear":
            return "the left operand is dequantized as well, for a product of integers"
        if name == "Gemm" and not _is_plain(product):
            return "the Gemm transposes its left operand, or scales what it adds up"
    return ""


def _is_plain(gemm: ir.Node) -> bool:
    """Return whether a Gemm is a product, and a sum with what it adds, and nothing else."""
    factors = [gemm.attributes.get(name) for name in ("alpha", "beta")]
    ones = all(one is None or (not one.is_ref() and one.as_float() == 1) for one in factors)
    return ones and not _integer(gemm, "transA", 0) and _integer(gemm, "transB", 0) in (0, 1)


def _replace(draft: Draft, plan: Plan, accuracy_level: int) -> None:
    weights = plan.weights
    depth, columns, blocks = weights.sizes
    weight, scales, zeros = [*plan.dequantize.inputs, None][:3]
    assert weight is not None
    assert scales is not None
    add = partial(_add, draft, weights)
    octets = ir.DataType.UINT8
    shape = (columns, blocks, weights.block * weights.bits // 8)
    operands = [
        add(weight, packed_weight, octets, shape),
        add(scales, packed_scales, ir.DataType.FLOAT, (columns * blocks,)),
    ]
    if zeros is not None or not weights.signed:
        operands.append(add(zeros or weight, packed_zeros, octets, (columns * weights.zero_bytes,)))
    numbers = {
        "K": depth,
        "N": columns,
        "bits": weights.bits,
        "block_size": weights.block,
        "accuracy_level": accuracy_level,
    }
    attributes = [ir.AttrInt64(name, number) for name, number in numbers.items()]
    for node in plan.products:
        _become(draft, node, operands, attributes)
    graph = plan.dequantize.graph
    assert graph is not None
    graph.remove(plan.dequantize, safe=True)
    nesting = Nesting(draft)
    for value in (weight, scales, zeros):
        if value is not None and value.graph is not None and not value.uses():
            take_out(nesting, value)


def _become(
    draft: Draft, node: ir.Node, operands: list[ir.Value], attributes: list[ir.Attr]
) -> None:
    """Let `node` be a MatMulNBits, or what a Gemm adds be added to one: its output stays."""
    left, _, added = [*node.inputs, None][:3]
    draft.require_domain(_DOMAIN, 1, node)
    node.attributes.clear()
    if added is not None:
        name = f"{node.name or 'Gemm'}/MatMulNBits"
        made = draft.insert_before(
            node, "MatMulNBits", [left, *operands], attributes, name=name, domain=_DOMAIN
        )
        node.op_type = "Add"
        node.resize_inputs(2)
        node.replace_input_with(0, made)
        node.replace_input_with(1, added)
        return
    node.op_type, node.domain = "MatMulNBits", _DOMAIN
    node.resize_inputs(1 + len(operands))
    for index, operand in enumerate(operands, 1):
        node.replace_input_with(index, operand)
    for attribute in attributes:
        node.attributes.add(attribute)


def _add(
    draft: Draft,
    weights: Weights,
    source: ir.Value,
    pack: Callable[[Weights], Iterator[Array]],
    dtype: ir.DataType,
    sizes: tuple[int, ...],
) -> ir.Value:
    """Add an initializer that is packed from `weights`, named after `source`, to its graph."""
    graph = source.graph
    assert graph is not None
    name = draft.unique_name(f"{source.name}_nbits")
    value = ir.Value(
        name=name,
        type=ir.TensorType(dtype),
        shape=ir.Shape(sizes),
        const_value=computed(partial(pack, weights), dtype, sizes, name),
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
