"""Trying sets of inputs in a child of their own, before a model is measured with one that runs."""

import time
from collections.abc import Sequence

from memdiag.measurement.child import Child
from memdiag.measurement.job import Feed, Job
from memdiag.measurement.markers import Event, LogReader
from memdiag.measurement.pump import make_pump

_POLL_S = 0.1


def rehearse(job: Job, candidates: Sequence[Sequence[Feed]]) -> int | None:
    """Return the index of the first of `candidates` that the model of `job` runs with.

    None where none runs, where the session cannot be created, or where the job's time is used up.

    Raises:
        MeasurementError: the child's interpreter cannot be started.
        TimeLimitReached: the job's deadline passed.
    """
    message = job.message() | {
        "rehearsals": [[feed.message() for feed in feeds] for feeds in candidates]
    }
    job.deadline.check()
    deadline = min(time.monotonic() + job.timeout_s, job.deadline.at)
    with Child(job, message, "rehearse.py") as child:
        log = LogReader(child.secret)
        pump = make_pump(child.log)
        try:
            while not pump.ended and time.monotonic() < deadline:
                pump.wait(_POLL_S)
                for event in log.feed(pump.take()):
                    if isinstance(event, Event) and event.name == "error":
                        return None
                    if isinstance(event, Event) and event.name == "rehearsed":
                        if event.fields["message"] is None:
                            return int(event.fields["index"])
                        child.proceed()
        finally:
            pump.close()
    if not pump.ended:
        job.deadline.check()
    return None
