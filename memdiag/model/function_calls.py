"""Number of times that a model calls each of its functions, directly and through others."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from memdiag.model.graph_index import MAX_CALL_DEPTH, FunctionKey, Graph, Node, function_path

MAX_INLINED_CALLS = 1_000_000


def inlined_calls(graph: Graph, functions: Iterable[Graph]) -> dict[str, int]:
    """Return how often each function is inlined, by its path; at most `MAX_INLINED_CALLS`.

    Functions that call each other in a circle, which no runtime can inline, count as not called.
    """
    by_key = {function.key: function for function in functions}
    if not by_key:
        return {}
    calls = {key: _direct_call_counts(function.nodes, by_key) for key, function in by_key.items()}
    waiting: dict[FunctionKey, int] = defaultdict(int)
    for callees in calls.values():
        for callee in callees:
            waiting[callee] += 1
    counts: dict[FunctionKey, int] = dict.fromkeys(by_key, 0)
    for callee, times in _direct_call_counts(graph.nodes, by_key).items():
        counts[callee] = min(times, MAX_INLINED_CALLS)
    ready = [key for key in by_key if not waiting[key]]
    done: set[FunctionKey] = set()
    while ready:
        caller = ready.pop()
        done.add(caller)
        for callee, times in calls[caller].items():
            counts[callee] = min(counts[callee] + times * counts[caller], MAX_INLINED_CALLS)
            waiting[callee] -= 1
            if not waiting[callee]:
                ready.append(callee)
    return {function_path(key): counts[key] if key in done else 0 for key in by_key}


def called_functions(
    nodes: Iterable[Node], functions: Mapping[FunctionKey, Graph]
) -> dict[FunctionKey, Graph]:
    """Return the functions that `nodes` and the nodes of subgraphs call directly or
    indirectly."""
    called: dict[FunctionKey, Graph] = {}
    pending = list(_direct_call_counts(nodes, functions))
    while pending:
        key = pending.pop()
        if key not in called:
            called[key] = functions[key]
            pending += _direct_call_counts(called[key].nodes, functions)
    return called


def inlined_node_count(graph: Graph, functions: Iterable[Graph], limit: int) -> int:
    """Return the number of nodes of `graph` after inlining all calls; above `limit` if endless.

    A call counts as a node as well. The result is not exact above `limit`.
    """
    by_key = {function.key: function for function in functions}
    calls = {key: _direct_call_counts(function.nodes, by_key) for key, function in by_key.items()}
    total = dict.fromkeys(by_key, 0)
    # As often as calls may be nested; if the numbers still grow then, they grow without end.
    for _ in range(MAX_CALL_DEPTH + 1):
        before = total
        total = {
            key: min(_inlined_nodes(by_key[key], inner, before), limit + 1)
            for key, inner in calls.items()
        }
        if total == before:
            return _inlined_nodes(graph, _direct_call_counts(graph.nodes, by_key), total)
    return limit + 1


def _inlined_nodes(
    function: Graph, calls: Mapping[FunctionKey, int], inside: Mapping[FunctionKey, int]
) -> int:
    return function.node_count + sum(times * inside[key] for key, times in calls.items())


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
