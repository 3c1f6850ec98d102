"""Looking into the child's memory while it waits: what the watcher calls, and what it tells."""

from collections.abc import Sequence
from typing import Protocol

from memdiag.records.profile import PhaseName, Span

Arena = Sequence[tuple[int, int]]
"""The address ranges by which the runtime's arena has grown."""


class Inspector(Protocol):
    """Looks at the child while it waits; what fails in there is for the inspector to keep.

    The time that it takes belongs to no phase.
    """

    phases: bool
    """Whether the child is to be stopped at the end of each phase."""

    def baseline(self, pid: int) -> None:
        """The runtime is imported, nothing of the model is loaded."""
        ...

    def phase(self, pid: int, name: PhaseName, arena: Arena) -> None:
        """Phase `name` has ended; it may come again, and the last time counts."""
        ...

    def steady(self, pid: int, spans: Sequence[Span], arena: Arena) -> None:
        """All runs are done and freed heap was given back; `spans` are all that were seen."""
        ...
