"""Search for inputs with which a model runs, in a child that is not measured."""

import time
from collections.abc import Sequence

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
                if event.fields["message"] is None:
                    return int(event.fields["index"])
                child.proceed()
    return None
