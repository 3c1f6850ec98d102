"""Evaluation of operators on small constants, to compute shapes, axes and conditions."""

from collections.abc import Callable, Sequence

import numpy as np

from memdiag.model.graph_index import Node, integer, integers
from memdiag.model.tensor_data import inline_array
from memdiag.model.tensor_types import ELEMENT_TYPES, Array

MAX_VALUES = 1024
"""Elements of a constant that is evaluated. Shapes and conditions have a few."""

RANDOM = frozenset(
    {
        *("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike"),
        *("RandomUniform", "RandomUniformLike"),
    }
)
"""Their result differs from one evaluation to the next."""

_Compute = Callable[[Node, Sequence[Array]], Array | None]


def evaluate(node: Node, inputs: Sequence[Array]) -> Array | None:
    """Return the output of `node` for constant `inputs`; None if its operator is not supported.

    Neither an operand nor the result has more than `MAX_VALUES` elements.
    """
    compute = _OPERATORS.get(node.op_type)
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


def whole(value: Array | None) -> int | None:
    """Return the value of a number or condition; None if it is not known, or is no integer."""
    if value is None or value.size != 1 or value.dtype.kind not in "biu":
        return None
    return int(value.reshape(()))


def truth(value: Array | None) -> bool | None:
    """Return the value of a condition; None if it is not known, or no condition."""
    number = whole(value)
    return None if number is None else bool(number)


def _plain(function: Callable[..., Array]) -> _Compute:
    """Return the rule of a function whose result has the shape to which operands broadcast."""

    def compute(node: Node, inputs: Sequence[Array]) -> Array | None:
        shape = np.broadcast_shapes(*(operand.shape for operand in inputs))
        return function(*inputs) if _count(shape) <= MAX_VALUES else None

    return compute


def _typed(function: Callable[..., Array]) -> _Compute:
    """Return the rule of a function whose result has the element type of its first operand."""
    return _plain(lambda *inputs: np.asarray(function(*inputs)).astype(inputs[0].dtype))


def _divide(left: Array, right: Array) -> Array:
    if left.dtype.kind == "f":
        return np.asarray(left / right)
    if not right.all():
        raise ZeroDivisionError
    quotient = np.abs(left) // np.abs(right)
    # The runtime rounds towards zero.
    return np.asarray(np.where((left < 0) != (right < 0), -quotient, quotient))


def _cast(node: Node, inputs: Sequence[Array]) -> Array | None:
    element = ELEMENT_TYPES.get(integer(node, "to", 0))
    if element is None or not element.native or not element.bits:
        return None
    if "c" in (inputs[0].dtype.kind, element.dtype.kind):  # the runtime casts no complex numbers
        return None
    return inputs[0].astype(element.dtype)


def _gather(node: Node, inputs: Sequence[Array]) -> Array:
    return np.take(inputs[0], inputs[1], axis=integer(node, "axis", 0))


def _concat(node: Node, inputs: Sequence[Array]) -> Array:
    return np.concatenate(inputs, axis=integer(node, "axis", 0))


def _unsqueeze(node: Node, inputs: Sequence[Array]) -> Array:
    axes = integers(node, "axes") or tuple(inputs[1].reshape(-1).tolist())
    return np.expand_dims(inputs[0], tuple(axes))


def _squeeze(node: Node, inputs: Sequence[Array]) -> Array:
    axes = integers(node, "axes")
    if len(inputs) > 1:
        axes = tuple(inputs[1].reshape(-1).tolist())
    return np.squeeze(inputs[0], axes or None)


def _slice(node: Node, inputs: Sequence[Array]) -> Array | None:
    if len(inputs) > 1:
        lists = [operand.reshape(-1).tolist() for operand in inputs[1:]]
    else:
        lists = [list(integers(node, name)) for name in ("starts", "ends", "axes")]
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


def _reshape(node: Node, inputs: Sequence[Array]) -> Array:
    sizes = inputs[1].reshape(-1).tolist()
    if not integer(node, "allowzero", 0):
        sizes = [inputs[0].shape[at] if size == 0 else size for at, size in enumerate(sizes)]
    return inputs[0].reshape(sizes)


