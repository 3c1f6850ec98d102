"""Store quantized weights in the format of MatMulNBits, which the runtime creates at each load.

onnxruntime fuses DequantizeLinear and MatMul into one MatMulNBits while it loads a model: it writes
a transposed copy of the weight, its scales and zero points, and for a while both exist. Here the
same node is in the file, with the attributes that the runtime chooses by default
(``accuracy_level`` 4: products in 8 bits), and the transposed weights are computed once, in chunks.
Where the runtime does not fuse the two nodes, and dequantizes in every run, the node computes
products in fp32, as those two do. A Gemm is such a product, too; its bias is added afterwards.

If a column has one scale, all of its blocks have it. Blocks have 32 values, as the runtime makes
them; where the runtime does not fuse, they have up to 256 values, because a scale takes 4 bytes.

The drawback is that only onnxruntime can run the model: MatMulNBits is not an operator of ONNX. It
supports 8 bits only since 1.22, and since 1.23 with products in fp32: older releases can no longer
run the model.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import onnx_ir as ir

from memdiag.attribution.layout_hints import FUSED_BLOCK
from memdiag.model.graph_index import MICROSOFT_DOMAIN, ONNX_DOMAINS
from memdiag.model.tensor_types import Array
from memdiag.ort.packed_dequantization import BLOCKS, FUSED_LEVEL
from memdiag.records.finding import Finding
from memdiag.rewrites.computed_tensor import computed_tensor
from memdiag.rewrites.edited_weights import Tensor, constant_tensor, new_initializer, remove_weight
from memdiag.rewrites.matmulnbits_packing import (
    PACKED,
    QuantizedOperand,
    packed_scales,
    packed_weight,
    packed_zeros,
    packing_problem,
)
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite, first_problem

REWRITE = Rewrite(
    name="dequantize-to-matmulnbits",
    summary="store quantized weights for MatMulNBits, as the runtime makes them at load",
    arithmetic="reordered",
)

_FP32_ACCURACY_LEVEL = 0


class DequantizedProducts(NamedTuple):
    """A DequantizeLinear and the products that read it.

    Attributes:
        dequantize: the DequantizeLinear.
        products: the products.
        weights: their quantized right operand.
    """

    dequantize: ir.Node
    products: tuple[ir.Node, ...]
    weights: QuantizedOperand


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why none of the products can be a MatMulNBits; None if one can."""
    plans = [
        _matmulnbits_plan(editor, node, finding) for node in _dequantizing_nodes(editor, finding)
    ]
    return first_problem(
        (plan if isinstance(plan, str) else "" for plan in plans),
        otherwise="no DequantizeLinear of the model is named",
    )


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Replace each pair of nodes, and remove the weights that only they read."""
    changed = False
    for node in _dequantizing_nodes(editor, finding):
        plan = _matmulnbits_plan(editor, node, finding)
        if isinstance(plan, DequantizedProducts):
            _replace_dequantization(
                editor, plan, FUSED_LEVEL if _is_fused_by_runtime(finding) else _FP32_ACCURACY_LEVEL
            )
            changed = True
    return changed


def _is_fused_by_runtime(finding: Finding) -> bool:
    """Return whether the runtime fuses the nodes; otherwise they dequantize in the first run."""
    return finding.phase != "first_run"


def _dequantizing_nodes(editor: ModelEditor, finding: Finding) -> list[ir.Node]:
    """Return the DequantizeLinear nodes that the finding names or that read its weights."""
    named_nodes = [editor.node(name) for name in finding.nodes]
    candidates = [node for node in named_nodes if node is not None]
    for name in finding.weights:
        value = editor.value(name)
        candidates += [node for node, _ in value.uses()] if value is not None else []
    return [node for node in dict.fromkeys(candidates) if node.op_type == "DequantizeLinear"]


def _matmulnbits_plan(
    editor: ModelEditor, node: ir.Node, finding: Finding
) -> DequantizedProducts | str:
    """Return the nodes to replace and their weights, or why they cannot be replaced."""
    if node.domain not in ONNX_DOMAINS:
        return "the DequantizeLinear is not in ONNX's own domain"
    if editor.function(node) is not None:
        return "it is in a function"
    if _node_integer_attribute(node, "output_dtype", 0) not in (0, int(ir.DataType.FLOAT)):
        return "it does not dequantize to fp32"
    weight, scales, zeros = [*node.inputs, None][:3]
    assert weight is not None
    assert scales is not None
    problem = _quantized_constants_problem(weight, scales, zeros) or _dequantized_reader_problem(
        editor, node
    )
    if problem:
        return problem
    products = tuple(dict.fromkeys(product for product, _ in node.outputs[0].uses()))
    trans_b = {_node_integer_attribute(product, "transB", 0) for product in products}
    if len(trans_b) > 1:
        return "one product reads the weight transposed, and one as it is"
    operand = _quantized_operand(
        node,
        _required_constant_tensor(weight),
        _required_constant_tensor(scales),
        trans_b == {1},
        _is_fused_by_runtime(finding),
    )
    if isinstance(operand, str):
        return operand
    weights = operand._replace(
        zeros=_required_constant_tensor(zeros) if zeros is not None else None
    )
    return packing_problem(weights) or DequantizedProducts(node, products, weights)


def _quantized_operand(
    node: ir.Node, weight: Tensor, scales: Tensor, by_columns: bool, fused: bool
) -> QuantizedOperand | str:
    """Return the weight and scales of `node`, or why they are not supported."""
    if weight.dtype not in PACKED:
        return f"MatMulNBits does not support {weight.dtype.name.lower()}"
    if len(weight.shape) != 2:
        return "the weight is not a matrix"
    block, axis = (
        _node_integer_attribute(node, "block_size", 0),
        _node_integer_attribute(node, "axis", 1) % 2,
    )
    if block:
        summed = 1 if by_columns else 0
        if axis != summed or block not in BLOCKS:
            return "the blocks are not of 16 to 256 values along the axis that is summed"
        return QuantizedOperand(weight, scales, None, block, True, by_columns)
    if scales.size > 1 and axis == (1 if by_columns else 0):
        return "the values that a product sums have different scales"
    depth = int(weight.shape.numpy()[1 if by_columns else 0])
    block = next((size for size in BLOCKS if size >= depth), BLOCKS[-1])
    block = min(block, FUSED_BLOCK) if fused else block
    return QuantizedOperand(weight, scales, None, block, False, by_columns)


def _quantized_constants_problem(weight: ir.Value, scales: ir.Value, zeros: ir.Value | None) -> str:
    """Return why weight, scales and zero points cannot be replaced; empty if they can."""
    for value in (weight, scales, *([zeros] if zeros is not None else [])):
        if constant_tensor(value) is None or value.is_graph_input():
            return f"{value.name} is not a constant"
        if value.is_graph_output():
            return f"{value.name} is an output"
    return "something else reads the weight as well" if len(weight.uses()) > 1 else ""


def _dequantized_reader_problem(editor: ModelEditor, node: ir.Node) -> str:
    """Return which reader of `node` cannot be a MatMulNBits; empty if all can."""
    output = node.outputs[0]
    if output.is_graph_output():
        return "the dequantized weight is an output"
    if not output.uses():
        return "nothing reads the dequantized weight"
    for product, input_index in output.uses():
        name = product.op_type
        if name not in ("MatMul", "Gemm") or product.domain not in ONNX_DOMAINS or input_index != 1:
            return (
                f"{name} does not read the dequantized weight as the right operand of a MatMul or"
                " Gemm"
            )
        left_operand = product.inputs[0]
        kind = editor.type_of(left_operand) if left_operand is not None else None
        if left_operand is output or (kind is not None and kind.dtype != "float"):
            return "the left operand of the product is not fp32"
        producer = left_operand.producer() if left_operand is not None else None
        if producer is not None and producer.op_type == "DequantizeLinear":
            return "the left operand is dequantized as well, for a product of integers"
        if name == "Gemm" and not _is_plain_gemm(product):
            return "the Gemm transposes its left operand, or has factors other than 1"
    return ""


def _is_plain_gemm(gemm: ir.Node) -> bool:
    """Return whether a Gemm is a product plus a bias, without factors."""
    factors = [gemm.attributes.get(name) for name in ("alpha", "beta")]
    has_no_factors = all(
        factor is None or (not factor.is_ref() and factor.as_float() == 1) for factor in factors
    )
    return (
        has_no_factors
        and not _node_integer_attribute(gemm, "transA", 0)
        and _node_integer_attribute(gemm, "transB", 0) in (0, 1)
    )


def _replace_dequantization(
    editor: ModelEditor, plan: DequantizedProducts, accuracy_level: int
) -> None:
    weights = plan.weights
    depth, columns, blocks = weights.sizes
    weight, scales, zeros = [*plan.dequantize.inputs, None][:3]
    assert weight is not None
    assert scales is not None
    add_packed = partial(_add_packed_initializer, editor, weights)
    uint8 = ir.DataType.UINT8
    shape = (columns, blocks, weights.block * weights.bits // 8)
    operands = [
        add_packed(weight, packed_weight, uint8, shape),
        add_packed(scales, packed_scales, ir.DataType.FLOAT, (columns * blocks,)),
    ]
    if zeros is not None or not weights.signed:
        operands.append(
            add_packed(zeros or weight, packed_zeros, uint8, (columns * weights.zero_bytes,))
        )
    numbers = {
        "K": depth,
        "N": columns,
        "bits": weights.bits,
        "block_size": weights.block,
        "accuracy_level": accuracy_level,
    }
    attributes = [ir.AttrInt64(name, number) for name, number in numbers.items()]
    for node in plan.products:
        _replace_with_matmulnbits(editor, node, operands, attributes)
    graph = plan.dequantize.graph
    assert graph is not None
    graph.remove(plan.dequantize, safe=True)
    for value in (weight, scales, zeros):
        if value is not None and value.graph is not None and not value.uses():
            remove_weight(editor, value)


def _replace_with_matmulnbits(
    editor: ModelEditor, node: ir.Node, operands: list[ir.Value], attributes: list[ir.Attr]
) -> None:
    """Replace the product `node` by a MatMulNBits, followed by an Add if it is a Gemm with a bias.

    The output keeps its name.
    """
    left_operand, _, bias = [*node.inputs, None][:3]
    editor.require_domain(MICROSOFT_DOMAIN, 1, node)
    node.attributes.clear()
    if bias is not None:
        name = f"{node.name or 'Gemm'}/MatMulNBits"
        product = editor.insert_before(
            node,
            "MatMulNBits",
            [left_operand, *operands],
            attributes,
            name=name,
            domain=MICROSOFT_DOMAIN,
        )
        node.op_type = "Add"
        node.resize_inputs(2)
        node.replace_input_with(0, product)
        node.replace_input_with(1, bias)
        return
    node.op_type, node.domain = "MatMulNBits", MICROSOFT_DOMAIN
    node.resize_inputs(1 + len(operands))
    for index, operand in enumerate(operands, 1):
        node.replace_input_with(index, operand)
    for attribute in attributes:
        node.attributes.add(attribute)


def _add_packed_initializer(
    editor: ModelEditor,
    weights: QuantizedOperand,
    source: ir.Value,
    pack: Callable[[QuantizedOperand], Iterator[Array]],
    dtype: ir.DataType,
    sizes: tuple[int, ...],
) -> ir.Value:
    """Add an initializer packed from `weights` to the graph of `source`, named after it."""
    graph = source.graph
    assert graph is not None
    name = editor.unique_name(f"{source.name}_nbits")
    return new_initializer(graph, name, computed_tensor(partial(pack, weights), dtype, sizes, name))


def _required_constant_tensor(value: ir.Value) -> Tensor:
    tensor = constant_tensor(value)
    assert tensor is not None
    return tensor


def _node_integer_attribute(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    if attribute is None or attribute.is_ref():
        return default if attribute is None else -1
    return int(attribute.as_int())
