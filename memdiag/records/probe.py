"""What was seen of a process around code that makes a session of its own."""

from memdiag.records.base import Record
from memdiag.records.profile import PeakKind


class Probe(Record, frozen=True, kw_only=True):
    """The figures of a stretch of code, above what the process had before, in bytes.

    `process_peak` among them is the whole process's. `notes` say what they cannot tell.
    """

    name: str
    figures: dict[str, int]
    peak_kind: PeakKind
    notes: tuple[str, ...]
