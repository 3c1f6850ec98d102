"""Which BatchNormalization the runtime folds into the Conv before it, by the shape of the graph."""

from memdiag.model.graph_index import Node, Scope


def batch_normalization_after(scope: Scope, conv: Node) -> Node | None:
    """Return the BatchNormalization that alone takes what `conv`, a node of `scope`, makes.

    None where there is none. Whether it is folded depends on its and the Conv's other inputs too:
    all must be constant.
    """
    if conv.op_type != "Conv" or not conv.output or conv.output[0] in scope.outputs:
        return None
    uses = list(scope.uses(conv.output[0]))
    if len(uses) != 1 or uses[0].scope is not scope or uses[0].input_index != 0:
        return None
    node = uses[0].node
    fits = node.op_type == "BatchNormalization" and len(node.input) == 5
    return node if fits and len([*filter(None, node.output)]) == 1 else None
