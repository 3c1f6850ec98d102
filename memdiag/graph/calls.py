"""How often each function of a model ends up in its graph: the runtime inlines every call."""

from collections import defaultdict
from collections.abc import Iterable

from memdiag.graph.bodies import Body, FunctionKey, Node

MOST_CALLS = 1_000_000


def inlined_calls(graph: Body, functions: Iterable[Body]) -> dict[str, int]:
    """Return by function, named ``domain::name``, how often its body is inlined; at most a million.

    Functions that call each other in a circle, which no runtime can inline, count as not called;
    overloads of one name count together.
    """
    bodies = {one.key: one for one in functions}
    if not bodies:
        return {}
    calls = {key: _calls(function.nodes, bodies.keys()) for key, function in bodies.items()}
    waiting: dict[FunctionKey, int] = defaultdict(int)
    for callees in calls.values():
        for callee in callees:
            waiting[callee] += 1
    counts: dict[FunctionKey, int] = dict.fromkeys(bodies, 0)
    for callee, times in _calls(graph.nodes, bodies.keys()).items():
        counts[callee] = min(times, MOST_CALLS)
    ready = [key for key in bodies if not waiting[key]]
    done: set[FunctionKey] = set()
    while ready:
        caller = ready.pop()
        done.add(caller)
        for callee, times in calls[caller].items():
            counts[callee] = min(counts[callee] + times * counts[caller], MOST_CALLS)
            waiting[callee] -= 1
            if not waiting[callee]:
                ready.append(callee)
    found: dict[str, int] = defaultdict(int)
    for key in bodies:
        found[f"{key[0]}::{key[1]}"] += counts[key] if key in done else 0
    return dict(found)


def _calls(nodes: Iterable[Node], functions: Iterable[FunctionKey]) -> dict[FunctionKey, int]:
    """Return how often `nodes`, and those in their subgraphs, call each function."""
    known = frozenset(functions)
    found: dict[FunctionKey, int] = defaultdict(int)
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node.key in known:
            found[node.key] += 1
        for inner in node.bodies:
            pending += inner.body.nodes
    return found
