"""Inputs of a run: sizes are chosen, arrays are generated and saved for the child process."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from memdiag.errors import UsageError
from memdiag.model.axis_roles import IMAGE_SIDE, axis_roles, dims_by_name, total_lengths
from memdiag.model.contradictions import is_contradictory
from memdiag.model.count_inputs import free_axes, given_counts
from memdiag.model.inputs import InputPlan, make_array, plan_inputs
from memdiag.model.model_file import ModelFile
from memdiag.model.tensor_types import ELEMENT_TYPES, STRING_ELEMENT
from memdiag.ort.activations import activation_bytes
from memdiag.records.dimension import Dimension, dimensions_text
from memdiag.records.profile import Input
from memdiag.runner.job import Feed, InputConfig, Job
from memdiag.runner.try_inputs import try_inputs
from memdiag.stored_arrays import GivenArray, StoredArray, stored_array
from memdiag.system.memory_limit import total_memory_bytes
from memdiag.units import format_size

INPUT_SEED = 0
FREE_SIZES = (128, 64, 32, 16, 8, 4, 2, 1, 256, 512, 1024, 3000)
"""Sizes of all free dimensions that are tried if a model does not run at realistic sizes."""

AUDIO_CHUNKS = (1024, 512, 256)
"""Sizes that are tried first if a model reads samples of audio."""

IMAGE_SIDES = (224, 256, 299, 320, 384, 512, 640, 128, 64, 32, 28)
"""Sides of images that are tried in turn."""

MAX_ACTIVATIONS_SHARE = 0.25
"""Share of the memory of the machine or container that activations may use at chosen sizes."""

ArrayOrFile = GivenArray | str | Path
"""The data of an input: an array, or the path of a ``.npy`` file."""

GivenInputs = Mapping[str, ArrayOrFile]


def read_given_arrays(inputs: GivenInputs) -> dict[str, GivenArray]:
    """Return the given arrays by input. Of ``.npy`` files only the headers are read.

    Raises:
        UsageError: a value is neither an array nor a file that can be read as one.
    """
    for name, value in inputs.items():
        if not isinstance(value, np.ndarray | StoredArray | str | os.PathLike):
            raise UsageError(
                f"input {name!r} must be an array or the path of a .npy file, not {value!r}."
                " Pass numpy.asarray(...)."
            )
    return {
        name: stored_array(Path(value)) if isinstance(value, str | os.PathLike) else value
        for name, value in inputs.items()
    }


def save_inputs(
    plans: Sequence[InputPlan],
    given: Mapping[str, GivenArray],
    folder: Path,
    *,
    same_inputs: bool = False,
) -> list[Feed]:
    """Write the arrays of `plans` to `folder` and return their files, as `save_arrays` does."""
    # One after another, so that only one of them is in memory.
    arrays = (
        given[plan.name] if plan.name in given else make_array(plan, INPUT_SEED) for plan in plans
    )
    return save_arrays(plans, arrays, folder, same_inputs=same_inputs)


def save_arrays(
    plans: Sequence[InputPlan],
    arrays: Iterable[GivenArray],
    folder: Path,
    *,
    same_inputs: bool = False,
) -> list[Feed]:
    """Write the array of each plan to `folder` and return the files.

    The contents of generated arrays differ in each run, unless `same_inputs` is True.
    """
    folder.mkdir(parents=True, exist_ok=True)
    feeds = []
    for index, (plan, array) in enumerate(zip(plans, arrays, strict=True)):
        path = folder / f"{index}.npy"
        if plan.bits_type is not None:
            array = np.asarray(array, order="C").view(ELEMENT_TYPES[plan.element_type].dtype)
        np.save(path, np.asarray(array))
        feeds.append(
            Feed(
                name=plan.name,
                files=(path,),
                sequence=plan.kind == "sequence",
                onnx_type=plan.bits_type,
                vary=None if same_inputs else _content_variation(plan),
            )
        )
    return feeds


def _content_variation(plan: InputPlan) -> Literal["bits", "text"] | tuple[int, int] | None:
    """Return how the contents of the generated input `plan` may change; None if they may not."""
    if plan.fill == "uniform" and plan.high is not None:
        return (plan.low or 0, plan.high)
    if plan.fill == "constant" and ELEMENT_TYPES[plan.element_type] is STRING_ELEMENT:
        return "text"
    is_float = ELEMENT_TYPES[plan.element_type].dtype.kind == "f" and plan.bits_type is None
    return "bits" if plan.fill == "normal" and is_float else None


def describe_inputs(plans: Sequence[InputPlan]) -> tuple[Input, ...]:
    """Return the descriptions of the inputs for a profile; values are not in it."""
    return tuple(
        Input(
            name=plan.name,
            dtype=plan.dtype,
            shape=plan.shape,
            source=plan.source,
            note=plan.note,
            varied=_content_variation(plan) is not None,
        )
        for plan in plans
    )


class ChosenInputs(NamedTuple):
    """The inputs that a model is run with.

    Attributes:
        plans: a plan for each input.
        dimensions: the free dimensions and their sizes.
        notes: sentences on the choice of sizes.
    """

    plans: tuple[InputPlan, ...]
    dimensions: tuple[Dimension, ...]
    notes: tuple[str, ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the free dimensions, by name."""
        return {dimension.name: dimension.size for dimension in self.dimensions}


