"""The most memory that the activations of a run take at once, by simulating the nodes in order.

Nodes are put in the order in which onnxruntime executes them: its GraphViewer's depth-first walk up
from the nodes whose outputs nothing reads. Their values are in buffers that its allocation planner
shares (see `buffer_plan`); an output of a graph is allocated to the end. Subgraphs count at their
node, and the body of a function like a subgraph. Of the branches of an If, the branch that runs
counts, or the larger one if the sizes do not decide that. A Loop counts as its largest iteration,
with the values that it also keeps (`LoopValues`).

`ActivationPeak` counts values only. The requests of a `SimulatedRun` to the arena also have the
working memory of kernels (`scratch`). Inputs are not counted: the caller allocates them.
"""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import nlargest
from itertools import chain, count
from operator import attrgetter
from typing import NamedTuple

from memdiag.errors import UsageError
from memdiag.model.axis_roles import axis_roles, total_lengths
from memdiag.model.count_inputs import free_axes
from memdiag.model.dimensions import choose_sizes, unsized_axes
from memdiag.model.graph_index import FunctionKey, GraphIndex, Node, Scope
from memdiag.model.model_file import ModelFile
from memdiag.model.shapes import ModelShapes, infer_shapes
from memdiag.model.tensor_types import TensorType
from memdiag.ort.arena import ArenaRequest, planned_block
from memdiag.ort.buffer_plan import BufferPlan, ValueBuffer
from memdiag.ort.channels_last import move_channels_last
from memdiag.ort.constant_folding import Folds, fold_constants
from memdiag.ort.executed_graph import (
    ExecutedGraph,
    ExecutedNode,
    GraphRewrites,
    form_of,
    name_in_model,
    unoptimized_node,
)
from memdiag.ort.fusions import ActivationFusions, becomes_gemm
from memdiag.ort.half_precision import HalfPrecision
from memdiag.ort.packed_dequantization import PackedDequantization
from memdiag.ort.prepacking import NCHWC_BLOCK
from memdiag.ort.quantized_graph import rewrite_quantized
from memdiag.ort.releases import NEWEST_MEASURED_RELEASE
from memdiag.ort.runtime import Runtime
from memdiag.ort.scratch import (
    BEFORE_OUTPUT_OPERATORS,
    ScratchSizes,
    heap_bytes,
    scratch_bytes,
)
from memdiag.ort.widened_graph import widen_halves

MAX_LIVE_VALUES = 20
"""Maximum number of values in `ActivationPeak.live`."""

MAX_SIMULATED_CALLS = 10_000
"""Subgraphs and calls of functions that are executed in a simulated run; others take nothing."""

MAX_EARLIER_ITERATIONS = 64
"""Iterations, evenly spread, that are simulated before the last one of a loop that grows."""

MAX_KEPT_REQUESTS = 500
"""Outputs of further iterations of a loop that have chunks of their own in a simulated run."""

USUAL_EARLIER_ITERATIONS = 2
"""Iterations that are simulated before the last one of other loops. After these, the places in
memory of their values repeat."""

MAX_SIMULATED_DEPTH = 50
"""Subgraphs and functions inside each other; only functions that call each other get there."""


class DimensionSizes(NamedTuple):
    """A size for each free dimension of a model's inputs.

    Attributes:
        by_name: the sizes by name.
        assumed: the names of the dimensions whose sizes the user did not give.
    """

    by_name: Mapping[str, int]
    assumed: tuple[str, ...]


class LiveValue(NamedTuple):
    """A value in memory.

    Attributes:
        scope: the scope that computes it.
        name: its name.
        nbytes: its size.
        kind: its type in memory if it differs from its type in the model; None if it is the same.
        form: what distinguishes it from the value itself, such as ``in blocks``; empty without it.
    """

    scope: Scope
    name: str
    nbytes: int
    kind: TensorType | None = None
    form: str = ""


class ActivationPeak(NamedTuple):
    """The most memory that activations take at once.

    Attributes:
        peak_bytes: the bytes.
        scope, node: the node that is executed then; None where nothing takes memory.
        live: the values in memory then, the largest first, at most `MAX_LIVE_VALUES`.
        largest: the largest of all values.
        unknown: the number of values of unknown size, which count as nothing.
    """

    peak_bytes: int
    scope: Scope | None
    node: Node | None
    live: tuple[LiveValue, ...]
    largest: LiveValue | None
    unknown: int


