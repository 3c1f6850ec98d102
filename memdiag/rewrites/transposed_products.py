"""Products by the transpose of a weight: finding them, flattening them, and cleaning up after."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.rewrites.edited_weights import constant_tensor
from memdiag.rewrites.model_editor import ModelEditor

STORED_TRANSPOSE = "stored-transpose"
"""The rule about a matrix that is stored a second time as its transpose."""

MAX_STEPS_TO_PRODUCT = 8
"""Maximum number of Identity and Cast nodes between a weight and a product."""

_ALLOWZERO_SINCE = 14
"""The operator set in which Reshape can make an axis of size 0, by ``allowzero``."""

LeadingSizes = tuple[int | None, ...]


class Product(NamedTuple):
    """A MatMul or Gemm whose right operand is the transpose of a stored matrix.

    Attributes:
        node: the MatMul or Gemm.
        source: the matrix, [`rows`, K].
        transpose: its transpose: the output of a Transpose, or a second weight.
        rows: the rows of `source`.
        casts: the Casts between `transpose` and the product, in order.
        operand: what the product reads.
    """

    node: ir.Node
    source: ir.Value
    transpose: ir.Value
    rows: int
    casts: tuple[ir.Node, ...]
    operand: ir.Value

    @property
    def dtype(self) -> str:
        """The element type of the product's right operand, by ONNX's name; empty if unknown."""
        cast = self.casts[-1] if self.casts else self.source.producer()
        if cast is not None and cast.op_type == "Cast":
            return ir.DataType(cast.attributes["to"].as_int()).name.lower()
        kind = self.source.dtype
        if kind is None and cast is not None and cast.op_type == "Constant":
            kind = cast.attributes["value"].as_tensor().dtype
        return kind.name.lower() if kind is not None else ""


class Products(NamedTuple):
    """The products of a finding.

    Attributes:
        found: the products that can be rewritten.
        problems: why further products cannot be rewritten.
    """

    found: tuple[Product, ...]
    problems: tuple[str, ...]

    @property
    def problem(self) -> str | None:
        """The reason why there are none; None if there are some."""
        return None if self.found else next(iter(self.problems))


ProductProblem = Callable[[ModelEditor, Product], str]
"""Returns why a product cannot be rewritten; empty if it can."""


def transposed_products(
    editor: ModelEditor, finding: Finding, problem_of: ProductProblem
) -> Products:
    """Return the products by transposes of the finding's weights without a problem.

    If another product still needs a transpose, it would be computed anyway: its products are left
    out.
    """
    is_stored = finding.name == STORED_TRANSPOSE
    all_products = (_stored_transpose_products if is_stored else _weight_transpose_products)(
        editor, finding
    )
    problems = list(all_products.problems)
    needed_transposes: set[ir.Value] = set()
    for product in all_products.found:
        problem = problem_of(editor, product)
        if problem:
            problems.append(problem)
            needed_transposes.add(product.transpose)
    products = tuple(
        product for product in all_products.found if product.transpose not in needed_transposes
    )
    return Products(products, tuple(problems))


def replace_products(
    editor: ModelEditor,
    finding: Finding,
    problem_of: ProductProblem,
    replace: Callable[[ModelEditor, Product], None],
) -> bool:
    """Replace the products and remove what only they read; return whether there were any."""
    products = transposed_products(editor, finding, problem_of).found
    for product in products:
        replace(editor, product)
    remove_unused_transposes(products)
    return bool(products)


def matmul_problem(product: Product) -> str:
    """Return why `product` is not a MatMul; empty if it is one."""
    if product.node.op_type == "MatMul":
        return ""
    return f"the product is a {product.node.op_type}, which can read the weight as it is"


def cast_matrix(editor: ModelEditor, product: Product) -> ir.Value:
    """Return the matrix of `product`, not transposed, with the same Casts."""
    matrix = product.source
    for cast in product.casts:
        name = f"{cast.name or 'Cast'}_{product.source.name}"
        attributes = list(cast.attributes.values())
        matrix = editor.insert_before(product.node, "Cast", [matrix], attributes, name=name)
    return matrix


def remove_unused_transposes(products: Iterable[Product]) -> None:
    """Remove the nodes and stored transposes that only rewritten products read."""
    for product in products:
        transpose = product.transpose
        _remove_unused_chain(product.operand)
        if transpose.is_initializer() and not transpose.uses() and transpose.graph is not None:
            transpose.graph.initializers.pop(str(transpose.name), None)


def stored_pair(editor: ModelEditor, finding: Finding) -> tuple[ir.Value, ir.Value] | None:
    """Return a stored matrix and its stored transpose, both unchanged; None if there are none."""
    pair = [editor.value(name) for name in finding.weights]
    if len(pair) != 2 or finding.name != STORED_TRANSPOSE:
        return None
    first, second = pair
    if first is None or second is None or first is second:
        return None
    shapes = _matrix_shape(first), _matrix_shape(second)
    if shapes[0] is None or shapes[1] is None or shapes[0] != shapes[1][::-1]:
        return None
    # A tensor that a rewrite replaced need not be the other's transpose.
    if not all(isinstance(weight.const_value, ir.ExternalTensor) for weight in (first, second)):
        return None
    return (first, second) if first.dtype == second.dtype else None


def merge_problem(kept: ir.Value, dropped: ir.Value) -> str:
    """Return why `dropped` cannot be replaced by the transpose of `kept`; empty if it can."""
    for weight in (kept, dropped):
        if not weight.is_initializer():
            return f"{weight.name} is not an initializer"
        if weight.is_graph_input():
            return f"callers may set {weight.name}"
    return ""


def leading_sizes(editor: ModelEditor, product: Product) -> LeadingSizes | None:
    """Return the sizes of the left operand's axes but the last; None if their number is unknown."""
    left_operand = product.node.inputs[0]
    kind = editor.type_of(left_operand) if left_operand is not None else None
    return None if kind is None or not kind.shape else kind.shape[:-1]


