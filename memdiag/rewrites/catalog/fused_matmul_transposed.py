"""Multiply by a transposed weight with onnxruntime's own FusedMatMul, which reads it as it is.

For ``MatMul(x, Transpose(W))`` onnxruntime folds a transposed copy of W; ``FusedMatMul`` of the
domain com.microsoft reads W itself, for an x of any rank. Of a matrix that is stored a second time
as its transpose, one of the two is removed.

The drawback is that only onnxruntime knows the operator. The weight may still be packed, which is a
second copy if something else reads it as it is.
"""

import onnx_ir as ir

from memdiag.model.graph_index import MICROSOFT_DOMAIN
from memdiag.records.finding import Finding
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite
from memdiag.rewrites.transposed_products import (
    Product,
    cast_matrix,
    matmul_problem,
    replace_products,
    transposed_products,
)

REWRITE = Rewrite(
    name="fused-matmul-transposed",
    summary="multiply by the weight as it is stored, with onnxruntime's FusedMatMul",
    arithmetic="reordered",
)


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why no product of the weight can be a FusedMatMul; None if one can."""
    return transposed_products(editor, finding, _fused_matmul_problem).problem


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Replace the products and remove what only they read; return whether there were any."""
    return replace_products(editor, finding, _fused_matmul_problem, _replace_with_fused_matmul)


def _fused_matmul_problem(editor: ModelEditor, product: Product) -> str:
    if product.dtype != "float":
        kind = product.dtype or "the type of the weight"
        return f"FusedMatMul does not support {kind} on the CPU"
    return matmul_problem(product)


def _replace_with_fused_matmul(editor: ModelEditor, product: Product) -> None:
    matrix, node = cast_matrix(editor, product), product.node
    editor.require_domain(MICROSOFT_DOMAIN, node=node)
    node.op_type, node.domain = "FusedMatMul", MICROSOFT_DOMAIN
    node.replace_input_with(1, matrix)
    node.attributes.add(ir.AttrInt64("transB", 1))
