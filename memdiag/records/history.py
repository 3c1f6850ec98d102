"""The history: figures of profiles over time (schema ``memdiag.history/1``)."""

from typing import Final, Literal

from memdiag.records.base import Record

HISTORY_SCHEMA: Final = "memdiag.history/1"


class HistoryEntry(Record, frozen=True, kw_only=True):
    """One profile in the history.

    Attributes:
        added_s: when it was added, in seconds since 1970, UTC.
        label: a label such as a commit; may be empty.
        model: the path of the model.
        onnxruntime: the version of onnxruntime.
        memdiag: the version of memdiag.
        machine: the class of machine.
        figures: the figures by name, in their units.
    """

    added_s: float
    label: str
    model: str
    onnxruntime: str | None
    memdiag: str
    machine: str
    figures: dict[str, int]


class History(Record, frozen=True, kw_only=True):
    """All entries of the history, in the order in which they were added."""

    schema: Literal["memdiag.history/1"]
    entries: tuple[HistoryEntry, ...]
