"""Inputs that memdiag generates: a plan for each, derived from the graph, and the arrays."""

import re
import zlib
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Literal

import numpy as np
from onnx import TypeProto, ValueInfoProto

from memdiag.errors import UsageError
from memdiag.model.axis_roles import AUDIO_SAMPLES, UNKNOWN_ROLE, axis_roles, total_lengths
from memdiag.model.count_inputs import count_inputs, free_axes, given_counts
from memdiag.model.dimensions import InputAxis, axes_of, choose_sizes, tensor_type
from memdiag.model.graph_index import Graph, main_scope
from memdiag.model.index_ranges import InputConstraints, input_constraints
from memdiag.model.model_file import ModelFile
from memdiag.model.tensor_types import ELEMENT_TYPES, STRING_ELEMENT, Array, ElementType
from memdiag.records.base import Record
from memdiag.stored_arrays import GivenArray

InputKind = Literal["tensor", "sequence", "optional"]
FillKind = Literal["normal", "uniform", "positions", "constant", "given"]

MAX_SETTING_ELEMENTS = 8
"""A tensor of more elements is data, not a setting such as a speed or a temperature."""

# Values of settings, by a word of the input's name.
_SETTING_VALUES: dict[str, float] = {
    "alpha": 1.0,
    "beta": 1.0,
    "conf": 0.5,
    "confidence": 0.5,
    "factor": 1.0,
    "guidance": 1.0,
    "iou": 0.5,
    "penalty": 1.0,
    "rate": 1.0,
    "ratio": 1.0,
    "scale": 1.0,
    "scales": 1.0,
    "sigma": 1.0,
    "speed": 1.0,
    "strength": 1.0,
    "temperature": 1.0,
    "thresh": 0.5,
    "threshold": 0.5,
    "timestep": 1.0,
}

# The bits of 1.0 in types that numpy lacks: below a byte, of all elements in the byte.
_ONE_BITS = {
    "float8e4m3fn": 0x38,
    "float8e4m3fnuz": 0x40,
    "float8e5m2": 0x3C,
    "float8e5m2fnuz": 0x40,
    "float8e8m0": 0x7F,
    "float4e2m1": 0x22,
    "float6e2m3": 0x08,
    "float6e3m2": 0x0C,
    "uint4": 0x11,
    "int4": 0x11,
    "uint2": 0x55,
    "int2": 0x55,
}


_ML_DTYPES = {
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "float8e8m0": "float8_e8m0fnu",
}


class InputPlan(Record, frozen=True, kw_only=True):
    """The plan for one input of a run.

    Attributes:
        kind: ``tensor``, ``sequence`` (a list of one tensor), or ``optional`` (a tensor that the
            model does not require).
        element_type: ONNX's number of the element type.
        dtype: ONNX's name of the element type in lower case.
        source: whether the array is generated or given by the user.
        note: how the values are chosen, in words.
        fill: how `make_array` fills the array: ``normal`` (standard normal), ``uniform`` (integers
            from `low` up to, not including, `high`), ``positions`` (0, 1, 2 … along the last axis,
            from 0 again at `high`), ``constant`` (`value` in all elements), or ``given``.
    """

    name: str
    kind: InputKind
    element_type: int
    dtype: str
    shape: tuple[int, ...]
    source: Literal["generated", "given"]
    note: str
    fill: FillKind
    low: int | None = None
    high: int | None = None
    value: float | int | str | None = None

    @property
    def bits_type(self) -> int | None:
        """`element_type` if numpy has no such type, else None.

        The array then has the bits of the elements, and the type must be passed to the runtime.
        """
        return None if ELEMENT_TYPES[self.element_type].native else self.element_type


