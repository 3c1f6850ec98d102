"""The products that multiply by the transpose of a weight, in whatever graph they are."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.remedies.draft import Draft

STORED_TRANSPOSE = "stored-transpose"
"""The rule about a matrix that is stored a second time as its transpose."""

_DEEPEST = 8
_PASSED = ("Identity", "Cast")


class Product(NamedTuple):
    """A MatMul or Gemm whose right operand is the transpose of the matrix `source`, [`rows`, K].

    `turned` is the transpose: the output of a Transpose, or a weight that is stored turned. `casts`
    are the Casts between it and the product, in order, and `operand` is what the product reads.
    """

    node: ir.Node
    source: ir.Value
    turned: ir.Value
    rows: int
    casts: tuple[ir.Node, ...]
    operand: ir.Value

    @property
    def dtype(self) -> str:
        """The element type of the product's right operand, by ONNX's name; empty if not known."""
        cast = self.casts[-1] if self.casts else self.source.producer()
        if cast is not None and cast.op_type == "Cast":
            return ir.DataType(cast.attributes["to"].as_int()).name.lower()
        kind = self.source.dtype
        if kind is None and cast is not None and cast.op_type == "Constant":
            kind = cast.attributes["value"].as_tensor().dtype
        return kind.name.lower() if kind is not None else ""


class Products(NamedTuple):
    """The products that can be given another form, and why others cannot, in a few words."""

    found: tuple[Product, ...]
    problems: tuple[str, ...]

    @property
    def reason(self) -> str | None:
        """Why there are none; None if there are some."""
        return None if self.found else next(iter(self.problems))


def products(
    draft: Draft, finding: Finding, problem_of: Callable[[Draft, Product], str]
) -> Products:
    """Return the products of all weights of `finding` that `problem_of` says nothing against.

    A transpose that something else reads as well would still be computed: its products are left.
    """
    all_of = _of_stored if finding.name == STORED_TRANSPOSE else _of_weights
    every = all_of(draft, finding)
    problems = list(every.problems)
    barred: set[ir.Value] = set()
    for product in every.found:
        problem = problem_of(draft, product)
        if problem:
            problems.append(problem)
            barred.add(product.turned)
    found = tuple(product for product in every.found if product.turned not in barred)
    return Products(found, tuple(problems))


def recast(draft: Draft, product: Product) -> ir.Value:
    """Return the matrix of `product` as it is to be multiplied: with the same Casts, not turned."""
    matrix = product.source
    for cast in product.casts:
        name = f"{cast.name or 'Cast'}_{product.source.name}"
        attributes = list(cast.attributes.values())
        matrix = draft.insert_before(product.node, "Cast", [matrix], attributes, name=name)
    return matrix


def replace_products(
    draft: Draft,
    finding: Finding,
    problem_of: Callable[[Draft, Product], str],
    replace: Callable[[Draft, Product], None],
) -> bool:
    """Replace the `products` and drop what only they read; return whether there were any."""
    found = products(draft, finding, problem_of).found
    for product in found:
        replace(draft, product)
    finish(found)
    return bool(found)


def no_matmul(product: Product) -> str:
    """Return that `product` is none of two operands alone; empty if it is."""
    if product.node.op_type == "MatMul":
        return ""
    return f"the product is a {product.node.op_type}, which can read the weight as it is"


def finish(done: Iterable[Product]) -> None:
    """Remove what only the products of `done` read, as they were."""
    for product in done:
        turned = product.turned
        prune([product.operand])
        if turned.is_initializer() and not turned.uses() and turned.graph is not None:
            turned.graph.initializers.pop(str(turned.name), None)


def _of_weights(draft: Draft, finding: Finding) -> Products:
    found: dict[ir.Node, Product] = {}
    problems: list[str] = []
    for name in finding.weights:
        weight = draft.value(name)
        shape = _matrix(weight) if weight is not None else None
        if weight is None or shape is None:
            problems.append("the weight is no matrix that is stored in the model")
            continue
        for product in _of_weight(draft, weight, shape[0], problems):
            found[product.node] = product
    if not found and not problems:
        problems.append("no product reads the weight through a Transpose")
    return Products(tuple(found.values()), tuple(problems))


def stored_pair(draft: Draft, finding: Finding) -> tuple[ir.Value, ir.Value] | None:
    """Return a stored matrix and its stored transpose, both as the file has them, or None."""
    pair = [draft.value(name) for name in finding.weights]
    if len(pair) != 2 or finding.name != STORED_TRANSPOSE:
        return None
    one, other = pair
    if one is None or other is None or one is other:
        return None
    shapes = _matrix(one), _matrix(other)
    if shapes[0] is None or shapes[1] is None or shapes[0] != shapes[1][::-1]:
        return None
    # What a rewrite has put in its place need not be the other's transpose.
    if not all(isinstance(each.const_value, ir.ExternalTensor) for each in (one, other)):
        return None
    return (one, other) if one.dtype == other.dtype else None


def prune(values: Iterable[ir.Value]) -> None:
    """Remove the nodes that move or cast a weight and whose outputs, `values`, nobody reads."""
    pending = list(values)
    while pending:
        node = pending.pop().producer()
        if node is None or node.graph is None or node.op_type not in (*_PASSED, "Transpose"):
            continue
        if any(output.uses() or output.is_graph_output() for output in node.outputs):
            continue
        pending += [value for value in node.inputs if value is not None]
        node.graph.remove(node, safe=True)


def _of_weight(draft: Draft, weight: ir.Value, rows: int, problems: list[str]) -> Iterator[Product]:
    for transpose, source in _transposes(weight):
        found: list[Product] = []
        turned = transpose.outputs[0]
        problem = _follow(
            draft, turned, Product(transpose, source, turned, rows, (), turned), found
        )
        if problem:
            problems.append(problem)
        else:
            yield from found


def _transposes(weight: ir.Value) -> Iterator[tuple[ir.Node, ir.Value]]:
    """Yield the Transposes of `weight`, each with the matrix that it turns."""
    pending = [(weight, weight, 0)]
    while pending:
        value, source, depth = pending.pop()
        for node, slot in value.uses():
            if slot or node.domain or depth >= _DEEPEST:
                continue
            output = node.outputs[0]
            if node.op_type == "Transpose" and _turns(node):
                yield node, source
            elif node.op_type == "Identity":
                pending.append((output, source, depth + 1))
            elif node.op_type == "Cast" and not node.attributes["to"].is_ref():
                pending.append((output, output, depth + 1))


def _turns(node: ir.Node) -> bool:
    perm = node.attributes.get("perm")
    return perm is None or (not perm.is_ref() and tuple(perm.as_ints()) == (1, 0))


def _follow(draft: Draft, value: ir.Value, so_far: Product, found: list[Product]) -> str:
    """Collect the products that read `value`; return why it cannot be done without, if so.

    `so_far` is what is known of them, its node aside.
    """
    if value.is_graph_output():
        return "the transposed weight is an output"
    if len(so_far.casts) > _DEEPEST or not value.uses():
        return "nothing multiplies by the transposed weight"
    for node, slot in value.uses():
        problem = ""
        if not node.domain and node.op_type == "Identity":
            problem = _follow(draft, node.outputs[0], so_far, found)
        elif not node.domain and node.op_type == "Cast" and not node.attributes["to"].is_ref():
            further = so_far._replace(casts=(*so_far.casts, node))
            problem = _follow(draft, node.outputs[0], further, found)
        elif not _multiplies(node) or slot != 1:
            side = " as its left operand" if _multiplies(node) and not slot else ""
            problem = f"{node.op_type} reads the transposed weight{side} as well"
        elif not draft.sees(node.graph, so_far.source):
            problem = "another value in a subgraph has the weight's name"
        else:
            found.append(so_far._replace(node=node, operand=value))
        if problem:
            return problem
    return ""


def _multiplies(node: ir.Node) -> bool:
    return not node.domain and node.op_type in ("MatMul", "Gemm") and node.inputs[0] is not None


def _of_stored(draft: Draft, finding: Finding) -> Products:
    """Return the products by one of two stored matrices, of which the other is the transpose."""
    pair = stored_pair(draft, finding)
    if pair is None:
        return Products((), ("the two weights are not both stored as matrices of one type",))
    problems = []
    for kept, dropped in (pair, pair[::-1]):
        found: list[Product] = []
        problem = cannot_merge(kept, dropped)
        uses = list(dropped.uses())
        if not problem and uses:
            rows = (_matrix(kept) or (0, 0))[0]
            start = Product(uses[0].node, kept, dropped, rows, (), dropped)
            problem = _follow(draft, dropped, start, found)
        if found and not problem:
            return Products(tuple(found), ())
        problems.append(problem.replace("the transposed weight", str(dropped.name)))
    return Products((), (*filter(None, problems), "nothing multiplies by one of the two"))


def cannot_merge(kept: ir.Value, dropped: ir.Value) -> str:
    """Return why `dropped` cannot be given up for `kept`; empty if it can."""
    for weight in (kept, dropped):
        if not weight.is_initializer():
            return f"{weight.name} is no initializer"
        if weight.is_graph_input():
            return f"callers may give another {weight.name}"
    return ""


def _matrix(weight: ir.Value) -> tuple[int, int] | None:
    """Return the shape of a weight that is a matrix: its rows and columns, none of them 0."""
    if weight.is_initializer():
        shape = weight.const_value.shape if weight.const_value is not None else None
    else:
        node = weight.producer()
        value = node.attributes.get("value") if node and node.op_type == "Constant" else None
        shape = None
        if value is not None and not value.is_ref() and value.type == ir.AttributeType.TENSOR:
            shape = value.as_tensor().shape
    if shape is None or len(shape) != 2:
        return None
    rows, columns = shape.numpy()
    return (rows, columns) if rows and columns else None
