"""The bars of a comparison: peak and steady memory of each column."""

from memdiag.records.comparison import Comparison
from memdiag.reports.views.bars import Bar, bars


def build(comparison: Comparison) -> tuple[Bar, ...]:
    """Return a bar for each column that was measured."""
    measured = [(one.label, one.measured) for one in comparison.columns if one.measured]
    return bars(
        (label, one.peak.median, one.steady.median, one.file.median if one.file else 0)
        for label, one in measured
    )