def plan_inputs(
    model_file: ModelFile,
    *,
    dims: Mapping[str, int],
    given: Mapping[str, GivenArray],
    free_dim: int | None = None,
) -> tuple[InputPlan, ...]:
    """Return a plan for every input of `model_file` that has no default, in the model's order.

    Args:
        model_file: the open model.
        dims: sizes of free dimensions, by name, or by ``input:axis`` if they have no name.
        given: arrays for some of the inputs; they also set the dimensions they show.
        free_dim: the size of the other free dimensions. Dimensions that look like a batch (the
            first axis of an input, or a name with ``batch`` in it) are 1, and dimensions for
            which an operator accepts one size only keep that size. If None, sizes are
            realistic for their roles (see `axis_roles`).

    Raises:
        UsageError: a name in `dims` or `given` is not the model's, an array does not fit its
            input, or an input is of a kind that cannot be made (a map, a sparse tensor).
    """
    return _planned_inputs(model_file.graph, model_file.functions, dims, given, free_dim)


def make_array(plan: InputPlan, seed: int) -> Array:
    """Return the array that `plan` describes, the same for the same plan and seed.

    Types that numpy lacks are returned as their bits: bfloat16 as uint16, float8 as uint8. For
    types of less than a byte the array is uint8 and has the tensor's shape; the runtime reads
    packed elements from its first bytes.

    Raises:
        UsageError: the array of the plan is given by the user, or does not fit in memory.
    """
    if plan.fill == "given":
        raise UsageError(f"input {plan.name!r} was given as an array. Use that array.")
    # Seeded by the name, too, so that other inputs do not change this one.
    random = np.random.default_rng((seed, zlib.crc32(plan.name.encode())))
    element = ELEMENT_TYPES[plan.element_type]
    try:
        if plan.fill == "normal":
            return _normal_numbers(random, element, plan.shape)
        if plan.fill == "uniform":
            return random.integers(plan.low or 0, plan.high, plan.shape).astype(element.dtype)
        if plan.fill == "positions":
            positions = np.arange(plan.shape[-1]) % (plan.high or plan.shape[-1] or 1)
            return np.broadcast_to(positions, plan.shape).astype(element.dtype)
        if element is STRING_ELEMENT:
            return np.full(plan.shape, plan.value, dtype=np.str_)
        value = plan.value if element.native else _ONE_BITS[element.name]
        return np.full(plan.shape, value, element.dtype)
    except (MemoryError, OverflowError, ValueError) as error:
        raise UsageError(
            f"input {plan.name!r} of shape {list(plan.shape)} does not fit in memory. "
            "Choose smaller dimensions."
        ) from error


def _planned_inputs(
    graph: Graph,
    functions: Sequence[Graph],
    dims: Mapping[str, int],
    given: Mapping[str, GivenArray],
    free_dim: int | None,
) -> tuple[InputPlan, ...]:
    values = {value.name: value for value in graph.required_inputs}
    for name in given:
        if name not in values:
            inputs = ", ".join(values) or "none"
            raise UsageError(f"unknown input {name!r}. The model's inputs are: {inputs}.")
    axes = {name: axes_of(value) for name, value in values.items()}
    for name, array in given.items():
        _check_given_array(array, values[name], axes[name])
    counts = given_counts(graph, given)
    for name in counts.keys() & dims.keys():
        raise UsageError(f"input {name!r} is given both as an array and as a size. Give it once.")
    dims = {**dims, **counts}
    given_shapes = {name: tuple(array.shape) for name, array in given.items()}
    roles = axis_roles(graph, functions)
    is_chosen = {key: free_dim is None or role.is_required for key, role in roles.items()}
    sizes = choose_sizes(
        free_axes(graph),
        dims=dims,
        given=given_shapes,
        free_dim=free_dim or 1,
        usual={key: role.size for key, role in roles.items() if is_chosen[key]},
        totals=total_lengths(axes, roles) if free_dim is None else None,
        roles={key: role.name for key, role in roles.items() if role != UNKNOWN_ROLE},
    )
    # An input of unknown rank is tried with one axis: operators take that more often than none.
    shapes = {
        name: given_shapes.get(name, _planned_input_shape(axes[name], sizes, free_dim or 1))
        for name in values
    }
    length = max((sizes[key] for key, role in roles.items() if role.name == "sequence"), default=1)
    scope = main_scope(graph, functions)
    counts_by_name = count_inputs(graph)
    plans = []
    for name, value in values.items():
        element = _input_element_type(value)
        if name in given:
            fill_fields: dict[str, Any] = {"fill": "given", "note": "the array that was given"}
        elif name in counts_by_name:
            note = f"{sizes[name]}, {counts_by_name[name].reason}"
            fill_fields = {"fill": "constant", "value": sizes[name], "note": note}
        else:
            declared = axes[name]
            is_fixed = declared is not None and all(axis.size is not None for axis in declared)
            constraints = input_constraints(scope, name, shapes)
            is_single = is_fixed and prod(shapes[name]) == 1
            fill_fields = _fill_by_name(
                element, name, shapes[name], constraints, length
            ) or _fill_by_constraints(element, constraints, is_single=is_single)
        plans.append(
            InputPlan(
                name=name,
                kind=_input_kind(value.type),
                element_type=element.number,
                dtype=element.name,
                shape=shapes[name],
                source="given" if name in given else "generated",
                **fill_fields,
            )
        )
    return tuple(plans)


