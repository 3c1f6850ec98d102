"""Whose the kernel's high-water marks are.

The mark is read and reset each time the watcher wakes up at a boundary; the stretch between two
such readings is a *window*. Ideally a window holds one span. But the runtime goes on while we
wake up, so that a window may also hold the head or tail of a neighbour, or several short spans.
The rules here decide what a mark says of each of them, without guessing.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from memdiag.records.profile import PeakKind

K = TypeVar("K", bound=Hashable)

LAG_TOLERANCE_S = 0.001
"""Neighbours that together last less than this leave a window to the span that fills it."""

SLACK_BYTES = 1 << 20
"""The kernel's counters are exact to some pages a processor; closer than this is the same."""


@dataclass(slots=True)
class _Known:
    """What is known of one key, in bytes: its peak is at least `value`.

    `owned` says that a window was its own, `unmarked` that one had no mark. The marks of windows
    that others filled bound it from above: `bound` where it had a real part in them,
    `edge_bound` where it was only their edge.
    """

    value: int = 0
    owned: bool = False
    unmarked: bool = False
    bound: int = 0
    edge_bound: int = 0


class Peaks(Generic[K]):
    """Collects windows, and says of each key (a span, a phase) its peak and how it is known."""

    def __init__(self) -> None:
        self._known: dict[K, _Known] = {}

    def saw(self, key: K, rss_bytes: int) -> None:
        """A sample, or the reading at a boundary, belongs to `key`."""
        known = self._known.setdefault(key, _Known())
        known.value = max(known.value, rss_bytes)

    def window(self, segments: Iterable[tuple[K, float]], peak_rss_bytes: int | None) -> None:
        """Count a window: the keys in it with their seconds, and its mark (None: there is none)."""
        durations: dict[K, float] = {}
        for key, seconds in segments:
            durations[key] = durations.get(key, 0.0) + seconds
        total = sum(durations.values())
        for key, seconds in durations.items():
            known = self._known.setdefault(key, _Known())
            others = total - seconds
            if peak_rss_bytes is None:
                known.unmarked = True
            elif others <= seconds and others < LAG_TOLERANCE_S:
                known.owned = True
                known.value = max(known.value, peak_rss_bytes)
            elif seconds >= LAG_TOLERANCE_S:
                known.bound = max(known.bound, peak_rss_bytes)
            else:
                known.edge_bound = max(known.edge_bound, peak_rss_bytes)

    def of(self, key: K) -> tuple[int, PeakKind]:
        """Return the peak of `key` in bytes: exact where the marks leave no other answer."""
        known = self._known[key]
        # Edges tell nothing new of a key that had a window to itself.
        bound = known.bound if known.owned else max(known.bound, known.edge_bound)
        settled = (known.owned or bound > 0) and bound <= known.value + SLACK_BYTES
        return known.value, "exact" if settled and not known.unmarked else "sampled"
