"""The samples of a run, thinned without losing a peak."""

from memdiag.records.profile import Samples
from memdiag.runner.observer import MemoryReading

_MAX_SAMPLES = 50_000
_THINNED_GROUP = 4


class SampleTimeline:
    """Collects readings in order of time.

    While nothing changes, only the first and last reading are stored. Above `_MAX_SAMPLES`, every
    four neighbours are replaced by their smallest and largest, so that a run of hours stays small
    and no extreme is lost.
    """

    def __init__(self) -> None:
        self._times: list[float] = []
        self._readings: list[MemoryReading] = []
        self._is_level = False

    def add(self, at_s: float, reading: MemoryReading) -> None:
        """Add the reading taken at `at_s` seconds."""
        readings = self._readings
        if self._is_level and readings[-1] == reading:
            self._times[-1] = at_s
            return
        self._is_level = bool(readings) and readings[-1] == reading
        self._times.append(at_s)
        readings.append(reading)
        if len(readings) > _MAX_SAMPLES:
            self._thin_readings()

    @property
    def last(self) -> MemoryReading | None:
        """The last reading; None if there is none."""
        return self._readings[-1] if self._readings else None

    def samples(self) -> Samples:
        """Return the timeline as columns."""
        shared = tuple(reading.shared_bytes for reading in self._readings)
        return Samples(
            t_s=tuple(round(at_s, 6) for at_s in self._times),
            rss_bytes=tuple(reading.rss_bytes for reading in self._readings),
            anonymous_bytes=tuple(reading.anonymous_bytes for reading in self._readings),
            file_and_shared_bytes=tuple(
                reading.file_and_shared_bytes for reading in self._readings
            ),
            shared_bytes=shared if any(shared) else (),
        )

    def _thin_readings(self) -> None:
        kept_indices: list[int] = []
        for first in range(0, len(self._readings), _THINNED_GROUP):
            group = range(first, min(first + _THINNED_GROUP, len(self._readings)))
            low = min(group, key=lambda index: self._readings[index].rss_bytes)
            high = max(group, key=lambda index: self._readings[index].rss_bytes)
            kept_indices.extend(sorted({low, high}))
        # The first and last reading are always kept.
        kept_indices = sorted({0, *kept_indices, len(self._readings) - 1})
        self._times = [self._times[index] for index in kept_indices]
        self._readings = [self._readings[index] for index in kept_indices]
        self._is_level = False
