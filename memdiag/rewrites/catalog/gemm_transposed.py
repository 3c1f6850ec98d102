"""Multiply by a transposed weight with Gemm, which reads it as it is stored.

For ``MatMul(x, Transpose(W))`` onnxruntime folds a transposed copy of W. ``Gemm(x, W, transB=1)``
is the same product by W itself. Gemm multiplies matrices: an x of another rank is flattened first,
and the product is given its axes again, with sizes computed at run time where they are free. Of a
matrix that is stored a second time as its transpose, one of the two is removed.

The drawback is that Gemm may be slower than MatMul was. It saves less where Gemm packs the weight
while something else reads it as it is.
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
    replace_products,
    transposed_products,
)

REWRITE = Rewrite(
    name="gemm-transposed",
    summary="multiply by the weight as it is stored, with Gemm and transB=1",
    arithmetic="reordered",
)

_GEMM_TYPES = ("float", "double")
_BIAS_OPTIONAL_SINCE = 11


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why no product of the weight can be such a Gemm; None if one can."""
    return transposed_products(editor, finding, gemm_problem).problem


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Replace the products and remove what only they read; return whether there were any."""
    return replace_products(editor, finding, gemm_problem, replace_with_gemm)


def gemm_problem(editor: ModelEditor, product: Product) -> str:
    """Return why `product` cannot be a Gemm that reads the matrix as it is; empty if it can."""
    node, opset = product.node, editor.opset(product.node)
    if node.op_type == "Gemm":
        trans_b = node.attributes.get("transB")
        return "transB is an attribute of the function" if trans_b and trans_b.is_ref() else ""
    if product.dtype not in _GEMM_TYPES:
        return f"onnxruntime's Gemm does not support {product.dtype or 'the type of the weight'}"
    if opset < _BIAS_OPTIONAL_SINCE:
        return f"in operator set {opset} a Gemm has to have a bias"
    return flatten_problem(editor, product)


def replace_with_gemm(editor: ModelEditor, product: Product) -> None:
    """Make `product` a Gemm that reads the matrix as it is; the transpose is left unused."""
    matrix, node = cast_matrix(editor, product), product.node
    trans_b = node.attributes.get("transB")
    if node.op_type == "MatMul":
        node = flatten_product(editor, product)
        node.op_type = "Gemm"
    node.replace_input_with(1, matrix)
    node.attributes.add(ir.AttrInt64("transB", 0 if trans_b and trans_b.as_int() else 1))