def _input_kind(kind: TypeProto) -> InputKind:
    """Return the kind of a plan for the type `kind`; an optional sequence is a sequence."""
    if kind.HasField("optional_type"):
        return "sequence" if kind.optional_type.elem_type.HasField("sequence_type") else "optional"
    return "sequence" if kind.HasField("sequence_type") else "tensor"


def _input_element_type(value: ValueInfoProto) -> ElementType:
    tensor = tensor_type(value.type)
    element = ELEMENT_TYPES.get(tensor.elem_type) if tensor is not None else None
    if element is None:
        kind = (value.type.WhichOneof("value") or "unknown").removesuffix("_type")
        words = f"of the kind {kind}" if tensor is None else f"of element type {tensor.elem_type}"
        raise UsageError(
            f"input {value.name!r} is {words}, which memdiag cannot generate. Use --no-run."
        )
    return element


def _planned_input_shape(
    axes: Sequence[InputAxis] | None, sizes: Mapping[str, int], free_dim: int
) -> tuple[int, ...]:
    if axes is None:
        return (free_dim,)
    return tuple(sizes[axis.key] if axis.size is None else axis.size for axis in axes)


def _fill_by_constraints(
    element: ElementType, constraints: InputConstraints, *, is_single: bool
) -> dict[str, Any]:
    """Return those of the fields `fill`, `note`, `low`, `high` and `value` of a plan that are set.

    `constraints` are those on its values; `is_single` means that it always has one element.
    """
    name = element.name
    if element is STRING_ELEMENT:
        return {"fill": "constant", "value": "a", "note": "the text 'a'"}
    if name == "bool":
        return {"fill": "constant", "value": True, "note": "true"}
    if not element.native:
        is_float = name in ("bfloat16",) or (name.startswith("float8") and name != "float8e8m0")
        if is_float:
            return {"fill": "normal", "note": "standard normal, as bits"}
        return {"fill": "constant", "value": 1, "note": "ones, as bits"}
    limit = constraints.smallest
    compared_values = [
        value
        for value in constraints.equals
        if limit is None or limit.size is None or 0 <= value < limit.size
        if _is_value_of_type(value, element)
    ]
    if is_single and compared_values:
        value = max(compared_values)
        number = value if element.dtype.kind == "f" else int(value)
        note = f"{number:g}, which the model compares it with"
        return {"fill": "constant", "value": number, "note": note}
    if limit is not None and element.dtype.kind in "iuf":
        if limit.size is None or limit.size < 2:
            index_words = "the only index" if limit.size else "an index"
            note = f"0, {index_words} into {limit.table}"
            return {"fill": "constant", "value": 0, "note": note}
        high = limit.size
        if element.dtype.kind in "iu":
            high = min(high, int(np.iinfo(element.dtype).max) + 1)
        note = f"indices below {high} ({limit.table})"
        return {"fill": "uniform", "low": 0, "high": high, "note": note}
    if element.dtype.kind in "iu":
        return {"fill": "constant", "value": 1, "note": "ones"}
    return {"fill": "normal", "note": "standard normal"}


