"""Budgets: what a model may take, and how it compares with that."""

from typing import Literal

import msgspec

from memdiag.records.attribution import Owner
from memdiag.records.base import Record
from memdiag.records.baseline import HeldCopy
from memdiag.records.dimension import Dimension
from memdiag.records.phases import PhaseName


class Budget(Record, frozen=True, kw_only=True):
    """What a model may take: `limits` by the name of the figure, in its unit (bytes, or a count).

    `tolerance` is the share by which a limit or a baseline may be exceeded; where it is None a
    limit holds to the byte, and a baseline has the usual tolerance.
    """

    limits: dict[str, int] = msgspec.field(default_factory=dict)
    tolerance: float | None = None


class Breach(Record, frozen=True, kw_only=True):
    """One figure above its limit; `against` says whether that is a budget or a baseline.

    `phase` is where the figure comes to be, None where it was not told. `allowed` is `limit` with
    the tolerance.
    """

    figure: str
    phase: PhaseName | None
    measured: int
    limit: int
    allowed: int
    against: Literal["budget", "baseline"]

    @property
    def over(self) -> int:
        """By how much the figure exceeds its limit (not the tolerance)."""
        return self.measured - self.limit


class Suspect(Record, frozen=True, kw_only=True):
    """A finding that may be what costs: the `rule` by name, what it says, the bytes it costs.

    `can_be_fixed` says that ``memdiag fix`` can rewrite this model for it.
    """

    rule: str
    message: str
    bytes: int
    can_be_fixed: bool


class Judgement(Record, frozen=True, kw_only=True):
    """How a model's figures compare with its budget and its baseline.

    `figures` are settled by `processes` fresh processes. `baseline` holds the baseline's figures,
    empty without one. `copies` are those that are new since the baseline, the largest first, where
    `copies_are_new`; else those of the weight that takes the most in several copies. `notes` are
    sentences. `dimensions` are the free dimensions with the sizes that were measured. `owners` are
    the largest owners of memory at steady state where something is above its limit, without those
    that every process with the runtime has.
    """

    model: str
    onnxruntime: str | None
    figures: dict[str, int]
    processes: int
    budget: Budget
    baseline: dict[str, int] = msgspec.field(default_factory=dict)
    baseline_onnxruntime: str | None = None
    breaches: tuple[Breach, ...] = ()
    copies: tuple[HeldCopy, ...] = ()
    copies_are_new: bool = False
    suspect: Suspect | None = None
    notes: tuple[str, ...] = ()
    dimensions: tuple[Dimension, ...] = ()
    owners: tuple[Owner, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether nothing is above its limit."""
        return not self.breaches
