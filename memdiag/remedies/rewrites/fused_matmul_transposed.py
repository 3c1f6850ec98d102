"""Multiply by a transposed weight with onnxruntime's own FusedMatMul, which reads it as it is.

``MatMul(x, Transpose(W))`` makes onnxruntime fold a transposed copy of W; ``FusedMatMul`` of the
domain com.microsoft takes W itself, for an x of any rank. Of a matrix that is stored a second
time as its transpose, one of the two is dropped.

It hurts where a model has to run elsewhere: only onnxruntime knows the operator. The weight may
still be packed, which is a second copy if something else reads it as it is.
"""

import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.remedies.draft import Draft
from memdiag.remedies.products import Product, no_matmul, products, recast, replace_products
from memdiag.remedies.rewrite import Rewrite

REWRITE = Rewrite(
    name="fused-matmul-transposed",
    summary="multiply by the weight as it is stored, with onnxruntime's FusedMatMul",
    rules=("shared-weight-transposed", "stored-transpose"),
    arithmetic="reordered",
)

_DOMAIN = "com.microsoft"


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why no product of the weight can be a FusedMatMul; None if one can."""
    return products(draft, finding, _problem).reason


def apply(draft: Draft, finding: Finding) -> bool:
    """Replace the products and drop what only they read; return whether there were any."""
    return replace_products(draft, finding, _problem, _replace)


def _problem(draft: Draft, product: Product) -> str:
    if product.dtype != "float":
        return f"FusedMatMul does not take {product.dtype or 'the type of the weight'} on the CPU"
    return no_matmul(product)


def _replace(draft: Draft, product: Product) -> None:
    matrix, node = recast(draft, product), product.node
    draft.require_domain(_DOMAIN, node=node)
    node.op_type, node.domain = "FusedMatMul", _DOMAIN
    node.replace_input_with(1, matrix)
    node.attributes.add(ir.AttrInt64("transB", 1))
