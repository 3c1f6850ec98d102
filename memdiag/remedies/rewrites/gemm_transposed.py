"""Multiply by a transposed weight with Gemm, which reads it as it is stored.

``MatMul(x, Transpose(W))`` makes onnxruntime fold a transposed copy of W. ``Gemm(x, W, transB=1)``
is the same product by W itself. Gemm takes matrices: an x of another rank is flattened before, and
the product is given its axes again after, with sizes found at run time where they are free. Of
a matrix that is stored a second time as its transpose, one of the two is dropped.

It hurts where Gemm is slower than MatMul was, and saves less where it packs the weight while
something else reads it as it is.
"""

import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.remedies.draft import Draft
from memdiag.remedies.flattening import cannot_flatten, flatten
from memdiag.remedies.products import Product, products, recast, replace_products
from memdiag.remedies.rewrite import Rewrite

REWRITE = Rewrite(
    name="gemm-transposed",
    summary="multiply by the weight as it is stored, with Gemm and transB=1",
    rules=("shared-weight-transposed", "stored-transpose"),
    arithmetic="reordered",
)

_DTYPES = ("float", "double")
_BIAS_OPTIONAL = 11


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why no product of the weight can be such a Gemm; None if one can."""
    return products(draft, finding, problem).reason


def apply(draft: Draft, finding: Finding) -> bool:
    """Replace the products and drop what only they read; return whether there were any."""
    return replace_products(draft, finding, problem, replace)


def problem(draft: Draft, product: Product) -> str:
    """Return why `product` cannot be a Gemm that reads the matrix as it is; empty if it can."""
    node, opset = product.node, draft.opset(product.node)
    if node.op_type == "Gemm":
        turned = node.attributes.get("transB")
        return "transB is an attribute of the function" if turned and turned.is_ref() else ""
    if product.dtype not in _DTYPES:
        return f"onnxruntime's Gemm does not take {product.dtype or 'the type of the weight'}"
    if opset < _BIAS_OPTIONAL:
        return f"in operator set {opset} a Gemm has to have a bias"
    return cannot_flatten(draft, product)


def replace(draft: Draft, product: Product) -> None:
    """Let `product` be a Gemm that reads the matrix as it is; `finish` removes what is left."""
    matrix, node = recast(draft, product), product.node
    turned = node.attributes.get("transB")
    if node.op_type == "MatMul":
        node = flatten(draft, product)
        node.op_type = "Gemm"
    node.replace_input_with(1, matrix)
    node.attributes.add(ir.AttrInt64("transB", 0 if turned and turned.as_int() else 1))
