"""Budgets: limits of the figures of a model, and the comparison with them."""

from typing import Literal

import msgspec

from memdiag.records.attribution import Owner
from memdiag.records.base import Record
from memdiag.records.baseline import CopyTotal
from memdiag.records.dimension import Dimension
from memdiag.records.estimate import EstimatedTerm
from memdiag.records.phases import PhaseName


class Budget(Record, frozen=True, kw_only=True):
    """Limits of the figures of a model.

    Attributes:
        limits: the limits by the name of the figure, in its unit (bytes, or a count).
        tolerance: share by which a limit or a baseline may be exceeded. If it is None, limits are
            exact, and baselines have the default tolerance.
    """

    limits: dict[str, int] = msgspec.field(default_factory=dict)
    tolerance: float | None = None


class Breach(Record, frozen=True, kw_only=True):
    """One figure above its limit.

    Attributes:
        figure: the name of the figure.
        phase: the phase that determines the figure; None if it is not known.
        measured: the figure.
        limit: the limit.
        allowed: the limit with the tolerance.
        against: whether the limit is of a budget or a baseline.
    """

    figure: str
    phase: PhaseName | None
    measured: int
    limit: int
    allowed: int
    against: Literal["budget", "baseline"]

    @property
    def over(self) -> int:
        """The excess of the figure over its limit, without the tolerance."""
        return self.measured - self.limit


class Suspect(Record, frozen=True, kw_only=True):
    """A finding that may explain a breach.

    Attributes:
        name: the name of the rule.
        message: the message of the finding.
        bytes: the bytes that it costs.
        can_be_fixed: whether ``memdiag fix`` can rewrite this model for it.
    """

    name: str
    message: str
    bytes: int
    can_be_fixed: bool


class Judgement(Record, frozen=True, kw_only=True):
    """Result of comparing a model's figures with its budget and its baseline.

    Attributes:
        model: the path of the model.
        onnxruntime: the version of onnxruntime.
        figures: the figures, aggregated over several processes.
        processes: the number of fresh processes.
        budget: the limits.
        baseline: the figures of the baseline; empty without one.
        baseline_onnxruntime: the version of onnxruntime of the baseline.
        breaches: the figures above their limits.
        copies: if `copies_are_new`, copies that are new since the baseline, the largest first;
            otherwise the copies of the weight with the most bytes in several copies.
        copies_are_new: whether `copies` are new since the baseline.
        suspect: the finding whose remedy best lowers the figure of the first breach in a report.
        notes: sentences on the comparison.
        dimensions: the free dimensions with the measured sizes.
        owners: the largest owners of memory at steady state if there is a breach, without owners
            that every process with onnxruntime has.
        peak_terms: the largest estimated parts of the first reported breach if it is of a peak,
            the largest first; empty if the estimate is missing or far from the figure.
        arguments: the arguments of ``memdiag estimate`` for the sizes and the session: words of a
            command line.
    """

    model: str
    onnxruntime: str | None
    figures: dict[str, int]
    processes: int
    budget: Budget
    baseline: dict[str, int] = msgspec.field(default_factory=dict)
    baseline_onnxruntime: str | None = None
    breaches: tuple[Breach, ...] = ()
    copies: tuple[CopyTotal, ...] = ()
    copies_are_new: bool = False
    suspect: Suspect | None = None
    notes: tuple[str, ...] = ()
    dimensions: tuple[Dimension, ...] = ()
    owners: tuple[Owner, ...] = ()
    peak_terms: tuple[EstimatedTerm, ...] = ()
    arguments: tuple[str, ...] = ()

    @property
    def is_met(self) -> bool:
        """Whether the model meets its budget and baseline: no figure is above its limit."""
        return not self.breaches
