"""Products of matrices: a left operand of another rank is flattened, the product unfolded again."""

import numpy as np
import onnx_ir as ir

from memdiag.remedies.draft import Draft
from memdiag.remedies.products import Product

_ZEROS_ALLOWED = 14
"""Since then Reshape can make an axis of size 0, by ``allowzero``."""

Sizes = tuple[int | None, ...]


def cannot_flatten(draft: Draft, product: Product) -> str:
    """Return why `product`, a MatMul, cannot become one of matrices; empty if it can."""
    sizes, opset = leading(draft, product), draft.opset(product.node)
    if sizes is not None and (len(sizes) == 1 or _is_known(sizes)):
        return ""
    if opset < _ZEROS_ALLOWED:
        return f"in operator set {opset} the product cannot be given its axes again"
    return ""


def leading(draft: Draft, product: Product) -> Sizes | None:
    """Return the sizes of the left operand's axes but the last; None where not even their number
    is known."""
    left = product.node.inputs[0]
    kind = draft.type_of(left) if left is not None else None
    return None if kind is None or not kind.shape else kind.shape[:-1]


def flatten(draft: Draft, product: Product) -> ir.Node:
    """Make `product` one of matrices, and return the MatMul of these.

    That is the node itself where its left operand is a matrix already. Otherwise a MatMul is put
    before it, and the node becomes the Reshape that gives the product its axes, so that its output
    stays what it was.
    """
    node, sizes = product.node, leading(draft, product)
    if sizes is not None and len(sizes) == 1:
        return node
    left, name = node.inputs[0], node.name or "MatMul"
    assert left is not None
    axis = ir.AttrInt64("axis", -1 if sizes is None else len(sizes))
    flat = draft.insert_before(node, "Flatten", [left], [axis], name=f"{name}/Flatten")
    made = draft.insert_before(node, "MatMul", [flat, product.operand], name=f"{name}/MatMul")
    shape = _shape(draft, product, sizes)
    node.op_type, node.name = "Reshape", draft.unique_name(f"{name}/Reshape")
    node.replace_input_with(0, made)
    node.replace_input_with(1, shape)
    if sizes is None or not _is_known(sizes):
        node.attributes.add(ir.AttrInt64("allowzero", 1))
    _tell_shape(left, node.outputs[0], product)
    matrices = made.producer()
    assert matrices is not None
    return matrices


def _is_known(sizes: Sizes) -> bool:
    """Return whether a constant shape can say `sizes`: one that is free is -1, none is 0."""
    return 0 not in sizes and sizes.count(None) <= 1


def _shape(draft: Draft, product: Product, sizes: Sizes | None) -> ir.Value:
    """Return the product's shape: a constant, or found at run time."""
    node, name = product.node, product.node.name or "MatMul"
    left = node.inputs[0]
    if sizes is not None and _is_known(sizes):
        whole = [-1 if size is None else size for size in (*sizes, product.rows)]
        return draft.constant_before(node, np.array(whole, np.int64), name=f"{name}/shape")
    shape = draft.insert_before(node, "Shape", [left], name=f"{name}/Shape")
    start = draft.constant_before(node, np.array([0], np.int64), name=f"{name}/start")
    end = draft.constant_before(node, np.array([-1], np.int64), name=f"{name}/end")
    axes = draft.insert_before(node, "Slice", [shape, start, end], name=f"{name}/Slice")
    last = draft.constant_before(node, np.array([product.rows], np.int64), name=f"{name}/columns")
    along = ir.AttrInt64("axis", 0)
    return draft.insert_before(node, "Concat", [axes, last], [along], name=f"{name}/Concat")


def _tell_shape(left: ir.Value, output: ir.Value, product: Product) -> None:
    """State the product's shape, which would be inferred of a MatMul and is not of a Reshape."""
    if output.shape is None and left.shape is not None and isinstance(left.type, ir.TensorType):
        output.type = output.type or ir.TensorType(ir.DataType[product.dtype.upper()])
        output.shape = ir.Shape([*left.shape[:-1], product.rows])
