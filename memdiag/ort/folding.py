"""Which nodes the runtime will evaluate once and for all, and how large their results are."""

from collections.abc import Hashable, Mapping

import numpy as np

from memdiag.model.graph_index import MAX_CALL_DEPTH, GraphIndex, Node, Scope, integer
from memdiag.model.shapes import Shapes
from memdiag.model.tensor_data import Array
from memdiag.model.tensor_types import ELEMENT_TYPES_BY_NAME, TensorType
from memdiag.ort.constants import Constant, dtypes_of, likeness, weights_of
from memdiag.ort.foldable import becomes_a_flag, can_run, ends_quantized, is_dropped
from memdiag.ort.folds import Fold, Folds
from memdiag.ort.runtime import Runtime
from memdiag.ort.values import MOST_VALUES, evaluate

SIZE_LIMIT = 1 << 30
"""Since 1.27 a node is not folded if its outputs take more bytes together: the option
``optimization.constant_folding_max_output_size_in_bytes``, by default."""

LIMITED_SINCE = (1, 27)

# The runtime infers no shapes for these before this opset, and folds nothing of unknown size since
# there is a limit.
_UNSIZED = frozenset({"GreaterOrEqual", "LessOrEqual"})
_UNSIZED_BEFORE = 16

_ONNX = ("", "ai.onnx")
_MOST_NODES = 200_000
_MOST_BYTES = 8 * MOST_VALUES
"""Of a constant whose values are looked at."""

_MOST_PASSES = 3

_Place = tuple[Scope, Node]


def folds(graphs: GraphIndex, shapes: Shapes, runtime: Runtime) -> Folds:
    """Return the nodes that constant folding of `runtime` evaluates, in topological order.

    Functions are written out by the runtime first, so that each call of one has folds of its own.
    Nodes in a branch of an If that is never taken, as its condition is a constant, are left out,
    and those the size of whose results cannot be told.
    """
    return Folding(graphs, shapes.as_declared, runtime).folds()


