"""Runs of a model at the largest size that fits, as estimates do not know which sizes can run.

For example, a table of positions has a row only for each trained position, and a network of several
scales needs sides that it can divide.
"""

import time
from collections.abc import Callable, Iterator

import msgspec

from memdiag.api.estimating.fit import last_that_fits
from memdiag.api.estimating.sizes import SizeGrid
from memdiag.api.inputs import save_inputs
from memdiag.errors import MemdiagError
from memdiag.model.inputs import plan_inputs
from memdiag.model.model_file import ModelFile
from memdiag.records.estimate import Fit
from memdiag.runner.job import Deadline, Job, Limits, SessionConfig, TimeLimitReached
from memdiag.runner.temporary import temporary_folder
from memdiag.runner.try_inputs import InputTrial, try_once
from memdiag.system.memory_limit import available_memory_bytes
from memdiag.units import format_duration, format_size

MAX_SECONDS = 60.0
"""Time for all runs of an estimate."""

SIZE_MULTIPLES = (2, 4, 8, 16, 32, 64)
"""Numbers of which sizes may have to be multiples."""


def with_trial(fit: Fit, model_file: ModelFile, grid: SizeGrid, session: SessionConfig) -> Fit:
    """Return `fit` after a run at the largest size that fits probably.

    If the model does not run there, smaller sizes are tried, and the largest one that runs takes
    its place. If the memory of larger sizes is unknown, the next size is tried, too.
    """
    size = fit.probably
    if size is None:
        return fit
    available_bytes = available_memory_bytes()
    if fit.high_bytes > available_bytes:
        need_text = f"{size:,} may take {format_size(fit.high_bytes)}"
        return _untried_fit(fit, f"{need_text}, and {format_size(available_bytes)} are available")
    deadline = Deadline(time.monotonic() + MAX_SECONDS)
    limits = Limits(timeout_s=MAX_SECONDS, deadline=deadline)
    job = Job(model=model_file.path, session=session, limits=limits, runs=None)

    def trial_at(size: int) -> InputTrial:
        sizes = grid.at(dict.fromkeys(fit.dims, size))
        with temporary_folder() as folder:
            return try_once(
                job, save_inputs(plan_inputs(model_file, dims=sizes, given={}), {}, folder)
            )

    try:
        trial = trial_at(size)
        if trial.runs:
            fit = msgspec.structs.replace(fit, trial="ran")
            return fit if fit.too_large is not None else with_next_size(fit, trial_at(size + 1))
        if not (trial.has_session and trial.has_answer):
            return _untried_fit(fit, trial.problem or "")
        return fit_at_running_sizes(
            fit, size, trial.problem or "", lambda size: trial_at(size).runs
        )
    except TimeLimitReached:
        return _untried_fit(fit, f"{format_duration(MAX_SECONDS)} were not enough for its runs")
    except MemdiagError as error:
        return _untried_fit(fit, str(error))


def with_next_size(fit: Fit, trial: InputTrial) -> Fit:
    """Return `fit` with the end of what the model can run, if `trial` of the next size failed."""
    assert fit.probably is not None
    if trial.runs or not (trial.has_session and trial.has_answer):
        return fit
    problem = trial.problem or ""
    return msgspec.structs.replace(fit, fails_at=fit.probably + 1, problem=problem)


def _untried_fit(fit: Fit, problem: str) -> Fit:
    return msgspec.structs.replace(fit, trial="not run", problem=problem)


def fit_at_running_sizes(fit: Fit, size: int, problem: str, runs: Callable[[int], bool]) -> Fit:
    """Return `fit` with smaller sizes at which the model runs, as it does not run at `size`."""
    largest = _largest_that_runs(size, runs)
    if largest is None:
        return msgspec.structs.replace(fit, trial="fails", problem=problem)
    surely = None if fit.surely is None else min(fit.surely, largest)
    if surely not in (None, largest) and not runs(surely):
        surely = _largest_that_runs(surely, runs)
    return msgspec.structs.replace(
        fit, surely=surely, probably=largest, fails_at=largest + 1, trial="ran", problem=problem
    )


def _largest_that_runs(failing: int, runs: Callable[[int], bool]) -> int | None:
    """Return a size below `failing` that runs and whose successor does not; None if none runs."""
    for size in _smaller_sizes(failing):
        if runs(size):
            return (
                size
                if failing == size + 1 or not runs(size + 1)
                else last_that_fits(runs, size, failing)
            )
        failing = size
    return None


def _smaller_sizes(size: int) -> Iterator[int]:
    """Yield smaller sizes, the largest first: multiples, then powers of two."""
    powers = (1 << exponent for exponent in range(size.bit_length() - 1, -1, -1))
    last_size = size
    for candidate in (*(size - size % multiple for multiple in SIZE_MULTIPLES), *powers):
        if 0 < candidate < last_size:
            yield candidate
            last_size = candidate
