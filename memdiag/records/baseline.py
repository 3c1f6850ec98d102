"""Baselines: the accepted figures of a model (schema ``memdiag.baseline/1``)."""

from typing import Final, Literal

from memdiag.records.attribution import CopyKind
from memdiag.records.base import Record

BASELINE_SCHEMA: Final = "memdiag.baseline/1"


class CopyTotal(Record, frozen=True, kw_only=True):
    """All copies in use of one weight and one kind.

    Attributes:
        weight: the name of the weight.
        kind: the kind of the copies.
        count: the number of copies.
        bytes: the bytes of all copies.
        made_by: the step that made them; None if it is not known.
    """

    weight: str
    kind: CopyKind
    count: int
    bytes: int
    made_by: str | None


class BaselineEntry(Record, frozen=True, kw_only=True):
    """The figures of a model on one class of machines.

    Attributes:
        onnxruntime: the version of onnxruntime.
        memdiag: the version of memdiag.
        setup: inputs, options and environment that are not the defaults.
        figures: the figures by name, in their units.
        late_bytes: possible error of the figures of phases in bytes; large on a busy machine.
        copies: the largest copies in use of weights.
    """

    onnxruntime: str | None
    memdiag: str
    setup: dict[str, str]
    figures: dict[str, int]
    late_bytes: int
    copies: tuple[CopyTotal, ...]


class Baseline(Record, frozen=True, kw_only=True):
    """The baseline of one model: an entry for each class of machines (`Environment.machine`)."""

    schema: Literal["memdiag.baseline/1"]
    model: str
    machines: dict[str, BaselineEntry]