def flatten_problem(editor: ModelEditor, product: Product) -> str:
    """Return why `product`, a MatMul, cannot become a product of matrices; empty if it can."""
    sizes, opset = leading_sizes(editor, product), editor.opset(product.node)
    if sizes is not None and (len(sizes) == 1 or _fits_constant_shape(sizes)):
        return ""
    if opset < _ALLOWZERO_SINCE:
        return f"in operator set {opset} the product cannot be given its axes again"
    return ""


def flatten_product(editor: ModelEditor, product: Product) -> ir.Node:
    """Make `product` a product of matrices, and return the MatMul of the matrices.

    That is the node itself if its left operand is a matrix. Otherwise a MatMul is inserted before
    it, and the node becomes the Reshape that gives the product its axes, so that its output stays
    the same value.
    """
    node, sizes = product.node, leading_sizes(editor, product)
    if sizes is not None and len(sizes) == 1:
        return node
    left_operand, name = node.inputs[0], node.name or "MatMul"
    assert left_operand is not None
    axis = ir.AttrInt64("axis", -1 if sizes is None else len(sizes))
    flat = editor.insert_before(node, "Flatten", [left_operand], [axis], name=f"{name}/Flatten")
    output = editor.insert_before(node, "MatMul", [flat, product.operand], name=f"{name}/MatMul")
    shape = _product_shape(editor, product, sizes)
    node.op_type, node.name = "Reshape", editor.unique_name(f"{name}/Reshape")
    node.replace_input_with(0, output)
    node.replace_input_with(1, shape)
    if sizes is None or not _fits_constant_shape(sizes):
        node.attributes.add(ir.AttrInt64("allowzero", 1))
    _declare_product_shape(left_operand, node.outputs[0], product)
    matrices = output.producer()
    assert matrices is not None
    return matrices


def _fits_constant_shape(sizes: LeadingSizes) -> bool:
    """Return whether a constant shape can express `sizes`: one free size is -1, none is 0."""
    return 0 not in sizes and sizes.count(None) <= 1


def _product_shape(editor: ModelEditor, product: Product, sizes: LeadingSizes | None) -> ir.Value:
    """Return the product's shape: a constant, or computed at run time."""
    node, name = product.node, product.node.name or "MatMul"
    left_operand = node.inputs[0]
    if sizes is not None and _fits_constant_shape(sizes):
        product_sizes = [-1 if size is None else size for size in (*sizes, product.rows)]
        return editor.constant_before(node, np.array(product_sizes, np.int64), name=f"{name}/shape")
    shape = editor.insert_before(node, "Shape", [left_operand], name=f"{name}/Shape")
    start = editor.constant_before(node, np.array([0], np.int64), name=f"{name}/start")
    end = editor.constant_before(node, np.array([-1], np.int64), name=f"{name}/end")
    axes = editor.insert_before(node, "Slice", [shape, start, end], name=f"{name}/Slice")
    column_count = editor.constant_before(
        node, np.array([product.rows], np.int64), name=f"{name}/columns"
    )
    axis_attribute = ir.AttrInt64("axis", 0)
    return editor.insert_before(
        node, "Concat", [axes, column_count], [axis_attribute], name=f"{name}/Concat"
    )


def _declare_product_shape(left_operand: ir.Value, output: ir.Value, product: Product) -> None:
    """Declare the product's shape, which would be inferred for a MatMul but not for a Reshape."""
    if (
        output.shape is None
        and left_operand.shape is not None
        and isinstance(left_operand.type, ir.TensorType)
    ):
        output.type = output.type or ir.TensorType(ir.DataType[product.dtype.upper()])
        output.shape = ir.Shape([*left_operand.shape[:-1], product.rows])