class LoopValues(NamedTuple):
    """The values that a Loop keeps in addition to the values of its iteration.

    Its kernel copies the state after the last iteration, and the outputs of all iterations, into
    its own outputs.

    Attributes:
        kept: the state before the last iteration, and the outputs of the iterations before it.
        results: the outputs of the last iteration.
        stacked_names: the names of the outputs of all iterations that are stacked.
    """

    kept: tuple[LiveValue, ...]
    results: tuple[LiveValue, ...]
    stacked_names: frozenset[str]


_value_nbytes = attrgetter("nbytes")
_NO_ACTIVATION = ActivationPeak(0, None, None, (), None, 0)
_NOT_FOLLOWED_PEAK = _NO_ACTIVATION._replace(unknown=1)


def choose_dimensions(model_file: ModelFile, user_sizes: Mapping[str, int]) -> DimensionSizes:
    """Return sizes for the free dimensions of the model's inputs: `user_sizes`, or realistic ones.

    Names in `user_sizes` that the model does not have are ignored: they may be another model's.
    """
    inputs = free_axes(model_file.graph)
    free_keys = {axis.key for axis in unsized_axes(inputs)}
    dims = {key: size for key, size in user_sizes.items() if key in free_keys and size >= 0}
    try:
        roles = axis_roles(model_file.graph, model_file.functions)
        sizes = choose_sizes(
            inputs,
            dims=dims,
            given={},
            free_dim=1,
            usual={key: role.size for key, role in roles.items()},
            totals=total_lengths(inputs, roles),
        )
    except UsageError:  # two inputs of one name and different shapes
        return DimensionSizes({}, ())
    return DimensionSizes(sizes, tuple(sorted(free_keys - dims.keys())))


def activation_bytes(model_file: ModelFile, sizes: Mapping[str, int]) -> int:
    """Return about how many bytes the activations of `model_file` take at once at `sizes`."""
    graphs = GraphIndex(model_file)
    shapes = infer_shapes(model_file, graphs, sizes, [])
    # Any release serves for an estimate, and none needs to be installed here.
    optimizes = not model_file.is_ort_format
    folds = fold_constants(graphs, shapes, NEWEST_MEASURED_RELEASE) if optimizes else Folds(())
    run = simulate_run(graphs, shapes, folds, declared=shapes, optimizes=optimizes)
    return run.peak.peak_bytes


def total_value_bytes(
    graphs: GraphIndex, shapes: ModelShapes, sizes: Mapping[str, int]
) -> int | None:
    """Return the bytes of all computed values together at `sizes`: their peak is not higher.

    Return None if the size of a value is not known by the symbols of its type.
    """
    total = 0
    nbytes_by_type: dict[int, int | None] = {}  # most values have one of a few types
    for _, scope in graphs:
        types = shapes.of_scope(scope)
        for node in scope.nodes:
            for name in node.output if node.op_type != "Constant" else ():
                kind = types.get(name)
                if kind is None:
                    if name:
                        return None
                    continue
                key = id(kind)
                if key not in nbytes_by_type:
                    nbytes_by_type[key] = shapes.nbytes_at(kind, sizes)
                nbytes = nbytes_by_type[key]
                if nbytes is None:
                    return None
                total += nbytes
    return total


class LaterRun(NamedTuple):
    """The requests of a run whose shapes have occurred before, as in `SimulatedRun`."""

    requests: tuple[ArenaRequest, ...]
    heap: tuple[tuple[int, int], ...]


class SimulatedRun(NamedTuple):
    """A simulated run: its peak, and its requests to the arena.

    Attributes:
        peak: the most memory that its values take at once.
        requests: its requests to the arena, in order. Values of subgraphs, working memory of
            kernels and the outputs of the model have no place in the block that later runs take.
        steps: the executed nodes with their graphs, in order: those of a subgraph after the node
            that contains it.
        heap: the bytes that kernels take from malloc while they run, each with the number of
            requests before it.
        later: a later run, in which each subgraph has a block of its own.
    """

    peak: ActivationPeak
    requests: tuple[ArenaRequest, ...]
    steps: tuple[tuple[Scope, Node], ...]
    heap: tuple[tuple[int, int], ...]
    later: LaterRun


