"""Inputs for the comparison of two models: several sizes, several values, both branches."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from memdiag.api.inputs import ChosenInputs, choose_inputs, find_inputs, save_arrays
from memdiag.errors import UsageError
from memdiag.model.dimensions import axes_of
from memdiag.model.inputs import InputPlan, make, plan_inputs
from memdiag.model.model_file import ModelFile
from memdiag.records.dimension import Dimension, in_words
from memdiag.runner.job import Feed, Job
from memdiag.runner.try_inputs import try_inputs
from memdiag.verify.model_evaluator import InputSet

SIZES = (1, 4)
"""Sizes of free dimensions at which models are compared, besides the realistic ones."""


class InputSets(NamedTuple):
    """Sets of inputs that a model runs with.

    Attributes:
        sets: the sets, those of the realistic sizes first; empty if the model runs with none.
        dimensions: the free dimensions and their realistic sizes.
        notes: sentences on the choice of sizes.
    """

    sets: tuple[InputSet, ...] = ()
    dimensions: tuple[Dimension, ...] = ()
    notes: tuple[str, ...] = ()


def trials(
    model: ModelFile,
    job: Job,
    folder: Path,
    *,
    dims: Mapping[str, int],
    given: Mapping[str, np.ndarray],
    sizes: Sequence[int] = SIZES,
) -> InputSets:
    """Return sets of inputs that the model of `job` runs with, saved below `folder`.

    For realistic sizes of the free dimensions (or the first others that run), and for each of
    `sizes` that runs too: two sets of random values, with flags that choose a branch once true and
    once false.
    """
    first = choose_inputs(model, dims=dims, given=given)
    chosen = find_inputs(model, job, folder, dims=dims, given=given, first=first)
    if chosen is None:
        return InputSets()
    found: list[InputSet] = []
    tried = _sizes(model, job, folder, dims, given, sizes, chosen)
    for number, (words, plans) in enumerate(tried):
        for seed in (0, 1):
            feeds = _save(plans, given, folder / f"set-{number}-{seed}", seed)
            if seed and try_inputs(job, [feeds]) is None:
                continue  # the other branch does not run with such values
            flags = _flags(plans, given, seed)
            name = ", ".join(part for part in (words, flags) if part) or "the inputs of the model"
            found.append(InputSet(name, tuple(feeds), timed=not seed or bool(flags), sizes=words))
        if not _is_random(plans):
            break
    return InputSets(tuple(found), chosen.dimensions, chosen.notes)


def _sizes(
    model: ModelFile,
    job: Job,
    folder: Path,
    dims: Mapping[str, int],
    given: Mapping[str, np.ndarray],
    wanted: Sequence[int],
    chosen: ChosenInputs,
) -> Iterator[tuple[str, tuple[InputPlan, ...]]]:
    """Yield the chosen inputs and others that run, each with its sizes as text."""
    yield in_words(chosen.dimensions), chosen.plans
    if all(dimension.source == "given" for dimension in chosen.dimensions):
        return
    ones = plan_inputs(model, dims=dims, given=given, free_dim=1)
    tried = [_shapes(chosen.plans)]
    for size in sorted(wanted):
        plans = plan_inputs(model, dims=dims, given=given, free_dim=size)
        # If all free dimensions look like batches, they get the size.
        if size > 1 and _shapes(plans) == _shapes(ones):
            plans = _all_of(size, model, dims, given)
        if _shapes(plans) in tried:
            continue
        tried.append(_shapes(plans))
        if try_inputs(job, [_save(plans, given, folder / f"of-{size}", 0)]) is not None:
            yield f"size {size}", plans


def _shapes(plans: Sequence[InputPlan]) -> tuple[tuple[int, ...], ...]:
    return tuple(plan.shape for plan in plans)


def _all_of(
    size: int, model: ModelFile, dims: Mapping[str, int], given: Mapping[str, np.ndarray]
) -> tuple[InputPlan, ...]:
    """Return plans with `size` for every free dimension, batches included."""
    axes = [axis for value in model.graph.input_values for axis in axes_of(value) or ()]
    free = {axis.key: size for axis in axes if axis.size is None and axis.key not in dims}
    try:
        return plan_inputs(model, dims={**free, **dims}, given=given, free_dim=size)
    except UsageError:
        # Some dimensions are arithmetic over others, and some belong to inputs that were given.
        return plan_inputs(model, dims=dims, given=given, free_dim=size)


def _save(
    plans: Sequence[InputPlan], given: Mapping[str, np.ndarray], folder: Path, seed: int
) -> list[Feed]:
    return save_arrays(plans, [_array(plan, given, seed) for plan in plans], folder)


def _array(plan: InputPlan, given: Mapping[str, np.ndarray], seed: int) -> np.ndarray:
    """Return the values of one input; flags of the second set are the opposite of the first."""
    if plan.name in given:
        return given[plan.name]
    array = make(plan, seed)
    return np.logical_not(array) if seed and array.dtype == np.bool_ else array


def _flags(plans: Sequence[InputPlan], given: Mapping[str, np.ndarray], seed: int) -> str:
    """Return the values of single flags, which may choose a branch: ``c true``."""
    return ", ".join(
        f"{plan.name} {'true' if _array(plan, given, seed).all() else 'false'}"
        for plan in plans
        if plan.dtype == "bool" and prod(plan.shape) == 1 and plan.name not in given
    )


def _is_random(plans: Sequence[InputPlan]) -> bool:
    return any(plan.fill != "given" for plan in plans)
