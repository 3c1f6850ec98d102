"""The arguments that `memdiag.fix`, `memdiag.tune` and `memdiag.optimize` share: their checks."""

import time
from math import inf

from memdiag.errors import UsageError
from memdiag.runner.job import Deadline


def check_search_arguments(max_slowdown: float, time_limit_s: float | None) -> None:
    """Check the limits of a search.

    Raises:
        UsageError: a limit is not positive.
    """
    if not 0 < max_slowdown < inf:
        raise UsageError("--max-slowdown must be a number greater than 0.")
    if time_limit_s is not None and time_limit_s <= 0:
        raise UsageError("--time-limit must be greater than 0.")


def deadline_after(time_limit_s: float | None) -> Deadline:
    """Return the deadline of a search that starts now."""
    return Deadline(inf if time_limit_s is None else time.monotonic() + time_limit_s)
