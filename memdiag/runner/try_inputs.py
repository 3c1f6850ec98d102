"""Search for inputs with which a model runs, in a child that is not measured."""

import time
from collections.abc import Generator, Sequence
from contextlib import closing

from memdiag.runner.child import Child
from memdiag.runner.job import Feed, Job, as_json

_POLL_S = 0.1


def try_inputs(job: Job, candidates: Sequence[Sequence[Feed]]) -> int | None:
    """Return the index of the first of `candidates` with which the model of `job` runs.

    Return None if it runs with none, if the session cannot be created, or after the job's timeout.

    Raises:
        MeasurementError: the child's interpreter cannot be started.
        TimeLimitReached: the job's deadline passed.
    """
    with closing(_try_each(job, candidates)) as results:
        return next((index for index, runs in enumerate(results) if runs), None)


def inputs_that_run(
    job: Job, candidates: Sequence[Sequence[Feed]], *, needs_first: bool = False
) -> list[int]:
    """Return the indices of all `candidates` with which the model of `job` runs.

    After a candidate that ends the child, or takes longer than the job's timeout, the next ones are
    tried in a new child.

    Args:
        job: the model and the configuration.
        candidates: sets of inputs.
        needs_first: try no others, and return no index, if the model does not run with the first.

    Raises:
        MeasurementError: the child's interpreter cannot be started.
        TimeLimitReached: the job's deadline passed.
    """
    results: list[bool] = []
    while len(results) < len(candidates):
        with closing(_try_each(job, candidates[len(results) :])) as tried:
            for runs in tried:
                results.append(runs)
                if needs_first and not results[0]:
                    return []
        if len(results) < len(candidates):
            results.append(False)
        if needs_first and not results[0]:
            return []
    return [index for index, runs in enumerate(results) if runs]


def _try_each(job: Job, candidates: Sequence[Sequence[Feed]]) -> Generator[bool]:
    """Yield for each of `candidates` whether the model runs with it, until the child ends."""
    message = job.message() | {"candidates": as_json(candidates)}
    job.limits.deadline.check()
    deadline = min(time.monotonic() + job.limits.timeout_s, job.limits.deadline.at)
    with Child(job, message, "try_inputs.py") as child:
        for event in child.events(_POLL_S):
            if time.monotonic() >= deadline:
                job.limits.deadline.check()
                break
            if event is None:
                continue
            if event.name == "error":
                break
            if event.name == "tried":
                yield event.fields["message"] is None
                child.proceed()
