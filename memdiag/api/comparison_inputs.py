"""Inputs for the comparison of two models: several sizes, several values, both branches."""

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from memdiag.api.inputs import (
    ChosenInputs,
    choose_inputs,
    chosen_dimensions,
    find_inputs,
    save_arrays,
    save_inputs,
)
from memdiag.defaults import DEFAULT_SIZES
from memdiag.errors import UsageError
from memdiag.model.axis_roles import dims_by_name
from memdiag.model.dimensions import axes_of
from memdiag.model.inputs import InputPlan, make_array, plan_inputs
from memdiag.model.model_file import ModelFile
from memdiag.records.dimension import Dimension, dimensions_text
from memdiag.runner.job import Feed, InputConfig, Job
from memdiag.runner.try_inputs import InputTrial, inputs_that_run, try_once
from memdiag.stored_arrays import GivenArray
from memdiag.verify.model_evaluator import InputSet

_SHORT_TRIAL = 1 / 20
"""Share of limited time that loading a model and running it once with all inputs may take."""


class ComparisonInputs(NamedTuple):
    """The inputs with which two models are compared.

    Attributes:
        sets: sets of inputs that the model runs with, realistic sizes first; empty if
            it runs with none.
        dimensions: the free dimensions and their realistic sizes.
        notes: sentences on the choice of sizes.
        trial: the trial of the first inputs if the model runs with none; None if it runs.
    """

    sets: tuple[InputSet, ...] = ()
    dimensions: tuple[Dimension, ...] = ()
    notes: tuple[str, ...] = ()
    trial: InputTrial | None = None


def find_comparison_inputs(
    model_file: ModelFile,
    job: Job,
    folder: Path,
    inputs: InputConfig,
    *,
    sizes: Sequence[int] | None = None,
) -> ComparisonInputs:
    """Return sets of inputs that the model of `job` runs with, saved below `folder`.

    There are two sets of random values for realistic sizes of the free dimensions (or for the first
    other sizes that run), and two for each of `sizes` that also runs. Flags that choose a branch
    are true in one set and false in the other. If all inputs are given, they are the only set. The
    contents of generated inputs differ in each run that is measured.

    By default `sizes` are `DEFAULT_SIZES`, or none if `inputs` has sizes: then only the requested
    sizes are measured. With a deadline, `sizes` are left out if running once with all sets is
    expected to take more than `_SHORT_TRIAL` of the time, since each of many processes will do so.
    The second set of realistic sizes is left out if the first one alone takes longer, unless the
    flags of the two sets differ.
    """
    further_sizes = sizes
    if further_sizes is None:
        further_sizes = () if inputs.dims else DEFAULT_SIZES
    dims = dims_by_name(model_file.graph, model_file.functions, inputs.dims)
    given_arrays = inputs.arrays
    left_out_sizes: dict[str, None] = {}
    is_slow = False

    def sets_that_run(realistic: ChosenInputs) -> tuple[InputSet, ...]:
        candidates = [
            candidate
            for number, (text, plans) in enumerate(
                _sized_input_plans(model_file, dims, given_arrays, further_sizes, realistic)
            )
            for candidate in _input_sets(plans, given_arrays, folder / f"size-{number}", text)
        ]
        feeds = [candidate.feeds for candidate in candidates]
        first_size_count = sum(candidate.sizes == candidates[0].sizes for candidate in candidates)
        bytes_until = list(accumulate(map(_feed_file_bytes, feeds)))
        started, short_trial_s = time.monotonic(), _SHORT_TRIAL * job.limits.deadline.remaining_s

        def is_enough(tried_count: int) -> bool:
            nonlocal is_slow
            trial_s = time.monotonic() - started
            if tried_count == first_size_count < len(feeds):
                trial_s *= bytes_until[-1] / max(1, bytes_until[tried_count - 1])
            elif tried_count != 1 or len(feeds) == 1 or candidates[1].timed:
                return False
            is_slow = sizes is None and trial_s > short_trial_s
            return is_slow

        # One child tries all sets: loading a model takes longer than most runs.
        running_indices = inputs_that_run(job, feeds, needs_first=True, is_enough=is_enough)
        sets = tuple(candidates[index] for index in running_indices)
        running_sizes = {input_set.sizes for input_set in sets}
        left_out_sizes.clear()
        left_out_sizes.update(
            (candidate.sizes, None)
            for candidate in candidates
            if candidate.sizes not in running_sizes
        )
        return sets

    chosen = choose_inputs(model_file, inputs)
    sets = sets_that_run(chosen)
    if not sets:
        other_inputs = find_inputs(model_file, job, folder, inputs, first=chosen)
        sets = sets_that_run(other_inputs) if other_inputs is not None else ()
        # Inputs that ran once may not run again if memory is short.
        if other_inputs is None or not sets:
            feeds = save_inputs(chosen.plans, given_arrays, folder / "first")
            return ComparisonInputs(trial=try_once(job, feeds))
        chosen = other_inputs
    notes = chosen.notes
    if left_out_sizes:
        reason = "runs are too slow for the time limit" if is_slow else "the model does not run"
        notes = (*notes, f"not compared with {', '.join(left_out_sizes)}: {reason}")
    return ComparisonInputs(sets, chosen.dimensions, notes)


