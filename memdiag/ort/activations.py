"""What a model's activations take at certain sizes of its free dimensions, given or assumed."""

from collections.abc import Mapping
from typing import NamedTuple

from memdiag.errors import UsageError
from memdiag.model.axis_roles import axis_roles, total_lengths
from memdiag.model.dimensions import axes_of, choose_sizes
from memdiag.model.graph_index import GraphIndex
from memdiag.model.model_file import ModelFile
from memdiag.model.shapes import Shapes, infer_shapes
from memdiag.ort.folding import folds
from memdiag.ort.folds import Folds
from memdiag.ort.liveness import Liveness, liveness
from memdiag.ort.runtime import Runtime


class Sizes(NamedTuple):
    """A size for each free dimension of the inputs, and the names of those that nobody gave."""

    of: Mapping[str, int]
    assumed: tuple[str, ...]


def chosen_sizes(model: ModelFile, given: Mapping[str, int]) -> Sizes:
    """Return sizes for the free dimensions of the model's inputs: `given`, then realistic ones.

    Names in `given` that are not the model's are left out: they may be another model's.
    """
    inputs = {value.name: axes_of(value) for value in model.graph.required_inputs}
    free = {axis.key for axes in inputs.values() for axis in axes or () if axis.size is None}
    dims = {key: size for key, size in given.items() if key in free and size >= 0}
    try:
        roles = axis_roles(model.graph, model.functions)
        sizes = choose_sizes(
            inputs,
            dims=dims,
            given={},
            free_dim=1,
            usual={key: role.size for key, role in roles.items()},
            totals=total_lengths(inputs, roles),
        )
    except UsageError:  # two inputs of one name and different shapes
        return Sizes({}, ())
    return Sizes(sizes, tuple(sorted(free - dims.keys())))


def activations(
    model: ModelFile,
    graphs: GraphIndex,
    shapes: Shapes,
    folded: Folds,
    sizes: Mapping[str, int],
) -> Liveness:
    """Return what the activations take at most at `sizes`; `shapes` are those at any others."""
    return liveness(
        graphs,
        infer_shapes(model, graphs, sizes, []),
        folded,
        declared=shapes.as_declared,
        sizes=sizes.values(),
    )


def activation_bytes(model: ModelFile, sizes: Mapping[str, int]) -> int:
    """Return about how many bytes the activations of `model` take at once at `sizes`."""
    graphs = GraphIndex(model)
    shapes = infer_shapes(model, graphs, sizes, [])
    # Any release will do for an estimate, and none needs to be installed here.
    found = folds(graphs, shapes, Runtime(1, 32, 0))
    return liveness(graphs, shapes, found, declared=shapes, sizes=sizes.values()).peak_bytes
