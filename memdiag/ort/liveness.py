"""How much memory a run's activations take at most: what is held while each node is computed.

Nodes come in the order in which the runtime executes them: its GraphViewer's depth-first walk up
from the nodes that nobody reads. Their values lie in buffers as its allocation planner shares them
(see `buffers`); a graph's output is held to the end. Subgraphs are counted at their node, once,
whatever the number of iterations; of branches the larger one counts, and a function's body like a
subgraph.

Not counted are what the caller holds (the inputs), scratch memory of kernels, and what the arena
holds beyond what is in use. Fusions leave out more values, or add some (layouts, padded channels).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from heapq import nlargest
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from memdiag.model.graph_index import GraphIndex, Node, Scope
from memdiag.model.shapes import Shapes
from memdiag.ort.buffers import Buffer, BufferPlan, Reads
from memdiag.ort.folds import Folds
from memdiag.ort.fusions import Fusions

_MOST_ALIVE = 20
_DEEPEST = 50


class Alive(NamedTuple):
    """A value that takes memory: its name, the scope that makes it, and its bytes."""

    scope: Scope
    name: str
    nbytes: int


class Liveness(NamedTuple):
    """The most that activations take at once.

    It is reached at `node` of `scope` (both None where nothing takes memory), while those in
    `alive` are, the largest first and at most 20. `largest` is the largest of all values, and
    `unknown` tells how many have no known size and were taken for nothing.
    """

    peak_bytes: int
    scope: Scope | None
    node: Node | None
    alive: tuple[Alive, ...]
    largest: Alive | None
    unknown: int


_nbytes = attrgetter("nbytes")
_NOTHING = Liveness(0, None, None, (), None, 0)
_NOT_FOLLOWED = Liveness(0, None, None, (), None, 1)


def liveness(
    graphs: GraphIndex,
    shapes: Shapes,
    folds: Folds,
    *,
    declared: Shapes | None = None,
    sizes: Collection[int] = (),
) -> Liveness:
    """Return what the activations of a model take at most, without the nodes that are folded.

    `sizes` are those that `shapes` were inferred with for free dimensions, `declared` the shapes
    without them (by default asked of `shapes`).
    """
    declared = declared or shapes.as_declared
    model = _Model(graphs, shapes, declared, folds, sizes)
    return model.of(next(scope for _, scope in graphs), 0)


class _Model:
    """What the graphs of a model have in common; functions are looked into once."""

    def __init__(
        self,
        graphs: GraphIndex,
        shapes: Shapes,
        declared: Shapes,
        folds: Folds,
        sizes: Collection[int],
    ) -> None:
        self._shapes, self._declared = shapes, declared
        self._sizes = frozenset(sizes)
        self._folds = folds
        # Of a function's calls only the first is known to `graphs` and `shapes`.
        self._functions = {_key(scope): scope for _, scope in graphs if scope.is_function}
        self._inside: dict[Scope, Liveness] = {}
        self._captured: dict[Scope, tuple[str, ...]] = {}

    def of(self, scope: Scope, depth: int) -> Liveness:
        """Return what the graph `scope` takes at most, with all that is inside its nodes."""
        if scope not in self._inside:
            self._inside[scope] = _NOT_FOLLOWED  # what a function sees that calls itself
            if depth <= _DEEPEST:
                self._inside[scope] = self._peak(scope, depth)
        return self._inside[scope]

    def _is_computed(self, scope: Scope) -> bytearray:
        """Return for each node of `scope` whether it is computed in each run."""
        folds = self._folds
        return bytearray(
            node.op_type != "Constant" and not (folds and folds.evaluates(scope, node))
            for node in scope.nodes
        )

    def _bodies(self, scope: Scope, node: Node) -> Sequence[Scope]:
        """Return the graphs inside `node`: its subgraphs, or the function that it calls."""
        inner = scope.subgraphs.get(node, ())
        called = self._functions.get((node.domain, node.op_type, node.overload))
        return (*inner, called) if called is not None else inner

    def _reads(self, scope: Scope, node: Node) -> tuple[str, ...]:
        """Return the names that `node` reads, also in its subgraphs, each once."""
        names = dict.fromkeys(name for name in node.input if name)
        for body in scope.subgraphs.get(node, ()):
            names |= dict.fromkeys(self._captures(body))
        return tuple(names)

    def _captures(self, body: Scope) -> tuple[str, ...]:
        if body not in self._captured:
            names = chain.from_iterable(self._reads(body, node) for node in body.nodes)
            outer = (name for name in chain(names, body.outputs) if not body.graph.defines(name))
            self._captured[body] = tuple(dict.fromkeys(outer))
        return self._captured[body]

    def _has_shared_shape(self, scope: Scope, name: str) -> bool:
        """Return whether the runtime can tell that values have the shape of `name`.

        Of a free dimension it knows no size but the name; those computed from one, as a stride
        does, have none. What is as large as a free dimension is taken for that dimension.
        """
        actual, declared = (shapes.of(scope, name) for shapes in (self._shapes, self._declared))
        if actual is None or actual.shape is None or declared is None or declared.shape is None:
            return False
        pairs = zip(actual.shape, declared.shape, strict=False)
        return len(actual.shape) == len(declared.shape) and all(
            stated is not None or size in self._sizes for size, stated in pairs
        )

    def _nbytes(self, scope: Scope, name: str) -> int | None:
        kind = self._shapes.of(scope, name)
        return None if kind is None else kind.nbytes

    def _peak(self, scope: Scope, depth: int) -> Liveness:
        """Go through the nodes of `scope`, and return where the most is held."""
        reads = partial(self._reads, scope)
        is_computed = self._is_computed(scope)
        fusions = Fusions(scope, is_computed, partial(self._nbytes, scope))

        def reads_in_order(node: Node) -> tuple[str, ...]:
            added = fusions.summed_with(node) if node.op_type == "Conv" and node.output else None
            return reads(node) if added is None else (*reads(node), added)

        nodes = _order(scope, is_computed, reads_in_order)

        def reads_fused(node: Node) -> tuple[str, ...]:
            longer = fusions.reads_longer(node)
            names = reads(node)
            return names if longer is None or longer in names else (*names, longer)

        plan = BufferPlan(
            scope,
            nodes,
            reads_fused,
            partial(self._shapes.of, scope),
            partial(self._has_shared_shape, scope),
            fusions,
        )
        made = _Total(plan.buffers, attrgetter("first"))
        freed = _Total(sorted(plan.buffers, key=attrgetter("last")), attrgetter("last"))
        largest = max(
            (Alive(scope, buffer.name, buffer.nbytes) for buffer in plan.buffers),
            key=_nbytes,
            default=None,
        )
        unknown, now, most = plan.unknown, 0, 0
        where: tuple[int, Liveness] | None = None
        for step, node in enumerate(nodes):
            inner = _NOTHING
            for body in self._bodies(scope, node):
                found = self.of(body, depth + 1)
                unknown += found.unknown
                largest = max(filter(None, (largest, found.largest)), key=_nbytes, default=None)
                inner = max(inner, found, key=lambda one: one.peak_bytes)
            now -= freed.until(step - 1)
            new = made.until(step)
            here = now + max(new, inner.peak_bytes)
            now += new
            if here > most:
                most, where = here, (step, inner if here > now else _NOTHING)
        if where is None:
            return _NOTHING._replace(largest=largest, unknown=unknown)
        step, inner = where
        own = (
            Alive(scope, buffer.name, buffer.nbytes)
            for buffer in plan.buffers
            if buffer.first <= step <= buffer.last and (buffer.first < step or not inner.alive)
        )
        alive = nlargest(_MOST_ALIVE, chain(own, inner.alive), key=_nbytes)
        return Liveness(most, scope, nodes[step], tuple(alive), largest, unknown)


class _Total:
    """Adds up the sizes of `buffers`, which come in the order of their steps, as `step_of` says."""

    def __init__(self, buffers: Iterable[Buffer], step_of: Callable[[Buffer], int]) -> None:
        self._left = iter(buffers)
        self._step_of = step_of
        self._next = next(self._left, None)

    def until(self, step: int) -> int:
        """Return the bytes of those up to `step` that were not added before."""
        total = 0
        while self._next is not None and self._step_of(self._next) <= step:
            total += self._next.nbytes
            self._next = next(self._left, None)
        return total


def _key(scope: Scope) -> tuple[str, str, str]:
    node = scope.owner
    return (node.domain, node.op_type, node.overload) if node is not None else ("", "", "")


def _order(scope: Scope, is_computed: bytearray, reads: Reads) -> list[Node]:
    """Return the nodes that are computed, in the runtime's order; those in circles are left out."""
    before: list[list[int]] = []
    is_read = bytearray(len(is_computed))
    for node in scope.nodes:
        found: list[int] = []
        if is_computed[node.index]:
            producers = {scope.producers.get(name) for name in reads(node)}
            found = sorted(
                producer.index
                for producer in producers - {None, node}
                if producer is not None and is_computed[producer.index]
            )
            for index in found:
                is_read[index] = 1
        before.append(found)
    # Those below 0 are nodes that are left: all that they read was met.
    pending = list(_ends(is_computed, is_read))
    seen = bytearray(len(is_computed))
    order: list[Node] = []
    while pending:
        index = pending.pop()
        if index < 0:
            order.append(scope.nodes[~index])
        elif not seen[index]:
            seen[index] = 1
            pending.append(~index)
            pending.extend(each for each in before[index] if not seen[each])
    return order


def _ends(is_computed: bytearray, is_read: bytearray) -> Iterator[int]:
    """Yield the places of the nodes that are computed and that nobody reads."""
    pairs = enumerate(zip(is_computed, is_read, strict=True))
    return (place for place, (computed, read) in pairs if computed and not read)
