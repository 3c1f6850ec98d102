"""Inputs of the runs in which a model is examined for leaks: sets of different sizes."""

import random
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from memdiag.api.inputs import choose_inputs, find_inputs, save_inputs
from memdiag.errors import MeasurementError, UsageError
from memdiag.model.axis_roles import dims_by_name
from memdiag.model.inputs import plan_inputs
from memdiag.model.model_file import ModelFile
from memdiag.runner.job import Feed, InputConfig, Job
from memdiag.runner.try_inputs import inputs_that_run, try_once

MAX_COMBINATIONS = 24
"""Combinations of sizes with which a model is run, if sizes vary."""


class SizedInputs(NamedTuple):
    """A set of inputs.

    Attributes:
        sizes: the sizes of the dimensions that vary, by name.
        feeds: the inputs.
    """

    sizes: Mapping[str, int]
    feeds: tuple[Feed, ...]


def sized_inputs(
    model_file: ModelFile,
    job: Job,
    inputs: InputConfig,
    *,
    ranges: Mapping[str, tuple[int, int]],
    vary_shapes: bool,
    scratch: Path,
) -> list[SizedInputs]:
    """Return the sets of inputs of the runs, the largest first; sets that do not run are left out.

    Args:
        model_file: the model.
        job: the session.
        inputs: sizes and arrays of the inputs, and whether their contents stay the same.
        ranges: ranges of free dimensions, by name.
        vary_shapes: change the sizes of free dimensions without a range, too.
        scratch: a folder for the arrays.

    Raises:
        UsageError: the model runs with no inputs, or no dimension can vary.
        MeasurementError: the session cannot be created.
    """
    chosen = choose_inputs(model_file, inputs)
    given_arrays = inputs.arrays
    same_inputs = inputs.same_inputs
    first_feeds = tuple(
        save_inputs(chosen.plans, given_arrays, scratch / "inputs", same_inputs=same_inputs)
    )
    trial = try_once(job, first_feeds)
    if not trial.has_session:
        raise MeasurementError(
            f"{model_file.path}: the session cannot be created ({trial.problem})."
        )
    if not trial.runs:
        other_inputs = find_inputs(model_file, job, scratch, inputs, first=chosen)
        if other_inputs is None:
            raise UsageError(
                f"{model_file.path}: it does not run with these inputs ({trial.problem}). Give"
                " --dim or --input."
            )
        chosen = other_inputs
        first_feeds = tuple(
            save_inputs(chosen.plans, given_arrays, scratch / "found", same_inputs=same_inputs)
        )
    ranges = dims_by_name(model_file.graph, model_file.functions, ranges)
    if vary_shapes:
        for dimension in chosen.dimensions:
            if dimension.source == "chosen" and dimension.role != "sum" and dimension.size > 1:
                ranges.setdefault(dimension.name, (1, dimension.size))
        if not ranges:
            raise UsageError(
                f"{model_file.path}: no dimension can vary. Give a range: --dim NAME=LOW..HIGH."
            )
    ranged_sizes = {name: size for name, size in chosen.sizes.items() if name in ranges}
    input_sets = [SizedInputs(ranged_sizes, first_feeds)]
    if not ranges:
        return input_sets
    dims = dims_by_name(model_file.graph, model_file.functions, inputs.dims)
    candidates = []
    for number, sizes in enumerate(_size_combinations(ranges)):
        plans = plan_inputs(model_file, dims={**dims, **sizes}, given=given_arrays)
        folder = scratch / f"sizes-{number}"
        feeds = tuple(save_inputs(plans, given_arrays, folder, same_inputs=same_inputs))
        candidates.append(SizedInputs(sizes, feeds))
    usable_indices = inputs_that_run(job, [candidate.feeds for candidate in candidates])
    return input_sets + [candidates[index] for index in usable_indices]


def _size_combinations(ranges: Mapping[str, tuple[int, int]]) -> list[dict[str, int]]:
    """Return at most `MAX_COMBINATIONS` combinations of sizes in `ranges`, evenly chosen."""
    names = list(ranges)
    count = 1
    for low, high in ranges.values():
        count *= high - low + 1
    if count <= MAX_COMBINATIONS:
        combinations = product(*(range(low, high + 1) for low, high in ranges.values()))
        return [dict(zip(names, sizes, strict=True)) for sizes in combinations]
    generator = random.Random(0)
    return [
        {name: generator.randint(low, high) for name, (low, high) in ranges.items()}
        for _ in range(MAX_COMBINATIONS)
    ]


def input_order(set_count: int) -> tuple[int, ...]:
    """Return the index of the set of inputs of each run, in turn."""
    if set_count == 1:
        return (0,)
    generator = random.Random(0)
    return tuple(generator.randrange(set_count) for _ in range(4 * set_count))


def runs_with_new_largest(
    input_sets: Sequence[SizedInputs], order: Sequence[int], runs: int
) -> frozenset[int]:
    """Return the numbers of the runs in which a dimension was larger than in all runs before."""
    largest: dict[str, int] = {}
    run_numbers = set()
    for run in range(1, runs + 1):
        sizes = input_sets[order[(run - 1) % len(order)]].sizes
        if any(size > largest.get(name, 0) for name, size in sizes.items()):
            run_numbers.add(run)
        for name, size in sizes.items():
            largest[name] = max(size, largest.get(name, 0))
    return frozenset(run_numbers)


def varied_sizes(input_sets: Sequence[SizedInputs]) -> dict[str, tuple[int, int]]:
    """Return the smallest and the largest size of each dimension that varies, by name."""
    sizes_by_name = {
        name: [input_set.sizes[name] for input_set in input_sets] for name in input_sets[0].sizes
    }
    return {name: (min(values), max(values)) for name, values in sizes_by_name.items()}
