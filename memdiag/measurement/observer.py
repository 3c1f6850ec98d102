"""What can be read of another process's resident memory, and how well."""

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from memdiag.records.profile import Memory


class Reading(NamedTuple):
    """One sample, in bytes; the parts are None where the system does not tell them.

    `file_bytes` includes `shared_bytes`: the cheap source does not tell the two apart.
    """

    rss_bytes: int
    anonymous_bytes: int | None
    file_bytes: int | None
    shared_bytes: int | None = None

    @property
    def memory(self) -> Memory:
        """The same with shared memory apart from what is file-backed."""
        file = self.file_bytes
        return Memory(
            rss_bytes=self.rss_bytes,
            anonymous_bytes=self.anonymous_bytes,
            file_bytes=None if file is None else file - (self.shared_bytes or 0),
            shared_bytes=self.shared_bytes,
        )


class Boundary(NamedTuple):
    """The state at a boundary: the split memory, and the high-water mark since the boundary before
    (None where the system does not keep one that can be reset)."""

    memory: Memory
    peak_rss_bytes: int | None


class ProcessGone(Exception):
    """The observed process has ended; there is nothing left to read."""


class Observer(Protocol):
    """Reads one process; every method raises `ProcessGone` once that process has ended."""

    method: Literal["proc", "psutil"]
    period_s: float
    """The time between samples that this source can afford."""

    def sample(self) -> Reading:
        """Return the resident set, as cheaply as the system allows."""
        ...

    def boundary(self) -> Boundary:
        """Return the state now, and start a new high-water mark."""
        ...

    def close(self) -> None:
        """Release what the observer holds."""
        ...


ObserverFactory = Callable[[int], Observer]
