"""Weights in Constant nodes are copied during parsing, in functions once for each call.

An initializer is moved from the parsed file to where the kernels read it. The tensor of a
Constant node is first copied into an initializer, and the nodes are freed only after all
were copied.

## Why it costs

At the end of parsing there are two copies of all Constants of the main graph, and of the
Constants of one subgraph at a time. Afterwards they are treated like initializers (1.24 to
1.31.1).

A function has no initializers: its weights are Constants. Every call is inlined with its own
copies, which stay resident where a kernel reads them unpacked. Packed copies are shared by
content. While the calls are inlined there are two more copies.

## What to do

- `constant-to-initializer`: make initializers of Constant nodes.
- `pass-function-weights`: give a function's weight as an argument to each call, from one
  initializer of the main graph.
- `externalize`: Constants with external data are mapped, like initializers.

## Not reported

Constants that raise the peak of parsing by less than 64 MiB, functions whose copies take
less than 1 MiB, and functions that are called only once. Initializers are copied at load as
well, but one at a time: the largest weight is not counted.
"""

from collections.abc import Iterator

from memdiag.model.function_calls import inlined_calls
from memdiag.ort.analysis import AnalysisContext
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight, qualified_name
from memdiag.rules.rule import Rule
from memdiag.units import MIB, counted, format_size, some_of

RULE = Rule(
    code="MD403",
    name="constant-nodes",
    summary="Weights in Constant nodes are copied during parsing, in functions once for each call",
    remedies=("constant-to-initializer", "pass-function-weights", "externalize"),
)

_MIN_CONSTANT_PEAK_BYTES = 64 * MIB
_MIN_FUNCTION_COPY_BYTES = MIB


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield at most one finding for Constant nodes of graphs, and one for the nodes of each
    function."""
    weights_by_graph: dict[str, list[Weight]] = {}
    weights_by_function: dict[str, list[Weight]] = {}
    for weight in ctx.model_file.weights:
        if weight.storage == "external" or not weight.nbytes:
            continue
        if weight.origin == "constant":
            weights_by_graph.setdefault(weight.graph, []).append(weight)
        elif weight.origin == "function":
            weights_by_function.setdefault(weight.graph, []).append(weight)
    if weights_by_graph:
        yield from _parsed_constant_findings(ctx, weights_by_graph)
    if not weights_by_function:
        return
    calls_by_function = inlined_calls(ctx.model_file.graph, ctx.model_file.functions)
    for name, weights in weights_by_function.items():
        yield from _inlined_constant_findings(ctx, name, weights, calls_by_function.get(name, 0))


def _parsed_constant_findings(
    ctx: AnalysisContext, weights_by_graph: dict[str, list[Weight]]
) -> Iterator[Finding]:
    embedded = (weight for weight in ctx.model_file.weights if weight.storage != "external")
    largest_bytes = max((weight.nbytes for weight in embedded), default=0)
    main_bytes = _total_constant_bytes(weights_by_graph.get("", [])) - largest_bytes
    subgraph_sizes = (
        _total_constant_bytes(weights) for path, weights in weights_by_graph.items() if path
    )
    peak_bytes = max(main_bytes, 0) + max(subgraph_sizes, default=0)
    if peak_bytes < _MIN_CONSTANT_PEAK_BYTES:
        return
    weights = [weight for graph_weights in weights_by_graph.values() for weight in graph_weights]
    weights.sort(key=lambda weight: -weight.nbytes)
    names = [qualified_name(weight) for weight in weights]
    yield RULE.finding(
        ctx,
        f"{counted(len(weights), 'Constant node')} ({some_of(names)}) with "
        f"{format_size(_total_constant_bytes(weights))} are in memory twice while the model is"
        " parsed",
        weights=names,
        nbytes=0,
        peak_bytes=peak_bytes,
        phase="parse",
        remedies=("constant-to-initializer", "externalize"),
    )


def _inlined_constant_findings(
    ctx: AnalysisContext, name: str, weights: list[Weight], calls: int
) -> Iterator[Finding]:
    """Yield a finding if a session keeps a copy of a function's constants for each of its
    `calls`."""
    kept_weights = [weight for weight in weights if not ctx.session.is_freed(weight)]
    saving_bytes = _total_constant_bytes(kept_weights) * (calls - 1)
    if calls < 2 or saving_bytes < _MIN_FUNCTION_COPY_BYTES:
        return
    kept_weights.sort(key=lambda weight: -weight.nbytes)
    names = [qualified_name(weight) for weight in kept_weights]
    yield RULE.finding(
        ctx,
        f"the function {name} is inlined {calls:,} times, each time with copies of its "
        f"Constants ({some_of(names)}: {format_size(_total_constant_bytes(kept_weights))})",
        detail=f"All but one of the {calls:,} copies could be saved.",
        weights=names,
        graph=name,
        nbytes=saving_bytes,
        peak_bytes=_total_constant_bytes(weights) * (calls + 1),
        phase="optimize",
        expected=(
            ExpectedCopies(
                weights=(weight_name,), kind="original", count=calls, bytes=weight.nbytes * calls
            )
            for weight_name, weight in zip(names, kept_weights, strict=True)
        ),
        remedies=("pass-function-weights", "externalize"),
    )


def _total_constant_bytes(weights: list[Weight]) -> int:
    return sum(weight.nbytes for weight in weights)
