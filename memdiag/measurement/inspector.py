"""Looking into the child's memory while it waits: what the watcher calls, and what it tells."""

from collections.abc import Sequence
from typing import Protocol

from memdiag.records.profile import Span


class Inspector(Protocol):
    """Looks at the child while it waits; what fails in there is for the inspector to keep."""

    def baseline(self, pid: int) -> None:
        """The runtime is imported, nothing of the model is loaded."""
        ...

    def steady(self, pid: int, spans: Sequence[Span], arena: Sequence[tuple[int, int]]) -> None:
        """All runs are done and freed heap was given back.

        `spans` are all that were seen; `arena` the address ranges by which the runtime's arena
        grew.
        """
        ...
