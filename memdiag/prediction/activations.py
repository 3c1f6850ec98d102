"""What a model's activations take at certain sizes of its free dimensions, given or assumed."""

from collections.abc import Mapping
from typing import NamedTuple

from memdiag.errors import UsageError
from memdiag.graph.dimensions import axes_of, choose_sizes
from memdiag.graph.graphs import Graphs
from memdiag.graph.reader import ModelFile
from memdiag.graph.shapes import Shapes, infer_shapes
from memdiag.prediction.folds import Folds
from memdiag.prediction.liveness import Liveness, liveness

ASSUMED_SIZE = 512
"""The size of a free dimension that is not given and does not count examples (those are 1)."""


class Sizes(NamedTuple):
    """A size for each free dimension of the inputs, and the names of those that nobody gave."""

    of: Mapping[str, int]
    assumed: tuple[str, ...]


def chosen_sizes(model: ModelFile, given: Mapping[str, int]) -> Sizes:
    """Return sizes for the free dimensions of the model's inputs, those of `given` first.

    Names in `given` that are not the model's are left out: they may be another model's.
    """
    inputs = {value.name: axes_of(value) for value in model.graph.fed}
    free = {axis.key for axes in inputs.values() for axis in axes or () if axis.size is None}
    dims = {key: size for key, size in given.items() if key in free and size >= 0}
    try:
        sizes = choose_sizes(inputs, dims=dims, given={}, free_dim=ASSUMED_SIZE)
    except UsageError:  # two inputs of one name and different shapes
        return Sizes({}, ())
    return Sizes(sizes, tuple(sorted(free - dims.keys())))


def activations(
    model: ModelFile,
    graphs: Graphs,
    shapes: Shapes,
    folds: Folds,
    sizes: Mapping[str, int],
) -> Liveness:
    """Return what the activations take at most at `sizes`; `shapes` are those at any others."""
    return liveness(
        graphs,
        infer_shapes(model, graphs, sizes, []),
        folds,
        declared=shapes.as_declared,
        sizes=sizes.values(),
    )
