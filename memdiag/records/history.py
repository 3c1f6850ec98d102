"""The history: figures of profiles over time (schema ``memdiag.history/1``)."""

from typing import Final, Literal

from memdiag.records.base import Record

HISTORY_SCHEMA: Final = "memdiag.history/1"


class Entry(Record, frozen=True, kw_only=True):
    """One profile that was added: when (seconds since 1970, UTC), and what it took.

    `label` is what it was added as, such as a commit; empty where nothing was said. `figures` are
    by name, in their units.
    """

    added_s: float
    label: str
    model: str
    onnxruntime: str | None
    memdiag: str
    machine: str
    figures: dict[str, int]


class History(Record, frozen=True, kw_only=True):
    """Entries in the order in which they were added."""

    schema: Literal["memdiag.history/1"]
    entries: tuple[Entry, ...]
