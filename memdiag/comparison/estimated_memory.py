"""The memory of a column at a moment, from the estimate in its profile.

An X-ray shows the steady state only. The estimate shows what else is in memory at a peak or in one
phase, if it agrees with the measurement.
"""

from collections import Counter
from typing import NamedTuple

from memdiag.records.comparison import ComparisonColumn
from memdiag.records.estimate import EstimatedPhase, TermName
from memdiag.records.phases import PhaseName
from memdiag.units import MIB

MAX_ERROR_SHARE = 0.2
MAX_ERROR_BYTES = 2 * MIB
"""An estimate agrees with a measured size up to this share of it, or these bytes."""


class EstimatedMemory(NamedTuple):
    """The parts of a column's memory.

    Attributes:
        label: the label of the column.
        terms: bytes by what they are for.
        cause: the weight or node at which the peak of a phase is; empty if none stands out.
    """

    label: str
    terms: Counter[TermName]
    cause: str = ""


def estimated_peak(column: ComparisonColumn) -> EstimatedMemory | None:
    """Return the memory at the peak of `column`; None if it is not known."""
    assert column.measured is not None
    phases = _estimated_phases(column)
    phase = next(
        (
            estimated_phase
            for estimated_phase in phases
            if estimated_phase.name == column.measured.peak_phase
        ),
        None,
    )
    if phase is None or not _is_estimate_close(phase.peak_bytes, column.measured.peak.median):
        return None
    terms = Counter({term.name: term.bytes for term in phase.peak_terms})
    return EstimatedMemory(column.label, terms, phase.cause)


def estimated_growth(column: ComparisonColumn, phase: PhaseName) -> EstimatedMemory | None:
    """Return what `phase` adds to the memory of `column`; None if it is not known."""
    assert column.measured is not None
    phases = _estimated_phases(column)
    names = [estimated_phase.name for estimated_phase in phases]
    kept_bytes = next(
        (figures.kept for figures in column.measured.phases if figures.phase == phase), None
    )
    if phase not in names or kept_bytes is None:
        return None
    index = names.index(phase)
    terms = Counter({term.name: term.bytes for term in phases[index].kept_terms})
    if index:
        terms.subtract({term.name: term.bytes for term in phases[index - 1].kept_terms})
    if not _is_estimate_close(sum(terms.values()), kept_bytes.median):
        return None
    return EstimatedMemory(column.label, terms)


def _estimated_phases(column: ComparisonColumn) -> tuple[EstimatedPhase, ...]:
    estimate = column.profile.estimate if column.profile else None
    return () if estimate is None else estimate.phases


def _is_estimate_close(predicted: int, measured: int) -> bool:
    return abs(predicted - measured) <= max(MAX_ERROR_BYTES, MAX_ERROR_SHARE * abs(measured))
