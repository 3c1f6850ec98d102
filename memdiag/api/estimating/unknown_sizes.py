"""What an estimate says about values whose sizes only a run shows."""

from collections.abc import Iterator

from memdiag.model.graph_index import Node, Scope
from memdiag.model.inputs import plan_inputs
from memdiag.ort.analysis import AnalysisContext
from memdiag.records.estimate import EstimatedPoint
from memdiag.units import counted, plural, some_of


def unknown_sizes_note(ctx: AnalysisContext, point: EstimatedPoint) -> str:
    """Return a note on the values of `point` that have unknown sizes, and the nodes where they
    begin."""
    count = point.unknown_values
    nodes = [ctx.graphs.qualified(scope, node) for scope, node in _first_nodes(ctx, point)]
    text = (
        f"{counted(count, 'value')} {plural(count, 'has a size', 'have sizes')} that only a run"
        f" shows, from {some_of(list(dict.fromkeys(nodes)))} on;"
        f" {plural(count, 'it counts', 'they count')} as nothing"
    )
    if point.is_bounded:
        return (
            f"{text}. The interval goes to the peak if {plural(count, 'it is', 'they are')} at"
            " the largest"
        )
    return text


def size_inputs(ctx: AnalysisContext, point: EstimatedPoint) -> dict[str, str]:
    """Return notes on the inputs whose numbers decide unknown sizes of `point`, by input.

    A note says which number the input has in a run. Only inputs are named whose elements are all
    the same number, such as 1.
    """
    main, shapes = ctx.graphs.main, ctx.shapes_at(point.dims)
    pending = [(scope, name) for scope, node in _first_nodes(ctx, point) for name in node.input]
    reached: set[tuple[Scope, str]] = set()
    while pending:
        scope, name = pending.pop()
        defining_scope = scope.defining_scope(name)
        kind = None if defining_scope is None else shapes.of(defining_scope, name)
        is_integer = kind is not None and kind.dtype in ("int32", "int64")
        if defining_scope is None or not is_integer or (defining_scope, name) in reached:
            continue
        reached.add((defining_scope, name))
        producer = defining_scope.producers.get(name)
        if producer is not None and producer.op_type not in ("Shape", "Size"):
            pending += [(defining_scope, operand) for operand in producer.input]
    plans = plan_inputs(ctx.model_file, dims=point.dims, given={})
    return {
        plan.name: plan.note
        for plan in plans
        if plan.fill == "constant" and plan.name not in point.dims and (main, plan.name) in reached
    }


def _first_nodes(ctx: AnalysisContext, point: EstimatedPoint) -> Iterator[tuple[Scope, Node]]:
    """Yield the nodes with an output of unknown size and only inputs of known size, with their
    graphs."""
    shapes = ctx.shapes_at(point.dims)
    for _, scope in ctx.graphs:
        if shapes.runs.get(scope, 1):
            for node in scope.nodes:
                kinds = [
                    [shapes.of(scope, name) for name in names if name]
                    for names in (node.input, node.output)
                ]
                inputs, outputs = (
                    [kind is not None and kind.nbytes is not None for kind in values]
                    for values in kinds
                )
                if all(inputs) and not all(outputs):
                    yield scope, node