def _constant_of_shape(node: Node, inputs: Sequence[Array]) -> Array | None:
    sizes = inputs[0].reshape(-1).tolist()
    if _count(sizes) > MAX_VALUES:
        return None
    fill: Array | None = np.zeros(1, np.float32)
    for attribute in node.attribute:
        if attribute.name == "value":
            fill = inline_array(attribute.t)
    return None if fill is None else np.full(sizes, fill.reshape(-1)[0], fill.dtype)


def _expand(node: Node, inputs: Sequence[Array]) -> Array | None:
    sizes = inputs[1].reshape(-1).tolist()
    shape = np.broadcast_shapes(inputs[0].shape, tuple(sizes))
    return np.broadcast_to(inputs[0], shape) if _count(shape) <= MAX_VALUES else None


def _tile(node: Node, inputs: Sequence[Array]) -> Array | None:
    repeats = inputs[1].reshape(-1).tolist()
    if _count(repeats) * inputs[0].size > MAX_VALUES:
        return None
    return np.tile(inputs[0], repeats)


def _range(node: Node, inputs: Sequence[Array]) -> Array | None:
    start, limit, step = (operand.reshape(-1)[0] for operand in inputs)
    count = max(int(np.ceil((float(limit) - float(start)) / float(step))), 0)
    if count > MAX_VALUES:
        return None
    return np.asarray(start + np.arange(count) * step).astype(inputs[0].dtype)


def _where(condition: Array, yes: Array, no: Array) -> Array:
    return np.where(condition, yes, no)


def _product(node: Node, inputs: Sequence[Array]) -> Array:
    axes = integers(node, "axes")
    if len(inputs) > 1:
        axes = tuple(inputs[1].reshape(-1).tolist())
    keep = bool(integer(node, "keepdims", 1))
    found = np.prod(inputs[0], axis=axes or None, keepdims=keep)
    return np.asarray(found).astype(inputs[0].dtype)


def _transpose(node: Node, inputs: Sequence[Array]) -> Array:
    return np.transpose(inputs[0], integers(node, "perm") or None)


def _nonzero(node: Node, inputs: Sequence[Array]) -> Array:
    return np.stack(np.nonzero(inputs[0])).astype(np.int64)


def _count(sizes: Sequence[int]) -> int:
    if any(size < 0 for size in sizes):
        raise ValueError
    count = 1
    for size in sizes:
        count *= size
    return count


_OPERATORS: dict[str, _Compute] = {
    "Abs": _typed(np.abs),
    "Add": _typed(np.add),
    "And": _plain(np.logical_and),
    "Cast": _cast,
    "Ceil": _typed(np.ceil),
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Div": _typed(_divide),
    "Equal": _plain(np.equal),
    "Expand": _expand,
    "Floor": _typed(np.floor),
    "Gather": _gather,
    "Greater": _plain(np.greater),
    "GreaterOrEqual": _plain(np.greater_equal),
    "Less": _plain(np.less),
    "LessOrEqual": _plain(np.less_equal),
    "Max": lambda node, inputs: np.asarray(np.maximum.reduce(list(inputs))),
    "Min": lambda node, inputs: np.asarray(np.minimum.reduce(list(inputs))),
    "Mul": _typed(np.multiply),
    "Neg": _typed(np.negative),
    "NonZero": _nonzero,
    "Not": _plain(np.logical_not),
    "Or": _plain(np.logical_or),
    "Range": _range,
    "ReduceProd": _product,
    "Reshape": _reshape,
    "Size": lambda node, inputs: np.array(inputs[0].size, np.int64),
    "Slice": _slice,
    "Sqrt": _typed(np.sqrt),
    "Squeeze": _squeeze,
    "Sub": _typed(np.subtract),
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _plain(_where),
}

EVALUATED = frozenset(_OPERATORS)
"""The operators that `evaluate` computes."""
