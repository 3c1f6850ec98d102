"""The inputs that two models are compared on: several sizes, several values, both branches."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np

from memdiag.errors import UsageError
from memdiag.graph.dimensions import axes_of
from memdiag.graph.inputs import InputPlan, make, plan_inputs
from memdiag.graph.reader import ModelFile
from memdiag.measurement.job import Feed, Job
from memdiag.measurement.rehearsal import rehearse
from memdiag.verification.bench import Trial
from memdiag.workflows.inputs import FREE_SIZES

SIZES = (1, 4, 16)
"""Of free dimensions: the first size that runs, from the first of these on, and the larger ones."""


def trials(
    model: ModelFile,
    job: Job,
    folder: Path,
    *,
    dims: Mapping[str, int],
    given: Mapping[str, np.ndarray],
    sizes: Sequence[int] = SIZES,
) -> tuple[Trial, ...]:
    """Return sets of inputs that the model of `job` runs with, saved below `folder`.

    For the smallest size of the free dimensions that runs, and for larger ones that run too: two
    sets of random values, with flags that choose a branch once true and once false. Empty where
    the model runs with none.
    """
    found: list[Trial] = []
    for size, plans in _sizes(model, job, folder, dims, given, sizes):
        for seed in (0, 1):
            feeds = _save(plans, given, folder / f"{size}-{seed}", seed)
            if seed and rehearse(job, [feeds]) is None:
                continue  # the other branch does not run with such values
            flags = _flags(plans, given, seed)
            words = ", ".join(part for part in (f"size {size}" if size else "", flags) if part)
            name = words or "its inputs"
            found.append(Trial(name, tuple(feeds), timed=not seed or bool(flags)))
        if not _is_random(plans):
            break
    return tuple(found)


def _sizes(
    model: ModelFile,
    job: Job,
    folder: Path,
    dims: Mapping[str, int],
    given: Mapping[str, np.ndarray],
    wanted: Sequence[int],
) -> Iterator[tuple[int, tuple[InputPlan, ...]]]:
    """Yield the sizes to try, 0 where none is free, with the plans that run."""
    sizes = tuple(sorted({*wanted, *(size for size in FREE_SIZES if size > min(wanted))}))
    plans = [plan_inputs(model, dims=dims, given=given, free_dim=size) for size in sizes]
    others = (*plans, *(_all_of(size, model, dims, given) for size in wanted))
    if all(each == plans[0] for each in others):
        if rehearse(job, [_save(plans[0], given, folder / "only", 0)]) is not None:
            yield 0, plans[0]
        return
    feeds = [
        _save(each, given, folder / f"free-{size}", 0)
        for size, each in zip(sizes, plans, strict=True)
    ]
    first = rehearse(job, feeds)
    if first is None:
        return
    yield sizes[first], plans[first]
    for size in sorted(wanted):
        # Where all free dimensions look like a batch, it is they that grow.
        larger = plans[sizes.index(size)]
        if larger == plans[0]:
            larger = _all_of(size, model, dims, given)
        if (
            size > sizes[first]
            and rehearse(job, [_save(larger, given, folder / f"of-{size}", 0)]) is not None
        ):
            yield size, larger


def _all_of(
    size: int, model: ModelFile, dims: Mapping[str, int], given: Mapping[str, np.ndarray]
) -> tuple[InputPlan, ...]:
    """Return plans with every free dimension of `size`, those that look like a batch too."""
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
    folder.mkdir(parents=True, exist_ok=True)
    feeds = []
    for index, plan in enumerate(plans):
        path = folder / f"{index}.npy"
        np.save(path, _array(plan, given, seed))
        feeds.append(
            Feed(
                name=plan.name,
                files=(path,),
                sequence=plan.kind == "sequence",
                onnx_type=plan.bits_type,
            )
        )
    return feeds


def _array(plan: InputPlan, given: Mapping[str, np.ndarray], seed: int) -> np.ndarray:
    """Return the values of one input; what is true in the first set is false in the second."""
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
