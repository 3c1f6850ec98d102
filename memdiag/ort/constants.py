"""Values of a graph that are the same in every run."""

from collections.abc import Sequence
from dataclasses import dataclass

from memdiag.model.tensor_data import Array
from memdiag.model.tensor_types import TensorType
from memdiag.records.weights import Weight

MAX_WEIGHTS = 64
"""Weights that are known of one computed value."""

_SHARED = 8
"""The runtime makes one of equal scalars and lists of up to so many numbers."""


@dataclass(eq=False, slots=True)
class Constant:
    """A value that is the same in every run: a weight, or what was computed from `weights`."""

    kind: TensorType | None
    weights: tuple[Weight, ...]
    value: Array | None = None
    stored: bool = False
    """Whether the model itself has it."""
    read: bool = False
    """Whether a node that is not folded reads it."""


def dtypes_of(constants: Sequence[Constant]) -> list[str]:
    """Return the element types that are known of `constants`."""
    return [one.kind.dtype for one in constants if one.kind is not None]


def weights_of(constants: Sequence[Constant]) -> tuple[Weight, ...]:
    """Return the weights that `constants` come from, each once, and not more than the maximum."""
    if len(constants) == 1:
        return constants[0].weights
    found = dict.fromkeys(weight for one in constants for weight in one.weights)
    return tuple(found)[:MAX_WEIGHTS]


def likeness(constant: Constant | None) -> object:
    """Return what is equal for constants that the runtime takes for the same."""
    if constant is None:
        return None
    value, kind = constant.value, constant.kind
    few = value is not None and value.ndim < 2 and value.size <= _SHARED
    # What was folded comes too late for that.
    if value is None or kind is None or not few or not constant.stored:
        return constant.weights[0] if constant.stored else id(constant)
    return (kind.dtype, value.shape, value.tobytes())
