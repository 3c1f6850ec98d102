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

    For realistic sizes of the free dimensions (or the first others that run), and for each of
    `sizes` that runs too: two sets of random values, with flags that choose a branch once true and
    once false. Inputs that are all given are one set. The contents of generated inputs differ in
    each run that is measured.

    By default `sizes` are `DEFAULT_SIZES`, or none if `inputs` has sizes: what was asked for is
    what is measured. With a deadline they are left out if running once with all is expected to take
    more than `_SHORT_TRIAL` of the time: that follows in each of many processes. So is the second
    set of realistic sizes, unless its flags differ, if the first takes more.
    """
    further = sizes
    if further is None:
        further = () if inputs.dims else DEFAULT_SIZES
    dims = dims_by_name(model_file.graph, model_file.functions, inputs.dims)
    given = inputs.arrays
    left_out: dict[str, None] = {}
    is_slow = False

    def sets_that_run(realistic: ChosenInputs) -> tuple[InputSet, ...]:
        candidates = [
            candidate
            for number, (text, plans) in enumerate(
                _sized_input_plans(model_file, dims, given, further, realistic)
            )
            for candidate in _input_sets(plans, given, folder / f"size-{number}", text)
        ]
        feeds = [candidate.feeds for candidate in candidates]
        first_size = sum(candidate.sizes == candidates[0].sizes for candidate in candidates)
        work = list(accumulate(map(_feed_file_bytes, feeds)))
        started, short_s = time.monotonic(), _SHORT_TRIAL * job.limits.deadline.remaining_s

        def is_enough(tried: int) -> bool:
            nonlocal is_slow
            taken_s = time.monotonic() - started
            if tried == first_size < len(feeds):
                taken_s *= work[-1] / max(1, work[tried - 1])
            elif tried != 1 or len(feeds) == 1 or candidates[1].timed:
                return False
            is_slow = sizes is None and taken_s > short_s
            return is_slow

        # One child tries all: loading a model takes longer than most runs.
        trials = inputs_that_run(job, feeds, needs_first=True, is_enough=is_enough)
        sets = tuple(candidates[index] for index in trials)
        running = {input_set.sizes for input_set in sets}
        left_out.clear()
        left_out.update(
            (candidate.sizes, None) for candidate in candidates if candidate.sizes not in running
        )
        return sets

    chosen = choose_inputs(model_file, inputs)
    sets = sets_that_run(chosen)
    if not sets:
        others = find_inputs(model_file, job, folder, inputs, first=chosen)
        sets = sets_that_run(others) if others is not None else ()
        if others is None or not sets:  # what ran once may not run again if memory is short
            feeds = save_inputs(chosen.plans, given, folder / "first")
            return ComparisonInputs(trial=try_once(job, feeds))
        chosen = others
    notes = chosen.notes
    if left_out:
        why = "runs are too slow for the time limit" if is_slow else "the model does not run"
        notes = (*notes, f"not compared with {', '.join(left_out)}: {why}")
    return ComparisonInputs(sets, chosen.dimensions, notes)


def _input_sets(
    plans: Sequence[InputPlan],
    given: Mapping[str, GivenArray],
    folder: Path,
    sizes: str,
) -> Iterator[InputSet]:
    """Yield the sets of inputs of one size: two of random values, or one if all are given."""
    is_random = any(plan.fill != "given" for plan in plans)
    for seed in (0, 1) if is_random else (0,):
        arrays = (_planned_array(plan, given, seed) for plan in plans)
        feeds = save_arrays(plans, arrays, folder / f"set-{seed}")
        flags = _flags_text(plans, given, seed)
        name = ", ".join(part for part in (sizes, flags) if part) or "the inputs of the model"
        yield InputSet(name, tuple(feeds), timed=not seed or bool(flags), sizes=sizes)


def _sized_input_plans(
    model_file: ModelFile,
    dims: Mapping[str, int],
    given: Mapping[str, GivenArray],
    wanted: Sequence[int],
    realistic: ChosenInputs,
) -> Iterator[tuple[str, tuple[InputPlan, ...]]]:
    """Yield the inputs of realistic sizes, and of each of `wanted`, with the sizes as text.

    Images keep their sides: batches of them get the sizes.
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
    ones = plan_inputs(model_file, dims=dims, given=given, free_dim=1)
    seen = {_plan_shapes(realistic.plans): dimensions_text(realistic.dimensions)}
    for size in sorted(wanted):
        plans = plan_inputs(model_file, dims=dims, given=given, free_dim=size)
        # If all free dimensions look like batches, they get the size.
        if size > 1 and _plan_shapes(plans) == _plan_shapes(ones):
            plans = _plans_of_one_size(size, model_file, dims, given)
        if _plan_shapes(plans) not in seen:
            words = dimensions_text(chosen_dimensions(model_file, plans, dims, given))
            # Of many dimensions only the first are named.
            seen[_plan_shapes(plans)] = f"size {size}" if words in seen.values() else words
            yield seen[_plan_shapes(plans)], plans


def _feed_file_bytes(feeds: Sequence[Feed]) -> int:
    """Return the size of all inputs, a measure of what a run takes."""
    return sum(file.stat().st_size for feed in feeds for file in feed.files)


def _plan_shapes(plans: Sequence[InputPlan]) -> tuple[tuple[int, ...], ...]:
    return tuple(plan.shape for plan in plans)


def _plans_of_one_size(
    size: int, model_file: ModelFile, dims: Mapping[str, int], given: Mapping[str, GivenArray]
) -> tuple[InputPlan, ...]:
    """Return plans with `size` for every free dimension, batches included."""
    axes = [axis for value in model_file.graph.input_values for axis in axes_of(value) or ()]
    free = {axis.key: size for axis in axes if axis.size is None and axis.key not in dims}
    try:
        return plan_inputs(model_file, dims={**free, **dims}, given=given, free_dim=size)
    except UsageError:
        # Some dimensions are arithmetic over others, and some belong to inputs that were given.
        return plan_inputs(model_file, dims=dims, given=given, free_dim=size)


def _planned_array(plan: InputPlan, given: Mapping[str, GivenArray], seed: int) -> GivenArray:
    """Return the values of one input; flags of the second set are the opposite of the first."""
    if plan.name in given:
        return given[plan.name]
    array = make_array(plan, seed)
    return np.logical_not(array) if seed and array.dtype == np.bool_ else array


def _flags_text(plans: Sequence[InputPlan], given: Mapping[str, GivenArray], seed: int) -> str:
    """Return the values of single flags, which may choose a branch: ``c true``."""
    return ", ".join(
        f"{plan.name} {'true' if np.all(_planned_array(plan, given, seed)) else 'false'}"
        for plan in plans
        if plan.dtype == "bool" and prod(plan.shape) == 1 and plan.name not in given
    )
