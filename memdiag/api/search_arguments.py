"""Arguments that searches and comparisons share: their checks."""

import time
from math import inf

from memdiag.errors import UsageError
from memdiag.runner.job import Deadline


def check_slowdown(max_slowdown: float) -> None:
    """Check the largest ratio of latencies of a search.

    Raises:
        UsageError: it is not positive.
    """
    if not 0 < max_slowdown < inf:
        raise UsageError("--max-slowdown must be a number greater than 0.")


def deadline_after(time_limit_s: float | None) -> Deadline:
    """Return the deadline of a command that starts now.

    Raises:
        UsageError: the limit leaves no time.
    """
    if time_limit_s is not None and time_limit_s <= 0:
        raise UsageError("--time-limit must be greater than 0.")
    return Deadline(inf if time_limit_s is None else time.monotonic() + time_limit_s)
