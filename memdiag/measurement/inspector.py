"""Looking into the child's memory while it waits: what the watcher calls, and what it tells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from memdiag.records.profile import PhaseName

Arena = Sequence[tuple[int, int]]
"""The address ranges by which the runtime's arena has grown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogEvidence:
    """What the runtime's log proves about the session's making.

    `changed` are the graph transformers that changed the graph. `removed` has initializers that
    are gone, by name, each with the transformer whose change left it without a user (empty where
    several graphs have the name and it went after the changes of several); `removed_all` says
    that no other went after a transformer's change. `reserved` counts, by their bytes, the buffers
    that kernels reserved in the arena for packed weights, and is None where the session has no
    arena. They come in the order of the optimized graph, where nodes that were fused are the last,
    and not in that of the model: so no order is kept.
    """

    changed: frozenset[str]
    removed: Mapping[str, str]
    removed_all: bool
    reserved: Mapping[int, int] | None


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

    def steady(self, pid: int, log: LogEvidence, arena: Arena) -> None:
        """All runs are done and freed heap was given back; `log` is what was logged until now."""
        ...
