"""Multiply a weight as it is stored by the transposed input, and transpose the product.

For ``MatMul(x, Transpose(W))`` onnxruntime folds a transposed copy of W. By (x W')' = W x' the same
product is ``Transpose(MatMul(W, Transpose(x)))``, where only x and the product are transposed. The
weight is then a left operand, which kernels do not pack: one copy is left.

The drawback is the latency of products of few rows, for which a packed right operand is faster, and
of products of many rows, which take time to transpose.
"""

import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite
from memdiag.rewrites.transposed_products import (
    Product,
    cast_matrix,
    flatten_problem,
    flatten_product,
    leading_sizes,
    matmul_problem,
    replace_products,
    transposed_products,
)

REWRITE = Rewrite(
    name="transpose-small-side",
    summary="transpose the input and the product instead of the weight",
    arithmetic="reordered",
)


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why no product of the weight can be rewritten; None if one can."""
    return transposed_products(editor, finding, _small_side_problem).problem


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Replace the products and remove what only they read; return whether there were any."""
    return replace_products(editor, finding, _small_side_problem, _transpose_input_and_product)


def _small_side_problem(editor: ModelEditor, product: Product) -> str:
    is_vector = leading_sizes(editor, product) == ()
    return matmul_problem(product) or ("" if is_vector else flatten_problem(editor, product))


def _transpose_input_and_product(editor: ModelEditor, product: Product) -> None:
    matrix = cast_matrix(editor, product)
    if leading_sizes(editor, product) == ():
        # A vector can be either operand.
        left_operand = product.node.inputs[0]
        product.node.replace_input_with(0, matrix)
        product.node.replace_input_with(1, left_operand)
        return
    node = flatten_product(editor, product)
    left_operand, name = node.inputs[0], node.name or "MatMul"
    columns = editor.insert_before(
        node, "Transpose", [left_operand], [_swapped_axes()], name=f"{name}/Transpose"
    )
    output = editor.insert_before(node, "MatMul", [matrix, columns], name=f"{name}/MatMul")
    # The node itself becomes the last one, so that its output stays the same value.
    node.op_type, node.name = "Transpose", editor.unique_name(f"{name}/Transpose")
    node.resize_inputs(1)
    node.replace_input_with(0, output)
    node.attributes.add(_swapped_axes())


def _swapped_axes() -> ir.Attr:
    return ir.AttrInt64s("perm", [1, 0])
