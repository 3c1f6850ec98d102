"""Multiply by a transposed weight as it is stored and unpacked, in the form that fits the rows.

A weight that is listed among the graph's inputs is neither folded nor packed, so that one copy is
left. Unpacked, Gemm with transB=1 is fast for one row (a token at a time) and slow for several,
because it packs the weight each time; ``Transpose(MatMul(W, Transpose(x)))`` is slow for one row
and fast for several, until transposing a product of many rows takes longer than packing. So the
rows are counted at run time, and an If chooses the form.

The drawback is that products of two to eight rows take longer than those by a packed weight. Each
load writes a warning to the log.
"""

import numpy as np
import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.rewrites.catalog.gemm_transposed import gemm_problem
from memdiag.rewrites.catalog.overridable_weight import listing_problem
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite
from memdiag.rewrites.transposed_products import (
    Product,
    flatten_product,
    matmul_problem,
    remove_unused_transposes,
    transposed_products,
)

REWRITE = Rewrite(
    name="product-by-rows",
    summary="multiply by the unpacked weight, in the form that is faster for the rows there are",
    arithmetic="reordered",
)

_MIN_MANY_ROWS = 128
"""With at least this many rows, transposing a product takes longer than packing the weight."""


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why no product of the weight can be rewritten; None if one can."""
    return transposed_products(editor, finding, _product_by_rows_problem).problem


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Replace the products, list the weight as an input; return whether there were any."""
    products = transposed_products(editor, finding, _product_by_rows_problem).found
    for product in products:
        _branch_by_rows(editor, flatten_product(editor, product), product)
    for weight in dict.fromkeys(product.source for product in products):
        if not weight.is_graph_input():
            editor.model.graph.inputs.append(weight)
    remove_unused_transposes(products)
    return bool(products)


def _product_by_rows_problem(editor: ModelEditor, product: Product) -> str:
    if product.casts:
        return "the weight is cast before the product, which would happen in every run"
    return (
        matmul_problem(product)
        or listing_problem(editor, product.source)
        or gemm_problem(editor, product)
    )


def _branch_by_rows(editor: ModelEditor, node: ir.Node, product: Product) -> None:
    """Make `node`, a MatMul of matrices, an If with the product in two forms."""
    rows, matrix, name = node.inputs[0], product.source, node.name or "MatMul"
    dtype = ir.DataType[product.dtype.upper()]
    assert rows is not None
    shape = editor.insert_before(node, "Shape", [rows], name=f"{name}/Shape")
    first_index = editor.constant_before(node, np.array(0, np.int64), name=f"{name}/first")
    row_count = editor.insert_before(node, "Gather", [shape, first_index], name=f"{name}/rows")
    one_row = editor.constant_before(node, np.array(1, np.int64), name=f"{name}/one")
    is_single_row = editor.insert_before(node, "Equal", [row_count, one_row], name=f"{name}/Equal")
    max_few_rows = editor.constant_before(
        node, np.array(_MIN_MANY_ROWS - 1, np.int64), name=f"{name}/most"
    )
    has_many_rows = editor.insert_before(
        node, "Greater", [row_count, max_few_rows], name=f"{name}/Greater"
    )
    is_gemm_faster = editor.insert_before(
        node, "Or", [is_single_row, has_many_rows], name=f"{name}/Or"
    )
    # The node itself becomes the If, so that its output stays the same value.
    gemm = _branch_graph(_gemm_nodes(editor, name, rows, matrix), dtype, f"{name}/as_it_is")
    transposed = _branch_graph(
        _transposing_nodes(editor, name, rows, matrix), dtype, f"{name}/transposed"
    )
    node.op_type = "If"
    node.attributes.clear()
    node.resize_inputs(1)
    node.replace_input_with(0, is_gemm_faster)
    node.attributes.add(ir.AttrGraph("then_branch", gemm))
    node.attributes.add(ir.AttrGraph("else_branch", transposed))


def _gemm_nodes(editor: ModelEditor, name: str, rows: ir.Value, matrix: ir.Value) -> list[ir.Node]:
    return [
        _new_branch_node(
            editor, "Gemm", [rows, matrix], [ir.AttrInt64("transB", 1)], f"{name}/Gemm"
        )
    ]


def _transposing_nodes(
    editor: ModelEditor, name: str, rows: ir.Value, matrix: ir.Value
) -> list[ir.Node]:
    perm = ir.AttrInt64s("perm", [1, 0])
    columns = _new_branch_node(editor, "Transpose", [rows], [perm], f"{name}/Transpose_input")
    product = _new_branch_node(editor, "MatMul", [matrix, columns.outputs[0]], [], f"{name}/MatMul")
    perm = ir.AttrInt64s("perm", [1, 0])
    output = _new_branch_node(
        editor, "Transpose", [product.outputs[0]], [perm], f"{name}/Transpose"
    )
    return [columns, product, output]


def _new_branch_node(
    editor: ModelEditor, op_type: str, inputs: list[ir.Value], attributes: list[ir.Attr], name: str
) -> ir.Node:
    name = editor.unique_name(name)
    output = ir.Value(name=editor.unique_name(f"{name}_output"))
    return ir.Node("", op_type, inputs, attributes, outputs=[output], name=name)


def _branch_graph(nodes: list[ir.Node], dtype: ir.DataType, name: str) -> ir.Graph:
    output = nodes[-1].outputs[0]
    output.type, output.shape = ir.TensorType(dtype), ir.Shape([None, None])
    return ir.Graph([], [output], nodes=nodes, name=name)
