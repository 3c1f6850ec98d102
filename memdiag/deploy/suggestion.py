"""The suggested request and limit of a container."""

from typing import NamedTuple

from memdiag.deploy.limit_search import rounded_up

MARGIN = 0.2
"""Share of the request by which the limit is larger: for other inputs than the measured ones, other
machines, and what else runs in a container (probes, an agent, a shell)."""


class Suggestion(NamedTuple):
    """Request and limit in bytes."""

    request_bytes: int
    limit_bytes: int


def suggestion(needed_bytes: int, uncounted_bytes: int = 0) -> Suggestion:
    """Return the suggested request and limit.

    Args:
        needed_bytes: the memory that is needed, without a slowdown.
        uncounted_bytes: pages that other processes had in memory, and that count in a container.
    """
    request = rounded_up(needed_bytes + uncounted_bytes)
    return Suggestion(request, rounded_up(round(request * (1 + MARGIN))))