def choose_inputs(model_file: ModelFile, inputs: InputConfig) -> ChosenInputs:
    """Return inputs of realistic sizes; others if these cannot run or need too much memory.

    If the shapes of the model contradict each other at the realistic sizes, other sizes are tried
    in the order of `find_inputs`, up to the first ones without a contradiction. If the activations
    would take more than `MAX_ACTIVATIONS_SHARE` of the machine's memory, images get the default
    side. If that is not enough, all free dimensions are 1.

    Raises:
        UsageError: as in `dims_by_name` and `plan_inputs`.
    """
    dims = dims_by_name(model_file.graph, model_file.functions, inputs.dims)
    given_arrays = inputs.arrays
    plans = plan_inputs(model_file, dims=dims, given=given_arrays)
    chosen = ChosenInputs(plans, chosen_dimensions(model_file, plans, dims, given_arrays))
    sizes = chosen.sizes
    if all(dimension.source == "given" or dimension.size == 1 for dimension in chosen.dimensions):
        return chosen
    if is_contradictory(model_file, sizes):
        other_inputs = _alternative_inputs(
            model_file,
            dims,
            given_arrays,
            chosen,
            "the shapes of the model contradict each other",
            "this is the first size at which they do not",
        )
        return next(
            (
                candidate
                for candidate in other_inputs
                if not is_contradictory(model_file, candidate.sizes)
            ),
            chosen,
        )
    needed_bytes = _needed_bytes(model_file, plans, sizes)
    if needed_bytes <= _memory_limit():
        return chosen
    reason = (
        f"at {dimensions_text(chosen.dimensions)} the activations would take about"
        f" {format_size(needed_bytes)}, more than {100 * MAX_ACTIVATIONS_SHARE:.0f} % of this"
        " machine's memory"
    )
    reduced_sides = {
        dimension.name: IMAGE_SIDE
        for dimension in chosen.dimensions
        if dimension.source == "chosen"
        and dimension.role in ("height", "width")
        and dimension.size > IMAGE_SIDE
    }
    if reduced_sides:
        plans = plan_inputs(model_file, dims={**dims, **reduced_sides}, given=given_arrays)
        if _needed_bytes(model_file, plans, sizes | reduced_sides) <= _memory_limit():
            dimensions = chosen_dimensions(
                model_file, plans, dims, given_arrays, "too large otherwise"
            )
            note = f"{reason}: sides of images are {IMAGE_SIDE} instead. Set them with --dim."
            return ChosenInputs(plans, dimensions, (note,))
    plans_of_ones = plan_inputs(model_file, dims=dims, given=given_arrays, free_dim=1)
    note = f"{reason}: free dimensions are 1 instead. Set them with --dim."
    return ChosenInputs(
        plans_of_ones,
        chosen_dimensions(model_file, plans_of_ones, dims, given_arrays, "too large otherwise"),
        (note,),
    )


def find_inputs(
    model_file: ModelFile, job: Job, folder: Path, inputs: InputConfig, *, first: ChosenInputs
) -> ChosenInputs | None:
    """Return the first inputs that `model_file` runs with: `first`, or inputs of other sizes.

    None if it runs with none of these.
    """
    dims = dims_by_name(model_file.graph, model_file.functions, inputs.dims)
    given_arrays = inputs.arrays
    other_inputs = _alternative_inputs(
        model_file,
        dims,
        given_arrays,
        first,
        "the model does not run",
        "this is the first size that runs",
    )
    candidates = [first, *other_inputs]
    feeds = [
        save_inputs(candidate.plans, given_arrays, folder / f"try-{i}")
        for i, candidate in enumerate(candidates)
    ]
    index = try_inputs(job, feeds)
    return None if index is None else candidates[index]