def _input_sets(
    plans: Sequence[InputPlan],
    given_arrays: Mapping[str, GivenArray],
    folder: Path,
    sizes: str,
) -> Iterator[InputSet]:
    """Yield the sets of inputs of one size: two of random values, or one if all are given."""
    is_random = any(plan.fill != "given" for plan in plans)
    for seed in (0, 1) if is_random else (0,):
        arrays = (_planned_array(plan, given_arrays, seed) for plan in plans)
        feeds = save_arrays(plans, arrays, folder / f"set-{seed}")
        flags = _flags_text(plans, given_arrays, seed)
        name = ", ".join(part for part in (sizes, flags) if part) or "the inputs of the model"
        yield InputSet(name, tuple(feeds), timed=not seed or bool(flags), sizes=sizes)


def _sized_input_plans(
    model_file: ModelFile,
    dims: Mapping[str, int],
    given_arrays: Mapping[str, GivenArray],
    further_sizes: Sequence[int],
    realistic: ChosenInputs,
) -> Iterator[tuple[str, tuple[InputPlan, ...]]]:
    """Yield the inputs of realistic sizes, and of each of `further_sizes`, with the sizes as text.

    Images keep their sides; their batches get the sizes.
    """
    yield dimensions_text(realistic.dimensions), realistic.plans
    if all(dimension.source == "given" for dimension in realistic.dimensions):
        return
    if all(plan.fill == "given" for plan in realistic.plans):
        return
    sides = (
        dimension for dimension in realistic.dimensions if dimension.role in ("height", "width")
    )
    dims = {**{side.name: side.size for side in sides}, **dims}
    plans_of_ones = plan_inputs(model_file, dims=dims, given=given_arrays, free_dim=1)
    text_by_shapes = {_plan_shapes(realistic.plans): dimensions_text(realistic.dimensions)}
    for size in sorted(further_sizes):
        plans = plan_inputs(model_file, dims=dims, given=given_arrays, free_dim=size)
        # If all free dimensions look like batches, they get the size.
        if size > 1 and _plan_shapes(plans) == _plan_shapes(plans_of_ones):
            plans = _plans_of_one_size(size, model_file, dims, given_arrays)
        if _plan_shapes(plans) not in text_by_shapes:
            sizes_text = dimensions_text(chosen_dimensions(model_file, plans, dims, given_arrays))
            # If there are many dimensions, the text names only the first ones.
            text_by_shapes[_plan_shapes(plans)] = (
                f"size {size}" if sizes_text in text_by_shapes.values() else sizes_text
            )
            yield text_by_shapes[_plan_shapes(plans)], plans


def _feed_file_bytes(feeds: Sequence[Feed]) -> int:
    """Return the bytes of all inputs, a measure of the work of a run."""
    return sum(file.stat().st_size for feed in feeds for file in feed.files)


def _plan_shapes(plans: Sequence[InputPlan]) -> tuple[tuple[int, ...], ...]:
    return tuple(plan.shape for plan in plans)


def _plans_of_one_size(
    size: int,
    model_file: ModelFile,
    dims: Mapping[str, int],
    given_arrays: Mapping[str, GivenArray],
) -> tuple[InputPlan, ...]:
    """Return plans with `size` for every free dimension, batches included."""
    axes = [axis for value in model_file.graph.input_values for axis in axes_of(value) or ()]
    free_sizes = {axis.key: size for axis in axes if axis.size is None and axis.key not in dims}
    try:
        return plan_inputs(
            model_file, dims={**free_sizes, **dims}, given=given_arrays, free_dim=size
        )
    except UsageError:
        # Some dimensions are arithmetic over others, and some belong to inputs that were given.
        return plan_inputs(model_file, dims=dims, given=given_arrays, free_dim=size)


def _planned_array(
    plan: InputPlan, given_arrays: Mapping[str, GivenArray], seed: int
) -> GivenArray:
    """Return the values of one input; flags in the second set are the opposite of the first set."""
    if plan.name in given_arrays:
        return given_arrays[plan.name]
    array = make_array(plan, seed)
    return np.logical_not(array) if seed and array.dtype == np.bool_ else array


def _flags_text(
    plans: Sequence[InputPlan], given_arrays: Mapping[str, GivenArray], seed: int
) -> str:
    """Return the values of single flags, which may choose a branch: ``c true``."""
    return ", ".join(
        f"{plan.name} {'true' if np.all(_planned_array(plan, given_arrays, seed)) else 'false'}"
        for plan in plans
        if plan.dtype == "bool" and prod(plan.shape) == 1 and plan.name not in given_arrays
    )
