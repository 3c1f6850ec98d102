"""How far outputs of a model may differ if the order of its sums changes."""

from memdiag.model.graph_index import GraphIndex
from memdiag.model.model_file import ModelFile
from memdiag.ort.reductions import computes_in_half, largest_reduction
from memdiag.verify.outputs import Bound


def reordered_bound(file: ModelFile) -> Bound:
    """Return the bound for the model `file` when its sums are added in another order."""
    graphs = GraphIndex(file)
    return Bound.reordered(largest_reduction(file, graphs), is_half=computes_in_half(file, graphs))
