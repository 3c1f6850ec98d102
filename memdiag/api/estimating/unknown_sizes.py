"""What an estimate says of values whose sizes only a run shows."""

from collections.abc import Iterator

from memdiag.ort.analysis import AnalysisContext
from memdiag.records.estimate import EstimatedPoint
from memdiag.units import counted, plural, some_of


def unknown_sizes_note(ctx: AnalysisContext, point: EstimatedPoint) -> str:
    """Return how many values of `point` have unknown sizes, and the nodes at which that begins."""
    count = point.unknown_values
    text = (
        f"{counted(count, 'value')} {plural(count, 'has a size', 'have sizes')} that only a run"
        f" shows, from {some_of(list(dict.fromkeys(_first_nodes(ctx, point))))} on;"
        f" {plural(count, 'it counts', 'they count')} as nothing"
    )
    if point.is_bounded:
        return (
            f"{text}. The interval goes to the peak if {plural(count, 'it is', 'they are')} at"
            " the largest"
        )
    return text


def _first_nodes(ctx: AnalysisContext, point: EstimatedPoint) -> Iterator[str]:
    """Yield the labels of nodes that have an output of unknown size, and only inputs of known
    size."""
    shapes = ctx.shapes_at(point.dims)
    for _, scope in ctx.graphs:
        if shapes.runs.get(scope, 1):
            for node in scope.nodes:
                kinds = [
                    [shapes.of(scope, name) for name in names if name]
                    for names in (node.input, node.output)
                ]
                inputs, outputs = (
                    [kind is not None and kind.nbytes is not None for kind in each]
                    for each in kinds
                )
                if all(inputs) and not all(outputs):
                    yield ctx.graphs.qualified(scope, node)
