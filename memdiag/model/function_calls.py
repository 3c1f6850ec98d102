"""Number of times that a model calls each of its functions, directly and through others."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from memdiag.model.graph_index import MAX_CALL_DEPTH, FunctionKey, Graph, Node, function_path

MAX_INLINED_CALLS = 1_000_000


def inlined_calls(graph: Graph, functions: Iterable[Graph]) -> dict[str, int]:
    """Return how often each function is inlined, by its path; at most `MAX_INLINED_CALLS`.

    Functions that call each other in a circle, which no runtime can inline, count as not called.
    """
    functions_by_key = {function.key: function for function in functions}
    if not functions_by_key:
        return {}
    calls_by_caller = {
        key: _direct_call_counts(function.nodes, functions_by_key)
        for key, function in functions_by_key.items()
    }
    pending_callers: dict[FunctionKey, int] = defaultdict(int)
    for callees in calls_by_caller.values():
        for callee in callees:
            pending_callers[callee] += 1
    counts: dict[FunctionKey, int] = dict.fromkeys(functions_by_key, 0)
    for callee, times in _direct_call_counts(graph.nodes, functions_by_key).items():
        counts[callee] = min(times, MAX_INLINED_CALLS)
    ready = [key for key in functions_by_key if not pending_callers[key]]
    counted: set[FunctionKey] = set()
    while ready:
        caller = ready.pop()
        counted.add(caller)
        for callee, times in calls_by_caller[caller].items():
            counts[callee] = min(counts[callee] + times * counts[caller], MAX_INLINED_CALLS)
            pending_callers[callee] -= 1
            if not pending_callers[callee]:
                ready.append(callee)
    return {function_path(key): counts[key] if key in counted else 0 for key in functions_by_key}


def called_functions(
    nodes: Iterable[Node], functions: Mapping[FunctionKey, Graph]
) -> dict[FunctionKey, Graph]:
    """Return the functions that `nodes` and the nodes of subgraphs call directly or
    indirectly."""
    functions_by_key: dict[FunctionKey, Graph] = {}
    pending = list(_direct_call_counts(nodes, functions))
    while pending:
        key = pending.pop()
        if key not in functions_by_key:
            functions_by_key[key] = functions[key]
            pending += _direct_call_counts(functions_by_key[key].nodes, functions)
    return functions_by_key


def inlined_node_count(graph: Graph, functions: Iterable[Graph], limit: int) -> int:
    """Return the number of nodes of `graph` after inlining all calls; above `limit` if endless.

    A call also counts as a node. The result is not exact above `limit`.
    """
    functions_by_key = {function.key: function for function in functions}
    calls_by_caller = {
        key: _direct_call_counts(function.nodes, functions_by_key)
        for key, function in functions_by_key.items()
    }
    node_counts = dict.fromkeys(functions_by_key, 0)
    # As many rounds as calls may be nested: if the numbers still grow then, they never stop.
    for _ in range(MAX_CALL_DEPTH + 1):
        previous = node_counts
        node_counts = {
            key: min(_inlined_nodes(functions_by_key[key], calls, previous), limit + 1)
            for key, calls in calls_by_caller.items()
        }
        if node_counts == previous:
            calls = _direct_call_counts(graph.nodes, functions_by_key)
            return _inlined_nodes(graph, calls, node_counts)
    return limit + 1


def _inlined_nodes(
    function: Graph, calls: Mapping[FunctionKey, int], node_counts: Mapping[FunctionKey, int]
) -> int:
    return function.node_count + sum(times * node_counts[key] for key, times in calls.items())


def _direct_call_counts(
    nodes: Iterable[Node], functions: Collection[FunctionKey]
) -> dict[FunctionKey, int]:
    """Return how often each function is called directly by `nodes` and nodes in their subgraphs."""
    counts: dict[FunctionKey, int] = defaultdict(int)
    for node in nodes if functions else ():
        if node.key in functions:
            counts[node.key] += 1
        for inner in node.subgraphs:
            for key, count in _direct_call_counts(inner.graph.nodes, functions).items():
                counts[key] += count
    return counts
