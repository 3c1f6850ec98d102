"""Reads the memory of a child while it is measured, and collects the samples for the profile."""

import array
import statistics

from memdiag.records.profile import UNKNOWN_MEMORY, Sampling
from memdiag.runner.observer import (
    MemoryReading,
    Observer,
    ObserverFactory,
    ProcessGone,
    SpanBoundary,
)
from memdiag.runner.sample_timeline import SampleTimeline

_MAX_GAPS = 1_000_000
_PERIOD_WITHOUT_OBSERVER_S = 0.2


class Sampler:
    """Reads the memory of a child, and collects the readings and the time between them.

    Args:
        make_observer: creates the reader of the child's memory.
        pid: the process number of the child.

    Attributes:
        timeline: the readings that belong to a phase.
        last_boundary: the last reading at a boundary; unknown if the child had ended already.
        rss_bytes: the resident set in the last reading.
    """

    def __init__(self, make_observer: ObserverFactory, pid: int) -> None:
        self.timeline = SampleTimeline()
        self._gaps = array.array("d")
        self._count = 0
        self._last_s = 0.0
        self.rss_bytes = 0
        self.last_boundary = SpanBoundary(UNKNOWN_MEMORY, None)
        self._observer: Observer | None = None
        try:
            self._observer = make_observer(pid)
            self.last_boundary = self._observer.boundary()
        except ProcessGone:
            # The child has ended already; its output has the reason.
            self._observer = None

    @property
    def is_observing(self) -> bool:
        """Whether the memory of the child could be read before it ended."""
        return self._observer is not None

    @property
    def next_s(self) -> float:
        """The time of the next sample, in seconds since the start of the child."""
        period_s = self._observer.period_s if self._observer else _PERIOD_WITHOUT_OBSERVER_S
        return self._last_s + period_s

    def sample_if_due(self, now_s: float, *, in_timeline: bool) -> MemoryReading | None:
        """Read the memory and `add` it, if half of the period has passed since the last reading.

        Raises:
            ProcessGone: the child has ended.
        """
        observer = self._observer
        if observer is None or now_s < self._last_s + observer.period_s * 0.5:
            return None
        reading = observer.sample()
        self.add(now_s, reading, in_timeline=in_timeline)
        return reading

    def read_boundary(self) -> SpanBoundary:
        """Return the memory at a boundary, without adding it.

        Raises:
            ProcessGone: the child has ended.
        """
        if self._observer is None:
            raise ProcessGone
        self.last_boundary = self._observer.boundary()
        return self.last_boundary

    def add(self, now_s: float, reading: MemoryReading, *, in_timeline: bool) -> None:
        """Count a reading; `in_timeline` is whether it belongs to a phase."""
        if self._count and len(self._gaps) < _MAX_GAPS:
            self._gaps.append(now_s - self._last_s)
        self._count += 1
        self._last_s = now_s
        self.rss_bytes = reading.rss_bytes
        if in_timeline:
            self.timeline.add(now_s, reading)

    @property
    def last_known(self) -> SpanBoundary:
        """The last reading of the timeline, without a high-water mark.

        The memory and the mark of a child that has ended on its own are gone.
        """
        last = self.timeline.last
        return SpanBoundary(self.last_boundary.memory if last is None else last.memory, None)

    def sampling(self, lag_s: float | None) -> Sampling:
        """Return how the memory was read; `lag_s` is how late the boundaries were read."""
        return Sampling(
            method=self._observer.method if self._observer else "psutil",
            count=self._count,
            period_s=round(statistics.median(self._gaps), 6) if self._gaps else 0.0,
            largest_gap_s=round(max(self._gaps, default=0.0), 6),
            boundary_lag_s=None if lag_s is None else round(lag_s, 6),
        )

    def close(self) -> None:
        """Close the reader of the memory."""
        if self._observer is not None:
            self._observer.close()