class Folding:
    """One prediction of what is folded, for a model and a release of the runtime."""

    def __init__(self, graphs: GraphIndex, shapes: Shapes, runtime: Runtime) -> None:
        self.graphs = graphs
        self.shapes = shapes
        self.runtime = runtime
        # Values computed from weights, and weights, by scope and name.
        self._computed: dict[tuple[Scope, str], Constant] = {}
        self._stored: dict[tuple[Scope, str], Constant] = {}
        self._kinds: dict[tuple[Scope, str], TensorType] = {}
        # The folded nodes, each with the first one that does the same, into which it is merged.
        self._folded: dict[_Place, _Place] = {}
        self._same: dict[Hashable, _Place] = {}
        self._removed: set[_Place] = set()  # folded, merged or dropped
        self._left: list[_Place] = []
        self._visited: list[Scope] = []
        self._inlined: set[Scope] = set()
        self._late = False
        self._run(graphs.main)

    def folds(self) -> Folds:
        """Return the folds in topological order."""
        found: list[Fold] = []
        by_node: dict[_Place, list[Fold]] = {}
        for place, first in self._folded.items():
            scope, node = place
            own = by_node[place] = list[Fold]()
            for name in filter(None, node.output):
                constant = self._computed.get((scope, name))
                kind = constant.kind if constant is not None else None
                if constant is None or kind is None or kind.nbytes is None or kind.shape is None:
                    continue
                merged = None
                if first != place and len(own) < len(by_node[first]):
                    like = by_node[first][len(own)]
                    merged = like.scope, like.output
                own.append(
                    Fold(
                        scope,
                        node,
                        name,
                        kind.dtype,
                        tuple(size or 0 for size in kind.shape),
                        kind.nbytes,
                        constant.weights,
                        constant.read and first == place,
                        merged,
                    )
                )
            found += own
        return Folds(found)

    def _run(self, main: Scope) -> None:
        for _ in range(_MOST_PASSES):
            # A node may stand before those that it reads: what they make is known the next time.
            before = len(self._removed)
            self._late = False
            self._left, self._visited, self._budget = [], [], _MOST_NODES
            self._visit(main)
            if not self._late or len(self._removed) == before:
                break
        for scope, node in self._left:
            for name in node.input:
                self._mark_read(scope, name)
        for scope in self._visited:
            if not scope.is_function:
                for name in scope.outputs:
                    self._mark_read(scope, name)

    def _mark_read(self, scope: Scope, name: str) -> None:
        constant = self._known(scope, name)
        if constant is not None:
            constant.read = True

    def _visit(self, scope: Scope) -> None:
        self._visited.append(scope)
        self._budget -= len(scope.nodes)
        self._late = self._late or not scope.graph.is_sorted
        for node in scope.nodes:
            if (scope, node) not in self._removed and not self._settle(scope, node):
                self._left.append((scope, node))

    def _settle(self, scope: Scope, node: Node) -> bool:
        """Look at `node`, and return whether it will be gone."""
        bodies = scope.subgraphs.get(node)
        if bodies:
            return self._settle_control(scope, node, bodies)
        if node.op_type == "Constant":
            return True
        called = scope.call(node) if self.shapes.has_calls and self._budget > 0 else None
        if called is not None:
            self._visit(called)
            self._pass_on(called, scope, node)
            return True
        if node.domain not in _ONNX and node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            return False
        if node.op_type == "Shape":
            return self._fold_shape(scope, node)
        inputs = [self._known(scope, name) if name else None for name in node.input]
        constants = [one for one in inputs if one is not None]
        if len(constants) < sum(bool(name) for name in node.input) or not node.output:
            self._infer(scope, node, inputs)
            return False
        dropped = bool(constants) and is_dropped(node, dtypes_of(constants))
        if dropped and node.output[0] not in scope.outputs:
            self._computed[scope, node.output[0]] = constants[0]
            self._removed.add((scope, node))
            return True
        return self._fold(scope, node, inputs)

    def _settle_control(self, scope: Scope, node: Node, bodies: list[Scope]) -> bool:
        condition = self._known(scope, node.input[0]) if node.input else None
        value = self._value(condition, scope, node, 0) if node.op_type == "If" else None
        branches = [inner.name for inner in node.subgraphs]
        wanted = "then_branch" if value is not None and value.any() else "else_branch"
        if value is None or value.size != 1 or wanted not in branches:
            for body in bodies:
                self._visit(body)
            return False
        # The runtime puts the branch in the place of the node, and drops the other one.
        body = bodies[branches.index(wanted)]
        self._inlined.add(body)
        self._visit(body)
        self._pass_on(body, scope, node)
        return True

    def _pass_on(self, body: Scope, scope: Scope, node: Node) -> None:
        """Make the outputs of `node` what `body`, which is put in its place, returns."""
        for output, name in zip(node.output, body.outputs, strict=False):
            constant = self._known(body, name)
            if constant is not None and output:
                self._computed[scope, output] = constant

    def _fold(self, scope: Scope, node: Node, inputs: list[Constant | None]) -> bool:
        """Fold `node`, all of whose inputs are constant; None is one that is left out."""
        constants = [one for one in inputs if one is not None]
        if not can_run(node, dtypes_of(constants)):
            return False
        if node.op_type == "DequantizeLinear" and not ends_quantized(scope, node):
            return False
        kinds, values = self._results(scope, node, inputs)
        opset = self.shapes.opset
        if any(kind is not None and len(kind.shape or ()) == 2 for kind in kinds.values()) and (
            becomes_a_flag(scope, node, opset, self.runtime)
        ):
            return False
        if self.runtime >= LIMITED_SINCE:
            sizes = [None if kind is None else kind.nbytes for kind in kinds.values()]
            if None in sizes or sum(size or 0 for size in sizes) > SIZE_LIMIT:
                return False
            if node.op_type in _UNSIZED and opset < _UNSIZED_BEFORE:
                return False
        weights = weights_of(constants)
        outputs = {name: Constant(kind, weights, values.get(name)) for name, kind in kinds.items()}
        self._keep(scope, node, inputs, outputs)
        return True

    def _fold_shape(self, scope: Scope, node: Node) -> bool:
        """Fold a Shape whose input's shape is known, be it constant or not."""
        kind = self._kind(scope, node.input[0]) if node.input else None
        if kind is None or kind.shape is None or None in kind.shape or not node.output:
            return False
        end = integer(node, "end", len(kind.shape))
        part = kind.shape[slice(integer(node, "start", 0), end)]
        value = np.array([size or 0 for size in part], np.int64)
        constant = Constant(TensorType("int64", value.shape), (), value)
        self._keep(scope, node, [], {node.output[0]: constant}, of=node.input[0])
        return True

    def _keep(
        self,
        scope: Scope,
        node: Node,
        inputs: list[Constant | None],
        outputs: dict[str, Constant],
        of: str = "",
    ) -> None:
        """Note the outputs of a folded node; those of a like node before it, where there is one."""
        attributes = tuple(sorted(one.SerializeToString() for one in node.attribute))
        operands = (*(likeness(one) for one in inputs), of)
        graph, slots = self._graph(scope), tuple(map(bool, node.output))
        key = (graph, node.domain, node.op_type, slots, attributes, operands)
        first, like = self._same.setdefault(key, (scope, node))
        if like is not node or first is not scope:
            made = (self._computed.get((first, name)) for name in like.output if name)
            outputs = {
                name: constant
                for name, constant in zip(outputs, made, strict=False)
                if constant is not None
            }
        self._folded[scope, node] = first, like
        self._removed.add((scope, node))
        for name, constant in outputs.items():
            self._computed[scope, name] = constant

    def _graph(self, scope: Scope) -> Scope:
        """Return the scope of the graph that the nodes of `scope` will be in."""
        while scope.parent is not None and (scope.is_function or scope in self._inlined):
            scope = scope.parent
        return scope

    def _known(self, scope: Scope, name: str) -> Constant | None:
        """Return the constant that `name` is, seen from `scope`; None if it is none."""
        for _ in range(MAX_CALL_DEPTH + 1):
            home = scope.defining_scope(name)
            if home is None:
                return None
            known = self._computed.get((home, name)) or self._stored.get((home, name))
            if known is not None:
                return known
            weight = self.graphs.own_weight(home, name)
            if weight is not None:
                if home.parent is None and name in self.shapes.overridable:
                    return None
                kind = TensorType(weight.dtype, weight.shape)
                constant = Constant(kind, (weight,), stored=True)
                self._stored[home, name] = constant
                return constant
            argument = home.argument(name)
            if argument is None:
                return None
            scope, name = argument
        return None

    def _value(
        self, constant: Constant | None, scope: Scope, node: Node, slot: int
    ) -> Array | None:
        """Return the values of a constant input, where they are few."""
        if constant is None or constant.value is not None or constant.kind is None:
            return None if constant is None else constant.value
        nbytes = constant.kind.nbytes
        element = ELEMENT_TYPES_BY_NAME[constant.kind.dtype]
        if nbytes is None or nbytes > _MOST_BYTES or not element.native or not element.bits:
            return None
        found = self.graphs.constant(scope, node, slot)
        if found is not None and len(constant.weights) == 1:
            values, weight = found
            is_same = constant.weights[0] == weight
            # A damaged model may call both a packed weight and what is made of it by one name.
            if is_same and weight.dtype == constant.kind.dtype:
                constant.value = values.reshape(weight.shape)
        return constant.value

    def _results(
        self, scope: Scope, node: Node, inputs: list[Constant | None]
    ) -> tuple[dict[str, TensorType | None], dict[str, Array]]:
        """Return types and, where they are few, values of the outputs of a node to be folded."""
        outputs = [name for name in node.output if name]
        kinds = {name: self._kind(scope, name) for name in outputs}
        operands = [self._value(one, scope, node, slot) for slot, one in enumerate(inputs)]
        values: dict[str, Array] = {}
        if all(value is not None for value in operands) and len(outputs) == 1:
            result = evaluate(node, [value for value in operands if value is not None])
            if result is not None:
                # A view would keep what it is of, and all that is between.
                values[outputs[0]] = result if result.base is None else result.copy()
        if any(kind is None or kind.nbytes is None for kind in kinds.values()):
            kinds_known = (None if one is None else one.kind for one in inputs)
            known = dict(zip(node.input, kinds_known, strict=True))
            few = dict(zip(node.input, operands, strict=True))
            kinds |= self._inferred(node, known, few)
        for name, value in values.items():
            kind = kinds[name]
            if kind is not None and self.runtime < LIMITED_SINCE:
                kinds[name] = TensorType(kind.dtype, value.shape)
        return kinds, values

    def _infer(self, scope: Scope, node: Node, inputs: list[Constant | None]) -> None:
        """Infer the types of outputs again where a fold told more than the file did."""
        if all(one is None or one.value is None for one in inputs) and not any(
            (scope, name) in self._kinds for name in node.input if name
        ):
            return
        outputs = [(scope, name) for name in node.output if name]
        known = [self._kind(scope, name) for _, name in outputs]
        if all(kind is not None and kind.nbytes is not None for kind in known):
            return
        kinds = {name: self._kind(scope, name) for name in node.input if name}
        few = {
            name: self._value(one, scope, node, slot)
            for slot, (name, one) in enumerate(zip(node.input, inputs, strict=True))
        }
        for name, kind in self._inferred(node, kinds, few).items():
            self._kinds[scope, name] = kind

    def _inferred(
        self,
        node: Node,
        kinds: Mapping[str, TensorType | None],
        values: Mapping[str, Array | None],
    ) -> dict[str, TensorType]:
        return self.shapes.of_outputs(
            node,
            {name: kind for name, kind in kinds.items() if kind is not None},
            {name: value for name, value in values.items() if value is not None},
        )

    def _kind(self, scope: Scope, name: str) -> TensorType | None:
        constant = self._known(scope, name) if name else None
        if constant is not None and constant.kind is not None:
            return constant.kind
        home = scope.defining_scope(name)
        found = self._kinds.get((home, name)) if home is not None else None
        return found if found is not None else self.shapes.of(scope, name)