def simulate_run(
    graphs: GraphIndex,
    shapes: ModelShapes,
    folds: Folds,
    *,
    declared: ModelShapes | None = None,
    runtime: Runtime = NEWEST_MEASURED_RELEASE,
    block: int = NCHWC_BLOCK,
    optimizes: bool = True,
    in_fp32: bool = False,
    scratch: ScratchSizes = scratch_bytes,
) -> SimulatedRun:
    """Return the simulation of one run of a model.

    Args:
        graphs: the model.
        shapes: the types of its values at certain sizes of the free dimensions.
        folds: the folded nodes, which are not executed.
        declared: the types without the given sizes; from `shapes` by default.
        runtime: the release.
        block: the channels of a block of convolutions.
        optimizes: whether the runtime optimizes the graph; it does not for a file in ORT format.
        in_fp32: whether the values of float16 between inputs and outputs are fp32 instead.
        scratch: returns the working memory that a kernel takes from the arena.
    """
    declared = declared or shapes.as_declared
    arguments = (graphs, shapes, declared, folds, runtime, block, optimizes, in_fp32, scratch)
    simulation = _RunSimulation(*arguments)
    peak = simulation.peak_of(graphs.main, 0)
    first_run = later_run = _split_requests(simulation.requests_of(graphs.main, _Execution()))
    steps = tuple(simulation.steps)
    if any(scope.parent is not None for scope, _ in steps):
        simulation = _RunSimulation(*arguments)
        repeated = _Execution(is_repeated=True)
        later_run = _split_requests(simulation.requests_of(graphs.main, repeated))
    return SimulatedRun(peak, first_run.requests, steps, first_run.heap, later_run)


def _split_requests(requests: Iterable[ArenaRequest]) -> LaterRun:
    """Return the requests to the arena and the requests to malloc, separately."""
    arena_requests: list[ArenaRequest] = []
    heap: list[tuple[int, int]] = []
    for request in requests:
        if request.is_heap:
            heap.append((len(arena_requests), request.nbytes))
        else:
            arena_requests.append(request)
    return LaterRun(tuple(arena_requests), tuple(heap))


def executed_nodes(
    graphs: GraphIndex,
    shapes: ModelShapes,
    folds: Folds,
    runtime: Runtime,
    block: int = NCHWC_BLOCK,
) -> list[ExecutedNode]:
    """Return the nodes of the main graph that `runtime` executes, in order.

    `block` is the number of channels of a block of convolutions.
    """
    simulation = _RunSimulation(graphs, shapes, shapes.as_declared, folds, runtime, block)
    return simulation.nodes_of(graphs.main)


class _Execution(NamedTuple):
    """How a graph is executed in a simulated run.

    Attributes:
        depth: the number of graphs around it.
        share: below 1 in an earlier iteration of a loop that grows: the sizes are between those
            of the first iteration and those of the last.
        is_last: whether no iteration of a loop around it follows: the nodes of earlier iterations
            are not steps of their own.
        is_repeated: whether it has run with the same shapes before, so that subgraphs take a
            block for their planned values.
    """

    depth: int = 0
    share: float = 1.0
    is_last: bool = True
    is_repeated: bool = False


