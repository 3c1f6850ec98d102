"""Baselines: what a model took when that was last found right (schema ``memdiag.baseline/1``)."""

from typing import Final, Literal

from memdiag.records.attribution import CopyKind
from memdiag.records.base import Record

BASELINE_SCHEMA: Final = "memdiag.baseline/1"


class HeldCopy(Record, frozen=True, kw_only=True):
    """All live copies of one weight that are of one kind: how many, and their bytes together.

    `made_by` names what made them, as far as that is known.
    """

    weight: str
    kind: CopyKind
    count: int
    bytes: int
    made_by: str | None


class Taken(Record, frozen=True, kw_only=True):
    """What the model took on one class of machines.

    `figures` are by name, in their units; those of phases may be off by `late_bytes`, which a busy
    machine makes large. `copies` are the largest; `setup` is what the model was measured with
    (inputs, options, environment), without what is as usual.
    """

    onnxruntime: str | None
    memdiag: str
    setup: dict[str, str]
    figures: dict[str, int]
    late_bytes: int
    copies: tuple[HeldCopy, ...]


class Baseline(Record, frozen=True, kw_only=True):
    """What one model took, by class of machines (`Environment.machine`)."""

    schema: Literal["memdiag.baseline/1"]
    model: str
    machines: dict[str, Taken]
