"""How often each function of a model ends up in its graph: the runtime inlines every call."""

from collections import defaultdict
from collections.abc import Iterable

from onnx import ModelProto, NodeProto

from memdiag.graph.weights import subgraphs

_Key = tuple[str, str, str]
MOST_CALLS = 1_000_000


def inlined_calls(model: ModelProto) -> dict[str, int]:
    """Return by function, named ``domain::name``, how often its body is inlined; at most a million.

    Functions that call each other in a circle, which no runtime can inline, count as not called;
    overloads of one name count together.
    """
    bodies = {(one.domain, one.name, one.overload): one for one in model.functions}
    if not bodies:
        return {}
    calls = {key: _calls(function.node, bodies.keys()) for key, function in bodies.items()}
    waiting: dict[_Key, int] = defaultdict(int)
    for callees in calls.values():
        for callee in callees:
            waiting[callee] += 1
    counts: dict[_Key, int] = dict.fromkeys(bodies, 0)
    for callee, times in _calls(model.graph.node, bodies.keys()).items():
        counts[callee] = min(times, MOST_CALLS)
    ready = [key for key in bodies if not waiting[key]]
    done: set[_Key] = set()
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


def _calls(nodes: Iterable[NodeProto], functions: Iterable[_Key]) -> dict[_Key, int]:
    """Return how often `nodes`, and those in their subgraphs, call each function."""
    known = frozenset(functions)
    found: dict[_Key, int] = defaultdict(int)
    pending = list(nodes)
    while pending:
        node = pending.pop()
        key = (node.domain, node.op_type, node.overload)
        if key in known:
            found[key] += 1
        for _, body in subgraphs(node):
            pending += body.node
    return found