class _RunSimulation:
    """One simulated run of a model. The body of a function is simulated once.

    Attributes:
        steps: the nodes that `requests_of` executed so far, with their graphs.
    """

    def __init__(
        self,
        graphs: GraphIndex,
        shapes: ModelShapes,
        declared: ModelShapes,
        folds: Folds,
        runtime: Runtime,
        block: int,
        optimizes: bool = True,
        in_fp32: bool = False,
        scratch: ScratchSizes = scratch_bytes,
    ) -> None:
        self._in_fp32, self._scratch_of = in_fp32, scratch
        self._graphs, self._runtime, self._block = graphs, runtime, block
        self._optimizes = optimizes
        self._shapes, self._declared = shapes, declared
        self._folds = folds
        # `graphs` and `shapes` have only the first call of each function.
        self._functions: dict[FunctionKey, Scope] = {
            scope.owner.key: scope
            for _, scope in graphs
            if scope.is_function and scope.owner is not None
        }
        self._peaks: dict[Scope, ActivationPeak] = {}
        self._keys = count()
        self._plans: dict[Scope, _GraphPlan] = {}
        self._calls_left = MAX_SIMULATED_CALLS
        self._captured: dict[Scope, tuple[str, ...]] = {}
        self._packed = PackedDequantization(graphs, declared, runtime)
        self.steps: list[tuple[Scope, Node]] = []

    def peak_of(self, scope: Scope, depth: int) -> ActivationPeak:
        """Return the peak of the graph `scope`, with all that is inside its nodes."""
        if scope not in self._peaks:
            self._peaks[scope] = _NOT_FOLLOWED_PEAK  # for a function that calls itself
            if depth <= MAX_SIMULATED_DEPTH:
                self._peaks[scope] = self._simulated_peak(scope, depth)
        return self._peaks[scope]

    def _is_computed(self, scope: Scope) -> bytearray:
        """Return for each node of `scope` whether it is executed in each run."""
        folded = self._folds.nodes
        return bytearray(
            node.op_type != "Constant"
            and not (node in folded and self._folds.is_folded(scope, node))
            for node in scope.nodes
        )

    def _inner_scopes(self, scope: Scope, node: Node | None) -> Sequence[Scope]:
        """Return the graphs inside `node`: its subgraphs, or the function that it calls."""
        if node is None:
            return ()
        if not node.subgraphs and not self._functions:
            return ()
        runs = self._shapes.runs
        inner = [graph for graph in scope.subgraphs.get(node, ()) if runs.get(graph, 1)]
        function = self._functions.get(node.key)
        return (*inner, function) if function is not None else inner

    def _loop_values(self, node: Node | None, inner: Sequence[Scope]) -> LoopValues | None:
        """Return what `node` keeps if it is a Loop that runs its body `inner`."""
        if node is None or not node.is_onnx or node.op_type != "Loop" or len(inner) != 1:
            return None
        body, types = inner[0], self._shapes.of_scope(inner[0])

        def values(names: Sequence[str], times: int = 1) -> tuple[LiveValue, ...]:
            named_types = ((name, types.get(name)) for name in names if times)
            return tuple(
                LiveValue(body, name, times * nbytes)
                for name, kind in named_types
                if kind is not None and (nbytes := kind.nbytes)
            )

        count = self._shapes.runs.get(body)
        # The first iteration reads the values that the Loop is given.
        state = values(body.inputs[2:]) if count != 1 else ()
        stacked = body.outputs[1 + len(node.input[2:]) :]
        earlier_count = 0 if count is None else count - 1
        kept_values = (*state, *values(stacked, earlier_count))
        return LoopValues(kept_values, values(body.outputs[1:]), frozenset(stacked))

    def _names_read(self, scope: Scope, node: Node) -> tuple[str, ...]:
        """Return the names that `node` reads, also in its subgraphs, each once."""
        names = dict.fromkeys(node.input)
        if not node.subgraphs and "" not in names:
            return node.input if len(names) == len(node.input) else tuple(names)
        names.pop("", None)
        for subgraph in scope.subgraphs.get(node, ()):
            names |= dict.fromkeys(self._captured_names(subgraph))
        return tuple(names)

    def _captured_names(self, subgraph: Scope) -> tuple[str, ...]:
        """Return the names from outside that `subgraph` reads or outputs, in order."""
        if subgraph not in self._captured:
            names = chain.from_iterable(self._names_read(subgraph, node) for node in subgraph.nodes)
            outer = (
                name for name in chain(names, subgraph.outputs) if not subgraph.graph.defines(name)
            )
            self._captured[subgraph] = tuple(dict.fromkeys(outer))
        return self._captured[subgraph]

    def requests_of(self, scope: Scope, execution: _Execution) -> Iterator[ArenaRequest]:
        """Yield the requests of one run of `scope`, with those of all that is inside its nodes."""
        nodes, plan, types = self._graph_plan(scope)
        may_plan = not execution.depth or (execution.is_repeated and not scope.is_function)
        requests_by_step: dict[int, list[ArenaRequest]] = defaultdict(list)
        freeing_by_step: dict[int, list[ArenaRequest]] = defaultdict(list)
        for buffer in plan.buffers:
            request = ArenaRequest(
                next(self._keys),
                self._nbytes_at(scope, buffer, execution.share),
                is_planned=may_plan and buffer.last < len(nodes),
                name=buffer.name,
            )
            requests_by_step[buffer.first].append(request)
            freeing_by_step[buffer.last].append(request._replace(name=""))
        for step, node in enumerate(nodes):
            if execution.is_last:
                self.steps.append((scope, node.source))
            last_step = len(self.steps) - 1
            outputs = [request._replace(step=last_step) for request in requests_by_step[step]]
            yield from self._node_requests(scope, node, types, outputs, execution)
            yield from self._freeing_requests(freeing_by_step[step])
        yield from self._freeing_requests(freeing_by_step[len(nodes)])

    def _node_requests(
        self,
        scope: Scope,
        node: ExecutedNode,
        types: Mapping[str, TensorType],
        outputs: list[ArenaRequest],
        execution: _Execution,
    ) -> Iterator[ArenaRequest]:
        """Yield the requests of `node` for its `outputs`, its kernel and the graphs inside it."""
        share = execution.share
        scratch = [
            ArenaRequest(
                next(self._keys),
                max(1, round(share * size)),
                is_planned=False,
                is_scratch=True,
                step=len(self.steps) - 1,
            )
            for size in self._scratch_of(node, types, self._shapes.opset)
        ]
        is_before_output = node.op_type in BEFORE_OUTPUT_OPERATORS
        yield from scratch if is_before_output else ()
        source = node.source if node.is_of_model else None
        inner_scopes = self._inner_scopes(scope, source)
        loop = self._loop_values(source, inner_scopes)
        if loop is not None:
            yield from self._loop_requests(loop, inner_scopes[0], outputs, execution)
        else:
            yield from outputs
            for inner in inner_scopes:
                yield from self._requests_inside(inner, execution)
        if not is_before_output:
            yield from (request._replace(step=len(self.steps) - 1) for request in scratch)
        heap_nbytes = round(share * heap_bytes(node, types))
        if heap_nbytes:
            yield ArenaRequest(-1, heap_nbytes, is_planned=False, is_heap=True)
        yield from self._freeing_requests(scratch)

    def _requests_inside(self, inner: Scope, execution: _Execution) -> Iterator[ArenaRequest]:
        if execution.depth < MAX_SIMULATED_DEPTH and self._calls_left > 0:
            self._calls_left -= 1
            requests = self.requests_of(inner, execution._replace(depth=execution.depth + 1))
            has_block = execution.is_repeated
            yield from self._requests_in_block(list(requests)) if has_block else requests

    def _requests_in_block(self, requests: list[ArenaRequest]) -> Iterator[ArenaRequest]:
        """Yield `requests` of a subgraph with one block for all that are planned."""
        nbytes = planned_block(requests)
        if not nbytes:
            yield from requests
            return
        block = ArenaRequest(next(self._keys), nbytes, is_planned=False, step=requests[0].step)
        yield block
        yield from (request for request in requests if not request.is_planned)
        yield block._replace(nbytes=0, step=requests[-1].step)

    def _loop_requests(
        self, loop: LoopValues, body: Scope, outputs: list[ArenaRequest], execution: _Execution
    ) -> Iterator[ArenaRequest]:
        """Yield the requests of a Loop, whose outputs are filled after its iterations.

        The outputs of an iteration stay between the chunks of its other values, and so divide the
        memory of the next iteration. The state stays until the next iteration has ended. The state
        before the last iteration and the stacked outputs stay to the end. If values grow, chunks of
        earlier iterations are too small for later iterations.
        """
        iterations = self._shapes.runs.get(body, 1 + USUAL_EARLIER_ITERATIONS)
        is_growing = body in self._shapes.first_iterations
        limit = MAX_EARLIER_ITERATIONS if is_growing else USUAL_EARLIER_ITERATIONS
        earlier_count = min(iterations - 1, limit)
        skipped = iterations - 1 - earlier_count
        step = len(self.steps) - 1
        state: list[ArenaRequest] = []
        kept_requests = [  # the number of the iteration, and the condition
            ArenaRequest(next(self._keys), nbytes, is_planned=False, is_scratch=True, step=step)
            for nbytes in (8, 1)
        ]
        yield from kept_requests
        for index in range(earlier_count + 1):
            is_end = index == earlier_count
            share = execution.share
            iteration = execution._replace(
                share=share * index / earlier_count if is_growing and not is_end else share,
                is_last=execution.is_last and is_end,
                is_repeated=execution.is_repeated or (index > 0 and not is_growing),
            )
            results = yield from self._iteration_requests(body, iteration)
            stacked_requests = [
                request for request in results if name_in_model(request.name) in loop.stacked_names
            ]
            state_before = state
            state = [request for request in results if request not in stacked_requests]
            if is_end:
                kept_requests += state_before
            else:
                yield from self._freeing_requests(state_before)
                # This many iterations that are not simulated follow.
                times = (index + 1) * skipped // earlier_count - index * skipped // earlier_count
                repeated_requests = [
                    repeated_request
                    for request in stacked_requests
                    for repeated_request in self._repeated_requests(request, times)
                ]
                yield from repeated_requests
                kept_requests += repeated_requests
            kept_requests += stacked_requests
        yield from outputs
        yield from self._freeing_requests([*state, *kept_requests])

    def _iteration_requests(
        self, body: Scope, iteration: _Execution
    ) -> Generator[ArenaRequest, None, list[ArenaRequest]]:
        """Yield the requests of an iteration; return those for its outputs, which it leaves."""
        outputs_by_key: dict[int, ArenaRequest] = {}
        for request in self._requests_inside(body, iteration):
            if request.nbytes and name_in_model(request.name) in body.output_names:
                outputs_by_key[request.key] = request
            if request.nbytes or request.key not in outputs_by_key:
                yield request
        return list(outputs_by_key.values())

    def _repeated_requests(self, request: ArenaRequest, times: int) -> Iterator[ArenaRequest]:
        """Yield `times` further requests like `request`, or fewer larger requests."""
        for start in range(0, times, group := 1 + times // MAX_KEPT_REQUESTS):
            nbytes = min(group, times - start) * request.nbytes
            yield request._replace(key=next(self._keys), nbytes=nbytes)

    def _freeing_requests(self, requests: Iterable[ArenaRequest]) -> Iterator[ArenaRequest]:
        step = len(self.steps) - 1
        return (request._replace(nbytes=0, step=step) for request in requests)

    def _nbytes_at(self, scope: Scope, value: ValueBuffer | LiveValue, share: float) -> int:
        """Return the bytes of a value in an earlier iteration of a loop, at least 1."""
        first = self._shapes.first_iterations.get(scope, {}).get(name_in_model(value.name))
        if share == 1 or first is None or first.nbytes is None:
            return value.nbytes
        return max(1, round(first.nbytes + share * (value.nbytes - first.nbytes)))

    def nodes_of(self, scope: Scope) -> list[ExecutedNode]:
        return self._graph_plan(scope).nodes

    def _graph_plan(self, scope: Scope) -> "_GraphPlan":
        """Return the nodes of `scope` in the order in which they run, and their buffers."""
        if scope not in self._plans:
            self._plans[scope] = self._make_graph_plan(scope)
        return self._plans[scope]

    def _make_graph_plan(self, scope: Scope) -> "_GraphPlan":
        is_computed = self._is_computed(scope)
        is_packed = partial(self._packed.includes, scope)
        type_of = partial(self._shapes.of, scope)
        types, axes = self._shapes.of_scope(scope), self._declared.axes_of_scope(scope)
        halves = HalfPrecision(
            scope, is_computed, type_of, self._shapes.opset, is_packed, in_fp32=self._in_fp32
        )
        fusions = ActivationFusions(
            scope,
            is_computed,
            type_of,
            partial(becomes_gemm, self._graphs, self._declared, scope),
            axes,
            halves.is_fused,
            fuses=self._optimizes,
        )
        rewrites = GraphRewrites(
            partial(widen_halves, halves=halves),
            partial(rewrite_quantized, removes=fusions.removes, is_packed=is_packed),
            move_channels_last,
        )
        nodes = [
            unoptimized_node(node, self._names_read(scope, node))
            for node in scope.nodes
            if is_computed[node.index] and any(node.output)
        ]
        graph = ExecutedGraph(
            self._graphs,
            self._runtime,
            scope,
            nodes,
            types,
            axes,
            fusions,
            rewrites,
            optimizes=self._optimizes,
            block=self._block,
        )
        nodes = graph.in_order()
        return _GraphPlan(nodes, BufferPlan(scope, nodes, graph.types, graph.axes), graph.types)

    def _simulated_peak(self, scope: Scope, depth: int) -> ActivationPeak:
        """Execute the nodes of `scope` one by one, and return the peak."""
        nodes, plan, types = self._graph_plan(scope)
        allocated = _RunningTotal(plan.buffers, attrgetter("first"))
        freed = _RunningTotal(sorted(plan.buffers, key=attrgetter("last")), attrgetter("last"))
        largest = max(
            (_live_value(scope, buffer, types) for buffer in plan.buffers),
            key=_value_nbytes,
            default=None,
        )
        unknown, in_use, peak_bytes = plan.unknown, 0, 0
        step_of_peak: tuple[int, ActivationPeak] | None = None
        for step, node in enumerate(nodes):
            source = node.source if node.is_of_model else None
            inner_scopes = self._inner_scopes(scope, source)
            peaks = [self.peak_of(inner_scope, depth + 1) for inner_scope in inner_scopes]
            inner = max([_NO_ACTIVATION, *peaks], key=attrgetter("peak_bytes"))
            unknown += sum(peak.unknown for peak in peaks)
            values = filter(None, (largest, *(peak.largest for peak in peaks)))
            largest = max(values, key=_value_nbytes, default=None)
            in_use -= freed.bytes_until(step - 1)
            new_bytes = allocated.bytes_until(step)
            loop = self._loop_values(source, inner_scopes)
            if loop is not None:
                outputs = tuple(
                    LiveValue(scope, name_in_model(buffer.name), buffer.nbytes)
                    for buffer in plan.buffers
                    if buffer.first == step
                )
                inner = _peak_of_loop(loop, inner, outputs)
            bytes_at_step = in_use + max(new_bytes, inner.peak_bytes)
            in_use += new_bytes
            if bytes_at_step > peak_bytes:
                peak_bytes = bytes_at_step
                step_of_peak = step, inner if bytes_at_step > in_use else _NO_ACTIVATION
        if step_of_peak is None:
            return _NO_ACTIVATION._replace(largest=largest, unknown=unknown)
        step, inner = step_of_peak
        live_in_graph = (
            _live_value(scope, buffer, types)
            for buffer in plan.buffers
            if buffer.first <= step <= buffer.last and (buffer.first < step or not inner.live)
        )
        live = nlargest(MAX_LIVE_VALUES, chain(live_in_graph, inner.live), key=_value_nbytes)
        return ActivationPeak(peak_bytes, scope, nodes[step].source, tuple(live), largest, unknown)


def _live_value(scope: Scope, buffer: ValueBuffer, types: Mapping[str, TensorType]) -> LiveValue:
    name = buffer.name
    return LiveValue(scope, name_in_model(name), buffer.nbytes, types.get(name), form_of(name))


def _peak_of_loop(
    loop: LoopValues, iteration: ActivationPeak, outputs: tuple[LiveValue, ...]
) -> ActivationPeak:
    """Return the peak of a Loop, in an iteration or when its outputs are filled."""
    while_running = sum(map(_value_nbytes, loop.kept)) + iteration.peak_bytes
    copied = (*loop.kept, *loop.results, *outputs)
    if while_running >= sum(map(_value_nbytes, copied)):
        live = (*loop.kept, *iteration.live)
        return iteration._replace(peak_bytes=while_running, live=live)
    return iteration._replace(peak_bytes=sum(map(_value_nbytes, copied)), live=copied)


class _GraphPlan(NamedTuple):
    """The executed nodes of a graph in order, the buffers of their values, and their types."""

    nodes: list[ExecutedNode]
    buffers: BufferPlan
    types: Mapping[str, TensorType]


class _RunningTotal:
    """Sum of the sizes of `buffers`, which are sorted by the step that `step_of` returns."""

    def __init__(
        self, buffers: Iterable[ValueBuffer], step_of: Callable[[ValueBuffer], int]
    ) -> None:
        self._remaining = iter(buffers)
        self._step_of = step_of
        self._next_buffer = next(self._remaining, None)

    def bytes_until(self, step: int) -> int:
        """Return the bytes of the buffers up to `step` that no earlier call returned."""
        total = 0
        while self._next_buffer is not None and self._step_of(self._next_buffer) <= step:
            total += self._next_buffer.nbytes
            self._next_buffer = next(self._remaining, None)
        return total
