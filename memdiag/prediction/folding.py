"""Which nodes the runtime will evaluate once and for all, and how large their results are."""

from typing import NamedTuple

from onnx import NodeProto

from memdiag.graph.graphs import Graphs
from memdiag.graph.scopes import Scope
from memdiag.graph.shapes import Shapes
from memdiag.prediction.runtime import Runtime
from memdiag.records.weights import Weight


class Fold(NamedTuple):
    """A node whose output becomes an initializer: `output` of `node` in `scope`.

    `weights` are the constants that it is computed from, directly or through other folds. `stays`
    says that a node which is not folded reads it (or that it is an output of the graph), so that
    it is resident at steady state.
    """

    scope: Scope
    node: NodeProto
    output: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    weights: tuple[Weight, ...]
    stays: bool


def folds(graphs: Graphs, shapes: Shapes, runtime: Runtime) -> tuple[Fold, ...]:
    """Return the nodes that constant folding of `runtime` evaluates, in topological order."""
    return ()