def _fill_by_name(
    element: ElementType,
    name: str,
    shape: tuple[int, ...],
    constraints: InputConstraints,
    length: int,
) -> dict[str, Any] | None:
    """Return fields as `_fill_by_constraints` does, for an input with a known word in its name.

    Return None for other inputs.

    `length` is the length of the sequence, for inputs such as ``input_lengths``.
    """
    if not element.native or element.dtype.kind not in "iuf":
        return None
    words = set(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()))
    is_integer = element.dtype.kind in "iu"
    limit = constraints.smallest
    if "mask" in words and limit is None:
        return {"fill": "constant", "value": 1, "note": "ones, of a mask"}
    if is_integer and shape and words & {"position", "positions"}:
        high = None if limit is None else limit.size or None
        return {"fill": "positions", "high": high, "note": "positions from 0"}
    if len(shape) > 2 or prod(shape) > MAX_SETTING_ELEMENTS or limit is not None:
        return None
    if words & {"sr", "samplerate"} or {"sample", "rate"} <= words or {"sampling", "rate"} <= words:
        if constraints.equals:
            return None
        value: float = AUDIO_SAMPLES
    elif is_integer and words & {"length", "lengths", "len", "lens"}:
        if words & {"max", "min"} or constraints.equals:
            return None
        value = length
    else:
        settings = [_SETTING_VALUES[word] for word in sorted(words) if word in _SETTING_VALUES]
        if not settings or is_integer:
            return None
        value = min(settings)
    return {
        "fill": "constant",
        "value": int(value) if is_integer else value,
        "note": f"{value:g}, by its name",
    }


def _is_value_of_type(value: float, element: ElementType) -> bool:
    if element.dtype.kind not in "iu":
        return element.dtype.kind == "f"
    bounds = np.iinfo(element.dtype)
    return value.is_integer() and bounds.min <= value <= bounds.max


def _normal_numbers(
    random: np.random.Generator, element: ElementType, shape: tuple[int, ...]
) -> Array:
    """Return standard normal numbers of type `element`; their bits if numpy lacks the type."""
    if element.name.startswith("float8"):
        # Numbers near one, of either sign: one's code up or down by less than an octave or two.
        codes = _ONE_BITS[element.name] + random.integers(-6, 7, shape)
        return (codes | random.integers(0, 2, shape) << 7).astype(element.dtype)
    wide = element.name in ("double", "complex128")
    values = random.standard_normal(shape, np.float64 if wide else np.float32)
    if element.name == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(element.dtype)
    if element.dtype.kind == "c":
        return (values + 1j * random.standard_normal(shape, values.dtype)).astype(element.dtype)
    return values.astype(element.dtype)


def is_bits_of(array: GivenArray, element: ElementType) -> bool:
    """Return whether `array` stores the bits of an `element` type that numpy lacks (bfloat16).

    In an ``.npy`` file such an array has no name for its type, only a size.
    """
    has_element_size = element.bits == 8 * array.dtype.itemsize and array.dtype.names is None
    names = (element.name, f"void{element.bits}", _ML_DTYPES.get(element.name))
    has_type_name = array.dtype.name in names
    return not element.native and array.dtype.kind in "Vf" and has_element_size and has_type_name


def _check_given_array(
    array: GivenArray, value: ValueInfoProto, axes: Sequence[InputAxis] | None
) -> None:
    """Check dtype, rank and fixed sizes of an array that the user gave for the input `value`.

    Raises:
        UsageError: the array does not fit.
    """
    element = _input_element_type(value)
    fits = array.dtype.kind == "U" if element is STRING_ELEMENT else array.dtype == element.dtype
    fits = fits or is_bits_of(array, element)
    if not fits:
        expected = "text (<U)" if element is STRING_ELEMENT else element.dtype.name
        bits = "" if element.native else f", the bits of {element.name}"
        raise UsageError(
            f"the array for input {value.name!r} is {array.dtype.name}, but the model expects "
            f"{expected}{bits}. Convert it."
        )
    if axes is None:
        return
    declared = [axis.key if axis.size is None else axis.size for axis in axes]
    words = f"[{', '.join(map(str, declared))}]"
    if len(array.shape) != len(axes) or any(
        axis.size not in (None, size) for axis, size in zip(axes, array.shape, strict=True)
    ):
        raise UsageError(
            f"the array for input {value.name!r} has the shape {list(array.shape)}, but the model "
            f"expects {words}. Change its shape."
        )
