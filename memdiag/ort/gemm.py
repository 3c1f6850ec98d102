"""Which products become a Gemm: a MatMul and the Add behind it, where their shapes allow it."""

from memdiag.model.graph_index import GraphIndex, Node, Scope, integer
from memdiag.model.shapes import Shapes

Kernel = tuple[str, str, bool]


def kernel(graphs: GraphIndex, shapes: Shapes, scope: Scope, node: Node) -> Kernel:
    """Return what tells the kernel of `node`: domain, operator, and whether it reads transposed.

    Nodes with one kernel share the packed copy of a weight (since 1.21).
    """
    turned = bool(integer(node, "transB", 0))
    if becomes_gemm(graphs, shapes, scope, node):
        return "", "Gemm", turned
    return "" if node.domain == "ai.onnx" else node.domain, node.op_type, turned


def becomes_gemm(graphs: GraphIndex, shapes: Shapes, scope: Scope, node: Node) -> bool:
    """Return whether the MatMul `node` and what is added to it are surely one Gemm.

    Products of matrices are, and those of more axes by a weight if their sizes are known.
    """
    if node.op_type != "MatMul" or len(node.input) != 2 or len(node.output) != 1:
        return False
    if node.output[0] in scope.outputs:
        return False
    uses = list(scope.uses(node.output[0]))
    if len(uses) != 1 or uses[0].node.op_type != "Add" or len(uses[0].node.input) != 2:
        return False
    (use,) = uses
    if any(_is_merged(scope, node, one.node) for one in scope.uses(node.input[1])):
        return False
    left, right = (_shape(shapes, scope, name) for name in node.input)
    added = _shape(shapes, use.scope, use.node.input[1 - use.input_index])
    if left is None or right is None or added is None or len(right) != 2:
        return False
    *rows, _ = left or (None,)
    columns = right[1]
    if len(left) > 2:
        is_weight = graphs.weight(scope, node.input[1]) is not None
        return is_weight and None not in rows and added == (columns,)
    fitting: list[tuple[int | None, ...]] = [(columns,), (1, columns)]
    if None not in rows:
        fitting += [(*rows, 1), (*rows, columns)]
    return len(left) == 2 and added in fitting


def _is_merged(scope: Scope, node: Node, other: Node) -> bool:
    """Return whether the runtime may make one of two like products; the one has more readers."""
    return (
        other != node
        and other.op_type == node.op_type
        and list(other.input) == list(node.input)
        and len(other.output) > 0
        and other.output[0] not in scope.outputs
    )


def _shape(shapes: Shapes, scope: Scope, name: str) -> tuple[int | None, ...] | None:
    kind = shapes.of(scope, name)
    return None if kind is None else kind.shape
