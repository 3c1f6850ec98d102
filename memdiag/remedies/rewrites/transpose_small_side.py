"""Multiply a weight as it is stored by the transposed input, and transpose the product.

``MatMul(x, Transpose(W))`` makes onnxruntime fold a transposed copy of W. By (x W')' = W x' the
same product is ``Transpose(MatMul(W, Transpose(x)))``, where only x and the product are turned. The
weight is then a left operand, which kernels do not pack: one copy is left.

It hurts the latency of products of few rows, for which a packed right operand is faster, and of
many, whose product takes time to turn.
"""

import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.remedies.draft import Draft
from memdiag.remedies.flattening import cannot_flatten, flatten, leading
from memdiag.remedies.products import Product, no_matmul, products, recast, replace_products
from memdiag.remedies.rewrite import Rewrite

REWRITE = Rewrite(
    name="transpose-small-side",
    summary="transpose the input and the product instead of the weight",
    rules=("shared-weight-transposed", "stored-transpose"),
    arithmetic="reordered",
)


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why no product of the weight can be turned; None if one can."""
    return products(draft, finding, _problem).reason


def apply(draft: Draft, finding: Finding) -> bool:
    """Replace the products and drop what only they read; return whether there were any."""
    return replace_products(draft, finding, _problem, _replace)


def _problem(draft: Draft, product: Product) -> str:
    is_vector = leading(draft, product) == ()
    return no_matmul(product) or ("" if is_vector else cannot_flatten(draft, product))


def _replace(draft: Draft, product: Product) -> None:
    matrix = recast(draft, product)
    if leading(draft, product) == ():
        # A vector is the same from either side.
        left = product.node.inputs[0]
        product.node.replace_input_with(0, matrix)
        product.node.replace_input_with(1, left)
        return
    node = flatten(draft, product)
    left, name = node.inputs[0], node.name or "MatMul"
    turned = draft.insert_before(node, "Transpose", [left], [_turn()], name=f"{name}/Transpose")
    made = draft.insert_before(node, "MatMul", [matrix, turned], name=f"{name}/MatMul")
    # The node itself becomes the last one, so that its output stays what it was.
    node.op_type, node.name = "Transpose", draft.unique_name(f"{name}/Transpose")
    node.resize_inputs(1)
    node.replace_input_with(0, made)
    node.attributes.add(_turn())


def _turn() -> ir.Attr:
    return ir.AttrInt64s("perm", [1, 0])
