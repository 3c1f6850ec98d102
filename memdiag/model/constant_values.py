"""Evaluation of operators on small constants, to compute shapes, axes and conditions."""

from collections.abc import Callable, Sequence

import numpy as np

from memdiag.model.graph_index import Node, integer_attribute, integers_attribute
from memdiag.model.tensor_data import inline_array
from memdiag.model.tensor_types import ELEMENT_TYPES, Array

MAX_VALUES = 1024
"""Elements of a constant that is evaluated. Shapes and conditions have a few."""

RANDOM_OPERATORS = frozenset(
    {
        *("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike"),
        *("RandomUniform", "RandomUniformLike"),
    }
)
"""Operators whose result differs from one evaluation to the next."""

_ComputeOutput = Callable[[Node, Sequence[Array]], Array | None]


def evaluate_node(node: Node, inputs: Sequence[Array]) -> Array | None:
    """Return the output of `node` for constant `inputs`; None if its operator is not supported.

    Neither an operand nor the result has more than `MAX_VALUES` elements.
    """
    compute = _COMPUTE_BY_OPERATOR.get(node.op_type)
    if compute is None or any(operand.size > MAX_VALUES for operand in inputs):
        return None
    try:
        with np.errstate(all="ignore"):
            result = compute(node, inputs)
    except (ValueError, IndexError, TypeError, ArithmeticError, MemoryError, RuntimeError):
        return None
    if result is None:
        return None
    result = np.asarray(result)
    return result if result.size <= MAX_VALUES else None


def integer_value(value: Array | None) -> int | None:
    """Return the value of a number or condition; None if it is not known, or is not an integer."""
    if value is None or value.size != 1 or value.dtype.kind not in "biu":
        return None
    return int(value.reshape(()))


def condition_value(value: Array | None) -> bool | None:
    """Return the value of a condition; None if it is not known, or is not a condition."""
    number = integer_value(value)
    return None if number is None else bool(number)


def _broadcast_rule(function: Callable[..., Array]) -> _ComputeOutput:
    """Return the rule of a function whose result has the shape to which operands broadcast."""

    def compute(node: Node, inputs: Sequence[Array]) -> Array | None:
        shape = np.broadcast_shapes(*(operand.shape for operand in inputs))
        return function(*inputs) if _checked_element_count(shape) <= MAX_VALUES else None

    return compute


def _first_type_rule(function: Callable[..., Array]) -> _ComputeOutput:
    """Return the rule of a function whose result has the element type of its first operand."""
    return _broadcast_rule(lambda *inputs: np.asarray(function(*inputs)).astype(inputs[0].dtype))


def _divide_values(left: Array, right: Array) -> Array:
    if left.dtype.kind == "f":
        return np.asarray(left / right)
    if not right.all():
        raise ZeroDivisionError
    quotient = np.abs(left) // np.abs(right)
    # The runtime rounds towards zero.
    return np.asarray(np.where((left < 0) != (right < 0), -quotient, quotient))


def _compute_cast(node: Node, inputs: Sequence[Array]) -> Array | None:
    element = ELEMENT_TYPES.get(integer_attribute(node, "to", 0))
    if element is None or not element.native or not element.bits:
        return None
    if "c" in (inputs[0].dtype.kind, element.dtype.kind):  # the runtime casts no complex numbers
        return None
    return inputs[0].astype(element.dtype)


def _compute_gather(node: Node, inputs: Sequence[Array]) -> Array:
    return np.take(inputs[0], inputs[1], axis=integer_attribute(node, "axis", 0))


def _compute_concat(node: Node, inputs: Sequence[Array]) -> Array:
    return np.concatenate(inputs, axis=integer_attribute(node, "axis", 0))


def _compute_unsqueeze(node: Node, inputs: Sequence[Array]) -> Array:
    return np.expand_dims(inputs[0], _operand_axes(node, inputs))


def _operand_axes(node: Node, inputs: Sequence[Array]) -> tuple[int, ...]:
    """Return the axes of an operator, an attribute of it before opset 13 and an input since."""
    if len(inputs) > 1:
        return tuple(inputs[1].reshape(-1).tolist())
    return integers_attribute(node, "axes")


def _compute_squeeze(node: Node, inputs: Sequence[Array]) -> Array:
    axes = _operand_axes(node, inputs)
    return np.squeeze(inputs[0], axes or None)


def _compute_slice(node: Node, inputs: Sequence[Array]) -> Array | None:
    if len(inputs) > 1:
        lists = [operand.reshape(-1).tolist() for operand in inputs[1:]]
    else:
        lists = [list(integers_attribute(node, name)) for name in ("starts", "ends", "axes")]
    starts, ends = lists[0], lists[1]
    axes = lists[2] if len(lists) > 2 and lists[2] else list(range(len(starts)))
    steps = lists[3] if len(lists) > 3 else [1] * len(starts)
    parts = [slice(None)] * inputs[0].ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = inputs[0].shape[axis]
        # Beyond the first element, backwards: numpy would take a negative end from the back.
        last = None if step < 0 and end < -size else end
        parts[axis] = slice(start, last, step)
    return inputs[0][tuple(parts)]


