"""Constraints on the values of an input: indices into tables, and numbers to be equal to.

An input is followed through operators that only move its values, into subgraphs and functions, to
the operators that use it as indices or compare it with constants.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from memdiag.model.constant_values import integer_value
from memdiag.model.graph_index import (
    MICROSOFT_DOMAIN,
    Node,
    Scope,
    Use,
    integer_attribute,
    integers_attribute,
)
from memdiag.model.tensor_data import CONSTANT_FIELDS, constant_array, inline_array
from memdiag.model.tensor_types import Array

MAX_VISITS = 20_000
"""Maximum uses to which an input is followed; limits set by further uses stay unknown."""

MAX_SHAPE_STEPS = 50
"""Maximum operators through which the shape of a table is followed."""

MAX_INTEGERS = 1024
"""Elements of a constant whose values are read as axes, indices or sizes."""

# The inputs whose values are in the first output unchanged (for Split, in all outputs).
_MOVED_INPUTS: dict[str, tuple[int, ...] | None] = {
    "Abs": (0,),
    "Cast": (0,),
    "CastLike": (0,),
    "Clip": (0,),
    "Compress": (0,),
    "Concat": None,
    "Expand": (0,),
    "Flatten": (0,),
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "Identity": (0,),
    "Max": None,
    "Min": None,
    "ReduceMax": (0,),
    "ReduceMin": (0,),
    "Reshape": (0,),
    "Slice": (0,),
    "Split": (0,),
    "Squeeze": (0,),
    "Tile": (0,),
    "Transpose": (0,),
    "Unsqueeze": (0,),
    "Where": (1, 2),
}
# Operators that take an index: the inputs of the index and the table, and the default axis.
_LOOKUP_INPUTS = {
    ("", "Gather"): ((1, 0, 0),),
    ("", "GatherElements"): ((1, 0, 0),),
    ("", "ScatterElements"): ((1, 0, 0),),
    ("", "Scatter"): ((1, 0, 0),),
    ("", "RotaryEmbedding"): ((3, 1, 0),),
    (MICROSOFT_DOMAIN, "GatherBlockQuantized"): ((1, 0, 0),),
    (MICROSOFT_DOMAIN, "RotaryEmbedding"): ((1, 2, 0),),
    (MICROSOFT_DOMAIN, "EmbedLayerNormalization"): ((0, 2, 0), (1, 4, 0), (8, 3, 0)),
}
_FIXED_AXIS_OPERATORS = ("RotaryEmbedding", "EmbedLayerNormalization")
_SAME_SHAPE_OPERATORS = ("Cast", "CastLike", "DequantizeLinear", "Identity")


class IndexLimit(NamedTuple):
    """Upper limit of the values of an input that is used as indices.

    Attributes:
        size: the values must be smaller; None if the size of the table is unknown.
        table: the description of the table, such as ``rows of embedding``.
    """

    size: int | None
    table: str


class InputConstraints(NamedTuple):
    """Constraints that the uses of an input put on its values.

    Attributes:
        limits: an upper limit for each use as indices.
        equals: constants that the values are compared with.
    """

    limits: tuple[IndexLimit, ...]
    equals: tuple[float, ...]

    @property
    def smallest(self) -> IndexLimit | None:
        """The smallest known limit; if none is known any limit, and None without a limit."""
        known_limits = [limit for limit in self.limits if limit.size is not None]
        if known_limits:
            return min(known_limits, key=lambda limit: limit.size or 0)
        return self.limits[0] if self.limits else None


def input_constraints(
    main: Scope, name: str, input_shapes: Mapping[str, tuple[int, ...] | None]
) -> InputConstraints:
    """Return the constraints on the values of the input `name` of the model of scope `main`.

    `input_shapes` are the shapes of the model's inputs in the run: an input can be the table that
    another input indexes.
    """
    return _ConstraintSearch(main, input_shapes).run(name)


class _ConstraintSearch:
    """Search for the constraints on one input.

    Attributes:
        limits, equals: the constraints found so far.
        pending: values to follow: scope, name, and the constant that was added to the input.
        offsets: the largest constant with which each value was followed.
    """

    def __init__(self, main: Scope, input_shapes: Mapping[str, tuple[int, ...] | None]) -> None:
        self.main = main
        self.input_shapes = input_shapes
        self.limits: list[IndexLimit] = []
        self.equals: list[float] = []
        # Values to follow: their scope, their name, and the number added to the input so far.
        self.pending: list[tuple[Scope, str, int]] = []
        self.offsets: dict[tuple[Scope, str], int] = {}

    def run(self, name: str) -> InputConstraints:
        self._follow_value(self.main, name, 0)
        visits = 0
        while self.pending and visits < MAX_VISITS:
            scope, value, offset = self.pending.pop()
            for use in scope.uses(value):
                visits += 1
                self._follow_use(use, offset)
            for outer, outer_name in _outer_names_of_output(scope, value):
                self._follow_value(outer, outer_name, offset)
        return InputConstraints(tuple(self.limits), tuple(self.equals))

    def _follow_value(self, scope: Scope, name: str, offset: int) -> None:
        """Append a value to `pending`, unless it was followed with at least the same `offset`."""
        if name and self.offsets.get((scope, name), offset - 1) < offset:
            self.offsets[scope, name] = offset
            self.pending.append((scope, name, offset))

    def _follow_use(self, use: Use, offset: int) -> None:
        scope, node, index = use
        for inner_scope, inner_name in _inner_names_of_input(scope, node, index):
            self._follow_value(inner_scope, inner_name, offset)
        for index_input, table_input, axis in _LOOKUP_INPUTS.get(
            (node.domain_key, node.op_type), ()
        ):
            if index == index_input and len(node.input) > table_input:
                if node.op_type not in _FIXED_AXIS_OPERATORS:
                    axis = integer_attribute(node, "axis", 0)
                self._limit_by_table(scope, node.input[table_input], axis, offset)
        if not node.is_onnx:
            return
        if node.op_type in _MOVED_INPUTS:
            moved_inputs = _MOVED_INPUTS[node.op_type]
            if moved_inputs is None or index in moved_inputs:
                for output in node.output if node.op_type == "Split" else node.output[:1]:
                    self._follow_value(scope, output, offset)
        elif node.op_type in ("Add", "Sub") and len(node.input) == 2:
            self._follow_shifted_value(scope, node, index, offset)
        elif node.op_type == "Equal" and len(node.input) == 2:
            values = small_constant(scope, node.input[1 - index])
            if values is not None and values.size and values.dtype.kind in "iuf":
                self.equals += [float(value) - offset for value in values.reshape(-1)[:16]]
        elif node.op_type == "OneHot" and index == 0 and len(node.input) > 1:
            depth = small_integers(scope, node.input[1])
            if depth is not None and len(depth) == 1:
                self._add_limit(depth[0], offset, "the depth of a OneHot")
        if node.op_type in ("GatherND", "ScatterND") and index == 1:
            self._limit_nd(scope, node, offset)

    def _follow_shifted_value(self, scope: Scope, node: Node, index: int, offset: int) -> None:
        """Follow the result of an Add or Sub of a value and a constant integer."""
        constant = integer_value(small_constant(scope, node.input[1 - index]))
        if constant is None:
            return
        if node.op_type == "Add":
            self._follow_value(scope, node.output[0], offset + constant)
        elif index == 0:
            self._follow_value(scope, node.output[0], offset - constant)

    def _limit_by_table(self, scope: Scope, table: str, axis: int, offset: int) -> None:
        shape = self._known_table_shape(scope, table, MAX_SHAPE_STEPS)
        words = f"rows of {table}"
        if shape is None or not -len(shape) <= axis < len(shape):
            self.limits.append(IndexLimit(None, words))
            return
        axis %= len(shape)
        if axis:
            words = f"axis {axis} of {table}"
        size = shape[axis]
        if size is None:
            self.limits.append(IndexLimit(None, words))
        else:
            self._add_limit(size, offset, words)

    def _limit_nd(self, scope: Scope, node: Node, offset: int) -> None:
        """Add the limit for GatherND or ScatterND, whose indices select along several axes."""
        shape = self._known_table_shape(scope, node.input[0], MAX_SHAPE_STEPS)
        indices = self._known_table_shape(scope, node.input[1], MAX_SHAPE_STEPS)
        first = integer_attribute(node, "batch_dims", 0)
        last = first + indices[-1] if indices and indices[-1] is not None else None
        sizes = [size for size in (shape or ())[first:last] if size is not None]
        if sizes:
            self._add_limit(min(sizes), offset, f"the smallest axis of {node.input[0]}")
        else:
            self.limits.append(IndexLimit(None, f"axes of {node.input[0]}"))

    def _add_limit(self, size: int, offset: int, table: str) -> None:
        self.limits.append(IndexLimit(max(size - max(offset, 0), 0), table))

    def _known_table_shape(
        self, scope: Scope, name: str, steps: int
    ) -> tuple[int | None, ...] | None:
        """Return the shape of a value as far as it is known without a run; None if not even the
        rank."""
        defining_scope = scope.defining_scope(name)
        if defining_scope is None or not steps:
            return None
        if defining_scope is self.main and self.input_shapes.get(name) is not None:
            return self.input_shapes[name]
        if name in defining_scope.graph.declared_shapes:
            return defining_scope.graph.declared_shapes[name]
        node = defining_scope.producers.get(name)
        if node is None:
            outer = defining_scope.argument(name)
            return self._known_table_shape(*outer, steps - 1) if outer else None
        if not node.input or node.domain_key not in ("", MICROSOFT_DOMAIN):
            return None
        if node.op_type in _SAME_SHAPE_OPERATORS:
            return self._known_table_shape(defining_scope, node.input[0], steps - 1)
        if node.op_type == "Transpose":
            return _permuted_shape(
                node, self._known_table_shape(defining_scope, node.input[0], steps - 1)
            )
        return None


def _inner_names_of_input(scope: Scope, node: Node, index: int) -> Iterator[tuple[Scope, str]]:
    """Yield the names of input `index` of `node` in the loop body or function that gets it."""
    inner_scopes = scope.subgraphs.get(node, [])
    if node.op_type not in ("Loop", "Scan") or (node.op_type == "Loop" and index < 2):
        inner_scopes = []
    body = scope.call(node)
    for inner in (*inner_scopes, body) if body else inner_scopes:
        if index < len(inner.inputs):
            yield inner, inner.inputs[index]


def _outer_names_of_output(scope: Scope, name: str) -> Iterator[tuple[Scope, str]]:
    """Yield the names of an output of a body or function outside and in the next iteration."""
    node, parent = scope.owner, scope.parent
    if node is None or parent is None:
        return
    for index, output in enumerate(scope.outputs):
        if output != name:
            continue
        # The first output of a Loop's body is the condition, which the Loop itself does not output.
        outer_index = index - 1 if node.op_type == "Loop" and not scope.is_function else index
        if 0 <= outer_index < len(node.output):
            yield parent, node.output[outer_index]
        if node.op_type == "Loop" and outer_index >= 0 and index + 1 < len(scope.inputs):
            yield scope, scope.inputs[index + 1]


def small_constant(scope: Scope, name: str, steps: int = MAX_SHAPE_STEPS) -> Array | None:
    """Return the values of a small constant, also behind Cast, Reshape and the like; else None."""
    defining_scope = scope.defining_scope(name)
    if defining_scope is None or not steps:
        return None
    tensor = defining_scope.graph.tensors.get(name)
    if tensor is not None:
        return inline_array(tensor)
    node = defining_scope.producers.get(name)
    if node is None:
        outer = defining_scope.argument(name)
        return small_constant(*outer, steps - 1) if outer else None
    if node.op_type == "Constant":
        for attribute in node.attribute:
            if attribute.name in CONSTANT_FIELDS and not attribute.ref_attr_name:
                return constant_array(attribute)[1]
    if node.op_type in ("Cast", "CastLike", "Identity", "Reshape", "Squeeze", "Unsqueeze"):
        return small_constant(defining_scope, node.input[0], steps - 1) if node.input else None
    return None


def small_integers(scope: Scope, name: str) -> list[int] | None:
    """Return the values of a constant of a few whole numbers, also behind Cast; else None."""
    values = small_constant(scope, name)
    if values is None or values.size > MAX_INTEGERS or values.dtype.kind not in "iuf":
        return None
    return [int(value) for value in values.ravel()] if np.isfinite(values).all() else None


def _permuted_shape(
    node: Node, shape: tuple[int | None, ...] | None
) -> tuple[int | None, ...] | None:
    """Return `shape` after the Transpose `node`; None if its axes do not fit."""
    if shape is None:
        return None
    order = integers_attribute(node, "perm") or tuple(range(len(shape)))[::-1]
    return tuple(shape[axis] for axis in order) if sorted(order) == [*range(len(shape))] else None