def _alternative_inputs(
    model_file: ModelFile,
    dims: Mapping[str, int],
    given_arrays: Mapping[str, GivenArray],
    first: ChosenInputs,
    problem: str,
    remedy: str,
) -> Iterator[ChosenInputs]:
    """Yield inputs of other sizes than `first`, in the order in which they are tried.

    Their notes say that `first` has the `problem`, and that these sizes do not have it.
    """
    first_sizes = dimensions_text(first.dimensions)
    tried_shapes = {tuple(plan.shape for plan in first.plans)}
    sides = [
        dimension.name
        for dimension in first.dimensions
        if dimension.role in ("height", "width") and dimension.name not in dims
    ]
    candidates: list[tuple[Mapping[str, int], int | None]] = [
        ({**dims, **dict.fromkeys(sides, side)}, None) for side in IMAGE_SIDES if sides
    ]
    is_audio = any(dimension.role == "samples" for dimension in first.dimensions)
    sizes_to_try = (*dims.values(), *(AUDIO_CHUNKS if is_audio else ()), *FREE_SIZES)
    candidates += [(dims, size) for size in dict.fromkeys(sizes_to_try)]
    for sizes, free_dim in candidates:
        try:
            plans = plan_inputs(model_file, dims=sizes, given=given_arrays, free_dim=free_dim)
        except UsageError:
            continue  # a side that an array sets
        shapes = tuple(plan.shape for plan in plans)
        if shapes in tried_shapes:
            continue
        tried_shapes.add(shapes)
        reason = f"{problem} at {first_sizes}"
        inputs = ChosenInputs(
            plans, chosen_dimensions(model_file, plans, dims, given_arrays, reason)
        )
        if _planned_input_bytes(plans) > _planned_input_bytes(first.plans) and (
            _needed_bytes(model_file, plans, inputs.sizes) > _memory_limit()
        ):
            continue
        note = f"at {dimensions_text(inputs.dimensions)}: {reason}; {remedy}. Set others with --dim"
        yield inputs._replace(notes=(*first.notes, note))


def chosen_dimensions(
    model_file: ModelFile,
    plans: Sequence[InputPlan],
    dims: Mapping[str, int],
    given: Mapping[str, GivenArray],
    reason: str = "",
) -> tuple[Dimension, ...]:
    """Return the free dimensions of the inputs, with their sizes in `plans`.

    Sizes in `dims`, and sizes of arrays in `given`, are the user's. `reason` says why the other
    sizes were chosen; by default their roles say so.
    """
    roles = axis_roles(model_file.graph, model_file.functions)
    inputs = free_axes(model_file.graph)
    totals = total_lengths(inputs, roles)
    shapes = {plan.name: plan.shape for plan in plans}
    counts = given_counts(model_file.graph, given)
    counts |= {plan.name: plan.value for plan in plans if isinstance(plan.value, int)}
    given_keys = {axis.key for name in given for axis in inputs.get(name) or ()} | dims.keys()
    dimensions: dict[str, Dimension] = {}
    for axes in inputs.values():
        for axis in axes or ():
            if axis.size is not None or axis.key in dimensions:
                continue
            role = roles.get(axis.key)
            is_given = axis.key in given_keys
            dimensions[axis.key] = Dimension(
                name=axis.key,
                size=shapes[axis.input][axis.position] if axis.rank else counts[axis.key],
                role=role.name if role and axis.key not in totals else "sum",
                source="given" if is_given else "chosen",
                reason="given"
                if is_given
                else reason or (role.reason if role else "a sum of others"),
            )
    return tuple(dimensions.values())


def _needed_bytes(
    model_file: ModelFile, plans: Sequence[InputPlan], sizes: Mapping[str, int]
) -> int:
    """Return the approximate memory of inputs and activations in a run at `sizes`."""
    input_bytes = _planned_input_bytes(plans)
    return (
        input_bytes
        if input_bytes > _memory_limit()
        else input_bytes + activation_bytes(model_file, sizes)
    )


def _planned_input_bytes(plans: Sequence[InputPlan]) -> int:
    return sum(prod(plan.shape) * ELEMENT_TYPES[plan.element_type].dtype.itemsize for plan in plans)


def _memory_limit() -> int:
    return int(total_memory_bytes() * MAX_ACTIVATIONS_SHARE)
