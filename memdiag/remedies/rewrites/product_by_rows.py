"""Multiply by a transposed weight as it is stored and unpacked, in the form that fits the rows.

A weight that is listed among the graph's inputs is neither folded nor packed, so that one copy is
left. Unpacked, Gemm with transB=1 is fast for one row (a token at a time) and slow for several,
for it packs the weight anew each time; ``Transpose(MatMul(W, Transpose(x)))`` is slow for one row
and fast for several, until there are so many that turning the product takes longer than packing. So
the rows are counted at run time, and an If takes the one or the other.

It hurts where products mostly have a few rows, two to eight: they take longer than those by a
packed weight. Each load writes a warning to the log.
"""

import numpy as np
import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.remedies.draft import Draft
from memdiag.remedies.flattening import flatten
from memdiag.remedies.products import Product, finish, no_matmul, products
from memdiag.remedies.rewrite import Rewrite
from memdiag.remedies.rewrites import gemm_transposed, overridable_weight

REWRITE = Rewrite(
    name="product-by-rows",
    summary="multiply by the unpacked weight, in the form that is faster for the rows there are",
    rules=("shared-weight-transposed", "stored-transpose"),
    arithmetic="reordered",
)

_MANY = 128
"""Products of so many rows take longer to turn than the weight to pack."""


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why no product of the weight can be chosen by rows; None if one can."""
    return products(draft, finding, _problem).reason


def apply(draft: Draft, finding: Finding) -> bool:
    """Replace the products, list the weight as an input; return whether there were any."""
    found = products(draft, finding, _problem).found
    for product in found:
        _choose(draft, flatten(draft, product), product)
    for weight in dict.fromkeys(product.source for product in found):
        if not weight.is_graph_input():
            draft.model.graph.inputs.append(weight)
    finish(found)
    return bool(found)


def _problem(draft: Draft, product: Product) -> str:
    if product.casts:
        return "the weight is cast before the product, in every run if it were no constant"
    weight = no_matmul(product) or overridable_weight.problem(draft, product.source)
    return weight or gemm_transposed.problem(draft, product)


def _choose(draft: Draft, node: ir.Node, product: Product) -> None:
    """Let `node`, a MatMul of matrices, be an If with the product in two forms."""
    rows, matrix, name = node.inputs[0], product.source, node.name or "MatMul"
    dtype = ir.DataType[product.dtype.upper()]
    assert rows is not None
    shape = draft.insert_before(node, "Shape", [rows], name=f"{name}/Shape")
    first = draft.constant_before(node, np.array(0, np.int64), name=f"{name}/first")
    count = draft.insert_before(node, "Gather", [shape, first], name=f"{name}/rows")
    one = draft.constant_before(node, np.array(1, np.int64), name=f"{name}/one")
    single = draft.insert_before(node, "Equal", [count, one], name=f"{name}/Equal")
    most = draft.constant_before(node, np.array(_MANY - 1, np.int64), name=f"{name}/most")
    many = draft.insert_before(node, "Greater", [count, most], name=f"{name}/Greater")
    either = draft.insert_before(node, "Or", [single, many], name=f"{name}/Or")
    # The node itself becomes the If, so that its output stays what it was.
    then = _branch(_as_gemm(draft, name, rows, matrix), dtype, f"{name}/as_it_is")
    other = _branch(_as_turned(draft, name, rows, matrix), dtype, f"{name}/turned")
    node.op_type = "If"
    node.attributes.clear()
    node.resize_inputs(1)
    node.replace_input_with(0, either)
    node.attributes.add(ir.AttrGraph("then_branch", then))
    node.attributes.add(ir.AttrGraph("else_branch", other))


def _as_gemm(draft: Draft, name: str, rows: ir.Value, matrix: ir.Value) -> list[ir.Node]:
    return [_node(draft, "Gemm", [rows, matrix], [ir.AttrInt64("transB", 1)], f"{name}/Gemm")]


def _as_turned(draft: Draft, name: str, rows: ir.Value, matrix: ir.Value) -> list[ir.Node]:
    perm = ir.AttrInt64s("perm", [1, 0])
    turned = _node(draft, "Transpose", [rows], [perm], f"{name}/Transpose_input")
    made = _node(draft, "MatMul", [matrix, turned.outputs[0]], [], f"{name}/MatMul")
    perm = ir.AttrInt64s("perm", [1, 0])
    back = _node(draft, "Transpose", [made.outputs[0]], [perm], f"{name}/Transpose")
    return [turned, made, back]


def _node(
    draft: Draft, op_type: str, inputs: list[ir.Value], attributes: list[ir.Attr], name: str
) -> ir.Node:
    name = draft.unique_name(name)
    output = ir.Value(name=draft.unique_name(f"{name}_output"))
    return ir.Node("", op_type, inputs, attributes, outputs=[output], name=name)


def _branch(nodes: list[ir.Node], dtype: ir.DataType, name: str) -> ir.Graph:
    output = nodes[-1].outputs[0]
    output.type, output.shape = ir.TensorType(dtype), ir.Shape([None, None])
    return ir.Graph([], [output], nodes=nodes, name=name)
