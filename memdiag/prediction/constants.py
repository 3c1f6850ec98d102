"""Values of a graph that are the same in every run."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from memdiag.graph.tensor_data import Array
from memdiag.graph.tensor_types import TensorType

_MOST_WEIGHTS = 64

_SHARED = 8
"""The runtime makes one of equal scalars and lists of up to so many numbers."""


@dataclass(eq=False, slots=True)
class Constant:
    """A value that is the same in every run: a weight, or what was computed from weights.

    `weights` are those weights, by their places in the model.
    """

    kind: TensorType | None
    weights: "array[int]"
    value: Array | None = None
    stored: bool = False
    """Whether the model itself has it."""
    read: bool = False
    """Whether a node that is not folded reads it."""


def dtypes_of(constants: Sequence[Constant]) -> list[str]:
    """Return the element types that are known of `constants`."""
    return [one.kind.dtype for one in constants if one.kind is not None]


def weights_of(constants: Sequence[Constant]) -> "array[int]":
    """Return the weights that `constants` come from, each once, and not more than the most."""
    found = {weight: None for one in constants[:1] for weight in one.weights}
    for one in constants[1:]:
        for weight in one.weights:
            if len(found) < _MOST_WEIGHTS:
                found[weight] = None
    if constants and len(found) == len(constants[0].weights):
        return constants[0].weights
    return array("I", found)


def likeness(constant: Constant | None) -> object:
    """Return what is equal for constants that the runtime takes for the same."""
    if constant is None:
        return None
    value, kind = constant.value, constant.kind
    few = value is not None and value.ndim < 2 and value.size <= _SHARED
    # What was folded comes too late for that.
    if value is None or kind is None or not few or not constant.stored:
        return (constant.weights[0],) if constant.stored else id(constant)
    return (kind.dtype, value.shape, value.tobytes())