def _compute_reshape(node: Node, inputs: Sequence[Array]) -> Array:
    sizes = inputs[1].reshape(-1).tolist()
    if not integer_attribute(node, "allowzero", 0):
        sizes = [inputs[0].shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return inputs[0].reshape(sizes)


def _compute_constant_of_shape(node: Node, inputs: Sequence[Array]) -> Array | None:
    sizes = inputs[0].reshape(-1).tolist()
    if _checked_element_count(sizes) > MAX_VALUES:
        return None
    fill: Array | None = np.zeros(1, np.float32)
    for attribute in node.attribute:
        if attribute.name == "value":
            fill = inline_array(attribute.t)
    return None if fill is None else np.full(sizes, fill.reshape(-1)[0], fill.dtype)


def _compute_expand(node: Node, inputs: Sequence[Array]) -> Array | None:
    sizes = inputs[1].reshape(-1).tolist()
    shape = np.broadcast_shapes(inputs[0].shape, tuple(sizes))
    return (
        np.broadcast_to(inputs[0], shape) if _checked_element_count(shape) <= MAX_VALUES else None
    )


def _compute_tile(node: Node, inputs: Sequence[Array]) -> Array | None:
    repeats = inputs[1].reshape(-1).tolist()
    if _checked_element_count(repeats) * inputs[0].size > MAX_VALUES:
        return None
    return np.tile(inputs[0], repeats)


def _compute_range(node: Node, inputs: Sequence[Array]) -> Array | None:
    start, limit, step = (operand.reshape(-1)[0] for operand in inputs)
    count = max(int(np.ceil((float(limit) - float(start)) / float(step))), 0)
    if count > MAX_VALUES:
        return None
    return np.asarray(start + np.arange(count) * step).astype(inputs[0].dtype)


def _select_values(condition: Array, yes: Array, no: Array) -> Array:
    return np.where(condition, yes, no)


def _compute_reduce_prod(node: Node, inputs: Sequence[Array]) -> Array:
    axes = _operand_axes(node, inputs)
    keeps_axes = bool(integer_attribute(node, "keepdims", 1))
    product = np.prod(inputs[0], axis=axes or None, keepdims=keeps_axes)
    return np.asarray(product).astype(inputs[0].dtype)


def _compute_transpose(node: Node, inputs: Sequence[Array]) -> Array:
    return np.transpose(inputs[0], integers_attribute(node, "perm") or None)


def _compute_nonzero(node: Node, inputs: Sequence[Array]) -> Array:
    return np.stack(np.nonzero(inputs[0])).astype(np.int64)


def _checked_element_count(sizes: Sequence[int]) -> int:
    if any(size < 0 for size in sizes):
        raise ValueError
    count = 1
    for size in sizes:
        count *= size
    return count


_COMPUTE_BY_OPERATOR: dict[str, _ComputeOutput] = {
    "Abs": _first_type_rule(np.abs),
    "Add": _first_type_rule(np.add),
    "And": _broadcast_rule(np.logical_and),
    "Cast": _compute_cast,
    "Ceil": _first_type_rule(np.ceil),
    "Concat": _compute_concat,
    "ConstantOfShape": _compute_constant_of_shape,
    "Div": _first_type_rule(_divide_values),
    "Equal": _broadcast_rule(np.equal),
    "Expand": _compute_expand,
    "Floor": _first_type_rule(np.floor),
    "Gather": _compute_gather,
    "Greater": _broadcast_rule(np.greater),
    "GreaterOrEqual": _broadcast_rule(np.greater_equal),
    "Less": _broadcast_rule(np.less),
    "LessOrEqual": _broadcast_rule(np.less_equal),
    "Max": lambda node, inputs: np.asarray(np.maximum.reduce(list(inputs))),
    "Min": lambda node, inputs: np.asarray(np.minimum.reduce(list(inputs))),
    "Mul": _first_type_rule(np.multiply),
    "Neg": _first_type_rule(np.negative),
    "NonZero": _compute_nonzero,
    "Not": _broadcast_rule(np.logical_not),
    "Or": _broadcast_rule(np.logical_or),
    "Range": _compute_range,
    "ReduceProd": _compute_reduce_prod,
    "Reshape": _compute_reshape,
    "Size": lambda node, inputs: np.array(inputs[0].size, np.int64),
    "Slice": _compute_slice,
    "Sqrt": _first_type_rule(np.sqrt),
    "Squeeze": _compute_squeeze,
    "Sub": _first_type_rule(np.subtract),
    "Tile": _compute_tile,
    "Transpose": _compute_transpose,
    "Unsqueeze": _compute_unsqueeze,
    "Where": _broadcast_rule(_select_values),
}

EVALUATED_OPERATORS = frozenset(_COMPUTE_BY_OPERATOR)
"""The operators that `evaluate_node` computes."""