def _remove_unused_chain(value: ir.Value) -> None:
    """Remove the Identity, Cast and Transpose nodes that only lead to the unused `value`."""
    pending = [value]
    while pending:
        node = pending.pop().producer()
        if node is None or node.graph is None:
            continue
        if node.op_type not in ("Identity", "Cast", "Transpose"):
            continue
        if any(output.uses() or output.is_graph_output() for output in node.outputs):
            continue
        pending += [operand for operand in node.inputs if operand is not None]
        node.graph.remove(node, safe=True)


def _weight_transpose_products(editor: ModelEditor, finding: Finding) -> Products:
    """Return the products by Transposes of the finding's weights."""
    product_by_node: dict[ir.Node, Product] = {}
    problems: list[str] = []
    for name in finding.weights:
        weight = editor.value(name)
        shape = _matrix_shape(weight) if weight is not None else None
        if weight is None or shape is None:
            problems.append("the weight is not a matrix that is stored in the model")
            continue
        for transpose, source in _weight_transposes(weight):
            output = transpose.outputs[0]
            template = Product(transpose, source, output, shape[0], (), output)
            products: list[Product] = []
            problem = _collect_products(editor, output, template, products)
            if problem:
                problems.append(problem)
            else:
                product_by_node |= {product.node: product for product in products}
    if not product_by_node and not problems:
        problems.append("no product reads the weight through a Transpose")
    return Products(tuple(product_by_node.values()), tuple(problems))


def _stored_transpose_products(editor: ModelEditor, finding: Finding) -> Products:
    """Return the products by one of two stored matrices, of which each is the other's transpose."""
    pair = stored_pair(editor, finding)
    if pair is None:
        return Products((), ("the two weights are not both stored as matrices of one type",))
    problems = []
    for kept, dropped in (pair, pair[::-1]):
        products: list[Product] = []
        problem = merge_problem(kept, dropped)
        uses = list(dropped.uses())
        if not problem and uses:
            rows = (_matrix_shape(kept) or (0, 0))[0]
            template = Product(uses[0].node, kept, dropped, rows, (), dropped)
            problem = _collect_products(editor, dropped, template, products)
        if products and not problem:
            return Products(tuple(products), ())
        problems.append(problem.replace("the transposed weight", str(dropped.name)))
    return Products((), (*filter(None, problems), "nothing multiplies by one of the two"))


def _weight_transposes(weight: ir.Value) -> Iterator[tuple[ir.Node, ir.Value]]:
    """Yield the Transposes of `weight`, each with the matrix that it transposes."""
    pending = [(weight, weight, 0)]
    while pending:
        value, source, depth = pending.pop()
        for node, index in value.uses():
            if index or node.domain or depth >= MAX_STEPS_TO_PRODUCT:
                continue
            output = node.outputs[0]
            if node.op_type == "Transpose" and _is_matrix_transpose(node):
                yield node, source
            elif node.op_type == "Identity":
                pending.append((output, source, depth + 1))
            elif node.op_type == "Cast" and not node.attributes["to"].is_ref():
                pending.append((output, output, depth + 1))


def _is_matrix_transpose(node: ir.Node) -> bool:
    perm = node.attributes.get("perm")
    return perm is None or (not perm.is_ref() and tuple(perm.as_ints()) == (1, 0))


def _collect_products(
    editor: ModelEditor, value: ir.Value, template: Product, products: list[Product]
) -> str:
    """Add the products that read `value` to `products`; return why it is still needed, or empty.

    `template` has all attributes of the products but `node` and `operand`.
    """
    if value.is_graph_output():
        return "the transposed weight is an output"
    if len(template.casts) > MAX_STEPS_TO_PRODUCT or not value.uses():
        return "nothing multiplies by the transposed weight"
    for node, index in value.uses():
        problem = ""
        is_product = not node.domain and node.op_type in ("MatMul", "Gemm")
        if not node.domain and node.op_type == "Identity":
            problem = _collect_products(editor, node.outputs[0], template, products)
        elif not node.domain and node.op_type == "Cast" and not node.attributes["to"].is_ref():
            cast_template = template._replace(casts=(*template.casts, node))
            problem = _collect_products(editor, node.outputs[0], cast_template, products)
        elif not is_product or node.inputs[0] is None or index != 1:
            side_text = " as its left operand" if is_product and not index else ""
            problem = f"{node.op_type} reads the transposed weight{side_text} as well"
        elif not editor.is_visible(template.source, node.graph):
            problem = "another value in a subgraph has the weight's name"
        else:
            products.append(template._replace(node=node, operand=value))
        if problem:
            return problem
    return ""


def _matrix_shape(weight: ir.Value) -> tuple[int, int] | None:
    """Return the rows and columns of a stored matrix, none of them 0; None for other values."""
    tensor = constant_tensor(weight)
    if tensor is None or len(tensor.shape) != 2:
        return None
    rows, columns = tensor.shape.numpy()
    return (rows, columns) if rows and columns else None
