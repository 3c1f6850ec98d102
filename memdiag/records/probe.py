"""Probe: memory of a process while code in it creates and runs a session."""

from memdiag.records.base import Record
from memdiag.records.profile import PeakKind


class Probe(Record, frozen=True, kw_only=True):
    """Figures of a block of code in a process.

    Attributes:
        name: the name of the process, for messages.
        figures: bytes by figure, above the memory before the block; `process_peak` is the peak of
            the whole process.
        peak_kind: whether the peak is exact.
        notes: limits of the measurement.
    """

    name: str
    figures: dict[str, int]
    peak_kind: PeakKind
    notes: tuple[str, ...]
