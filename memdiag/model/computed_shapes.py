"""Types that follow from the sizes of a model's inputs alone, where ONNX's inference stops.

ONNX carries the numbers of shapes through a few operators, into few others, and into no loop.
`ComputedShapes` goes through the nodes in order. Where the type of an output is not known it
computes the numbers on which it depends: Shape, and integers from there on. If the condition of an
If is known, only the branch that runs is followed. A Loop is followed through its first iterations;
if its state grows by the same amount in each, the last one follows from these.

What depends on the data, and all that follows from it, stays unknown. Where an operator limits it,
it may instead be as large as it can be: NonZero finds no more than all elements.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np
from onnx import helper

from memdiag.model.constant_values import condition_value, integer_value
from memdiag.model.count_inputs import count_values
from memdiag.model.graph_index import GraphIndex, Node, Scope, integer_attribute
from memdiag.model.largest_outputs import largest_outputs
from memdiag.model.loop_iterations import MAX_ITERATIONS, KnownValue, LoopState, follow_loop
from memdiag.model.node_outputs import compute_outputs, infer_outputs
from memdiag.model.tensor_data import CONSTANT_FIELDS, constant_array, inline_array
from memdiag.model.tensor_types import ELEMENT_TYPES, Array, TensorType, known_shape

_MAX_SIZE_RESULT = (1 << 63) - 1
"""The largest result of a Size, which is an int64."""

MAX_ELEMENTS = 1 << 20
"""Numbers of a value that is computed: a mask of a thousand by a thousand."""

MAX_COMPUTED = 1 << 24
"""Numbers that are computed in total; further values stay unknown."""

MAX_INFERRED = 50_000
"""Nodes whose outputs are inferred; the outputs of further nodes stay unknown."""

MAX_VISITED = 500_000
"""Nodes in the iterations of loops; what further iterations do is unknown."""

MAX_CALLED = 100_000
"""Nodes in the bodies of functions, for each call; what further calls return stays unknown."""

# Results of these operators have at most as many numbers as their inputs, times the number of axes.
_SELECTING_OPERATORS = frozenset({"Compress", "NonZero", "Unique"})

_ValueKey = tuple[Scope, str]


class ComputedShapes:
    """The types of a model whose inputs have known sizes.

    Args:
        graphs: the model.
        types: the types that are known so far, by scope and name. Computed types are added.
        opset: the version of ONNX's operators.
        sizes: sizes of free dimensions, among which may be counts (`count_inputs`).
        counts_largest: whether sizes that depend on the data are as large as they can be, where
            that is known. Otherwise they are unknown.

    Attributes:
        types: the types.
        refined: by scope, the names of values of whose types ONNX's inference of the whole model
            knows less.
        runs: how often the subgraphs of an If or a Loop run, where that is known.
        first_iterations: the types in the first iteration of loops whose last one takes more, by
            the body and the graphs inside it.
    """

    def __init__(
        self,
        graphs: GraphIndex,
        types: dict[Scope, dict[str, TensorType]],
        opset: int,
        *,
        sizes: Mapping[str, int] | None = None,
        counts_largest: bool = False,
    ) -> None:
        self.types = types
        self.runs: dict[Scope, int] = {}
        self.first_iterations: dict[Scope, dict[str, TensorType]] = {}
        self._opset = opset
        self._counts_largest = counts_largest
        self._values: dict[Scope, dict[str, Array | None]] = defaultdict(dict)
        self.refined: dict[Scope, set[str]] = defaultdict(set)
        self._elements_left, self._nodes_left = MAX_COMPUTED, MAX_INFERRED
        self._visits_left, self._called_left = MAX_VISITED, MAX_CALLED
        self._values[graphs.main] |= count_values(graphs.main.graph, sizes or {})
        self._visit_scope(graphs.main)

    def _visit_scope(self, scope: Scope) -> None:
        for node in scope.nodes:
            inner = scope.subgraphs.get(node)
            if inner:
                self._run_subgraphs(scope, node, inner)
                continue
            if self._lacks_types(scope, node):
                body = scope.call(node)
                if body is None:
                    self._infer_output_types(scope, node)
                else:
                    self._follow_call(scope, node, body)

    def _lacks_types(self, scope: Scope, node: Node) -> bool:
        types = self.types[scope]
        return any(name and known_shape(types.get(name)) is None for name in node.output)

    def _infer_output_types(self, scope: Scope, node: Node) -> None:
        """Infer the types of the outputs of `node` from all that is known of its inputs."""
        inputs = dict.fromkeys(filter(None, node.input))
        values = {name: self._value_numbers(scope, name) for name in inputs}
        is_more_known = any(
            self._is_refined(scope, name) or (value is not None and self._is_computed(scope, name))
            for name, value in values.items()
        )
        if not self._nodes_left or _has_references(node):
            return
        kinds = {name: self._value_type(scope, name) for name in inputs}
        types = {name: kind for name, kind in kinds.items() if kind is not None}
        known_values = {name: value for name, value in values.items() if value is not None}
        if is_more_known:
            self._nodes_left -= 1
            for name, kind in infer_outputs(node, self._opset, types, known_values).items():
                self._refine_type(scope, name, kind)
            for name in filter(None, node.output):
                value = None
                if known_shape(self.types[scope].get(name)) is None:
                    value = self._value_numbers(scope, name)
                if value is not None:
                    self._refine_type(scope, name, _type_of_array(value))
        if self._counts_largest and self._lacks_types(scope, node):
            for name, kind in largest_outputs(node, types, known_values).items():
                self._refine_type(scope, name, kind)

    def _refine_type(self, scope: Scope, name: str, kind: TensorType | None) -> None:
        """Store the type of a value if it has more sizes than the known type."""
        if not name or kind is None or kind.shape is None:
            return
        known_type = self.types[scope].get(name)
        if (
            known_type is None
            or known_type.shape is None
            or known_type.shape.count(None) > kind.shape.count(None)
        ):
            self.types[scope][name] = kind
            self.refined[scope].add(name)

    def _is_refined(self, scope: Scope, name: str) -> bool:
        defining = scope.defining_scope(name)
        return defining is not None and name in self.refined[defining]

    def _is_computed(self, scope: Scope, name: str) -> bool:
        """Return whether a value is not a constant of the same graph, which the inference knows."""
        return name not in scope.graph.tensors

    def _value_type(self, scope: Scope, name: str) -> TensorType | None:
        defining = scope.defining_scope(name) if name else None
        return None if defining is None else self.types[defining].get(name)

    def _value_numbers(self, scope: Scope, name: str) -> Array | None:
        """Return the numbers of a value; None if they are not known, or too many."""
        first = self._defining_key(scope, name)
        pending = [] if first is None else [first]
        expanded: set[_ValueKey] = set()
        while pending:
            key = pending[-1]
            values = self._values[key[0]]
            if key[1] in values:
                pending.pop()
                continue
            operands = self._operand_keys(key)
            if operands is None:
                values[key[1]] = self._constant_numbers(key)
            elif key not in expanded and not any(self._is_unknown(operand) for operand in operands):
                expanded.add(key)
                # A graph with a cycle cannot run.
                pending += [operand for operand in operands if operand and operand not in expanded]
            else:
                self._compute_numbers(key, operands)
        return None if first is None else self._values[first[0]][first[1]]

    def _is_unknown(self, key: _ValueKey | None) -> bool:
        return key is None or (
            key[1] in self._values[key[0]] and self._values[key[0]][key[1]] is None
        )

    def _defining_key(self, scope: Scope, name: str) -> _ValueKey | None:
        """Return the scope that defines a value and its name there, arguments of calls followed."""
        while True:
            defining = scope.defining_scope(name) if name else None
            if defining is None:
                return None
            argument = defining.argument(name)
            if argument is None or name in defining.producers:
                return defining, name
            scope, name = argument

    def _operand_keys(self, key: _ValueKey) -> list[_ValueKey | None] | None:
        """Return the values from which a value is computed; None if it is not computed."""
        scope, name = key
        node = scope.producers.get(name)
        if node is None or node.op_type == "Constant" or node.subgraphs:
            return None
        if scope.call(node) is not None or _has_references(node):
            return None
        if node.op_type in ("Shape", "Size"):
            return []
        kind = self.types[scope].get(name)
        if node.op_type not in _SELECTING_OPERATORS and not _is_small(kind):
            return None
        return [
            self._defining_key(scope, operand_name) for operand_name in node.input if operand_name
        ]

    def _constant_numbers(self, key: _ValueKey) -> Array | None:
        """Return the numbers of a constant of the file; None for other values."""
        scope, name = key
        node = scope.producers.get(name)
        tensor = scope.graph.tensors.get(name)
        if tensor is not None and (node is None or node.op_type == "Constant"):
            return inline_array(tensor) if prod(tensor.dims) <= MAX_ELEMENTS else None
        if node is not None and node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name in CONSTANT_FIELDS and not attribute.ref_attr_name:
                    return constant_array(attribute)[1]
        return None

    def _compute_numbers(self, key: _ValueKey, operands: Sequence[_ValueKey | None]) -> None:
        """Compute the numbers of a value, and of the other outputs of its node."""
        scope, name = key
        node = scope.producers[name]
        values = self._values[scope]
        values[name] = None
        if node.op_type in ("Shape", "Size"):
            values[name] = self._shape_result(scope, node)
            return
        names = filter(None, node.input)
        numbers = {
            operand_name: self._values[operand[0]].get(operand[1])
            for operand_name, operand in zip(names, operands, strict=True)
            if operand is not None
        }
        known = {
            operand_name: value for operand_name, value in numbers.items() if value is not None
        }
        count = sum(value.size for value in known.values())
        if len(known) < len(set(filter(None, node.input))) or count > self._elements_left:
            return
        self._elements_left -= count
        values.update(compute_outputs(node, self._opset, known))

    def _shape_result(self, scope: Scope, node: Node) -> Array | None:
        kind = self._value_type(scope, node.input[0]) if node.input else None
        shape = known_shape(kind)
        if shape is None:
            return None
        sizes = np.array(shape, np.int64)
        if node.op_type == "Size":
            count = prod(sizes.tolist())
            return np.array(count, np.int64) if count <= _MAX_SIZE_RESULT else None
        return sizes[
            slice(integer_attribute(node, "start", 0), integer_attribute(node, "end", len(sizes)))
        ]

    def _known_value(self, scope: Scope, name: str) -> KnownValue:
        return KnownValue(self._value_type(scope, name), self._value_numbers(scope, name))

    def _set_known_value(self, scope: Scope, name: str, known: KnownValue) -> None:
        kind, value = known
        self._refine_type(scope, name, kind)
        self._values[scope][name] = value

    def _follow_call(self, scope: Scope, node: Node, body: Scope) -> None:
        self._called_left -= len(body.nodes)
        if self._called_left < 0:
            return
        for name, argument in zip(body.inputs, node.input, strict=False):
            self._refine_type(body, name, self._value_type(scope, argument))
        self._visit_scope(body)
        for name, result in zip(node.output, body.outputs, strict=False):
            if name:
                self._set_known_value(scope, name, self._known_value(body, result))

    def _run_subgraphs(self, scope: Scope, node: Node, inner: Sequence[Scope]) -> None:
        if node.is_onnx and node.op_type == "If" and len(node.input) == 1:
            self._follow_if(scope, node, inner)
        elif node.is_onnx and node.op_type == "Loop" and len(inner) == 1:
            self._follow_loop_node(scope, node, inner[0])
        else:
            for subgraph in inner:
                self._visit_scope(subgraph)

    def _follow_if(self, scope: Scope, node: Node, branches: Sequence[Scope]) -> None:
        condition = condition_value(self._value_numbers(scope, node.input[0]))
        names = [subgraph.name for subgraph in node.subgraphs]
        if condition is not None:
            taken_branch = "then_branch" if condition else "else_branch"
            self.runs |= {
                branch: int(name == taken_branch)
                for name, branch in zip(names, branches, strict=True)
            }
        results: list[list[KnownValue]] = []
        for branch in branches:
            if self.runs.get(branch, 1):
                self._visit_scope(branch)
                results.append([self._known_value(branch, name) for name in branch.outputs])
        for name, branch_values in zip(node.output, zip(*results, strict=False), strict=False):
            kinds = {kind for kind, _ in branch_values}
            if len(branch_values) == 1:
                self._set_known_value(scope, name, branch_values[0])
            elif len(kinds) == 1:
                self._set_known_value(scope, name, branch_values[0]._replace(value=None))
            elif self._counts_largest:
                largest = max(kinds, key=lambda kind: (kind and kind.nbytes) or 0)
                is_known = None not in map(known_shape, kinds)
                self._set_known_value(scope, name, KnownValue(largest if is_known else None, None))

    def _follow_loop_node(self, scope: Scope, node: Node, body: Scope) -> None:
        """Follow a Loop; the types of its body become those of its last or first iteration.

        The iteration whose values take more memory is chosen.
        """
        carried_names = node.input[2:]
        first_state = tuple(self._known_value(scope, name) for name in carried_names)
        body_scopes = list(_scope_tree(body))
        types_before = {inner_scope: dict(self.types[inner_scope]) for inner_scope in body_scopes}
        nodes = sum(len(inner_scope.nodes) for inner_scope in body_scopes)

        def iterate(index: int | None, state: LoopState) -> tuple[bool | None, LoopState]:
            self._visits_left -= nodes
            if self._visits_left < 0:
                return None, tuple(KnownValue(None, None) for _ in state)
            for scope in body_scopes:
                self.types[scope] = dict(types_before[scope])
                self.refined.pop(scope, None)
                self._values.pop(scope, None)
            number = None if index is None else np.array(index, np.int64)
            counter = KnownValue(TensorType("int64", ()), number)
            condition = KnownValue(TensorType("bool", ()), np.array(True))
            for name, known_value in zip(body.inputs, (counter, condition, *state), strict=False):
                self._set_known_value(body, name, known_value)
            self._visit_scope(body)
            carried_outputs = body.outputs[1 : 1 + len(carried_names)]
            goes_on = (
                condition_value(self._value_numbers(body, body.outputs[0]))
                if body.outputs
                else None
            )
            state_after = [self._known_value(body, name) for name in carried_outputs]
            # A damaged body may lack outputs.
            state_after += [KnownValue(None, None)] * (len(state) - len(state_after))
            return goes_on, tuple(state_after)

        limit = self._iteration_limit(scope, node)
        count, state = follow_loop(iterate, first_state, limit)
        if count is None and self._counts_largest and limit not in (None, MAX_ITERATIONS):
            # The most iterations: as if the data did not end the loop earlier.
            count, state = follow_loop(
                lambda *arguments: (True, iterate(*arguments)[1]), first_state, limit
            )
        final = state
        if count is not None:
            self.runs[body] = count
        if count:
            _, final = iterate(count - 1, state)
            last_bytes = self._scopes_bytes(body_scopes)
            last_types = {inner_scope: self.types[inner_scope] for inner_scope in body_scopes}
            iterate(0, first_state)
            if self._scopes_bytes(body_scopes) < last_bytes:
                self.first_iterations |= {
                    inner_scope: self.types[inner_scope] for inner_scope in body_scopes
                }
            if self._scopes_bytes(body_scopes) <= last_bytes:
                self.types |= last_types
        elif count is None:
            iterate(None, state)
        for name, known_value in zip(node.output, final, strict=False):
            self._set_known_value(scope, name, known_value)
        # The other outputs of the iterations are stacked.
        stacked_outputs = body.outputs[1 + len(carried_names) :]
        for name, inner in zip(node.output[len(carried_names) :], stacked_outputs, strict=False):
            kind = self._value_type(body, inner)
            if kind is not None and kind.shape is not None:
                # Without an iteration the runtime takes 0 for sizes that it does not know.
                sizes = (size or 0 for size in kind.shape) if count == 0 else kind.shape
                self._refine_type(scope, name, kind._replace(shape=(count, *sizes)))

    def _iteration_limit(self, scope: Scope, node: Node) -> int | None:
        """Return the largest number of iterations of a Loop; None if it is not known."""
        limit, condition = (*node.input[:2], "", "")[:2]
        goes_on = condition_value(self._value_numbers(scope, condition)) if condition else True
        if goes_on is None:
            return None
        count = integer_value(self._value_numbers(scope, limit)) if limit else MAX_ITERATIONS
        if count is None:
            return None
        return min(max(count, 0), MAX_ITERATIONS) if goes_on else 0

    def _scopes_bytes(self, scopes: Sequence[Scope]) -> int:
        return sum(
            kind.nbytes or 0 for inner_scope in scopes for kind in self.types[inner_scope].values()
        )


def _scope_tree(scope: Scope) -> Iterator[Scope]:
    """Yield a scope and the scopes inside it, bodies of functions left out."""
    yield scope
    for inner in scope.subgraphs.values():
        for inner_scope in inner:
            yield from _scope_tree(inner_scope)


def _is_small(kind: TensorType | None) -> bool:
    shape = known_shape(kind)
    return shape is not None and prod(shape) <= MAX_ELEMENTS


def _type_of_array(value: Array) -> TensorType | None:
    try:
        number = helper.np_dtype_to_tensor_dtype(value.dtype)
    except ValueError:
        return None
    return TensorType(ELEMENT_TYPES[number].name, value.shape)


def _has_references(node: Node) -> bool:
    """Return whether an attribute of `node` refers to an argument of a function call."""
    return any(attribute.ref_attr_name for attribute in node.attribute)
