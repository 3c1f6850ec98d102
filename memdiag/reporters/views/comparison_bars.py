"""The bars of a comparison: peak and steady memory of each column, on one scale."""

from dataclasses import dataclass

from memdiag.records.comparison import Comparison
from memdiag.reporters.views.text import plain
from memdiag.units import format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One column: the lengths of its bars in per cent of the longest, and their figures.

    The steady state is anonymous memory and, after it, what is mapped from files.
    """

    label: str
    peak: str
    peak_percent: float
    steady: str
    anonymous_percent: float
    mapped_percent: float


def build(comparison: Comparison) -> tuple[Bar, ...]:
    """Return a bar for each column that was measured."""
    measured = [(one.label, one.measured) for one in comparison.columns if one.measured]
    longest = max((max(one.peak.median, one.steady.median) for _, one in measured), default=0)
    bars = []
    for label, one in measured:
        whole = max(0, one.steady.median)
        mapped = min(whole, max(0, one.file.median if one.file else 0))
        bars.append(
            Bar(
                label=plain(label),
                peak=format_size(one.peak.median),
                peak_percent=_percent(one.peak.median, longest),
                steady=format_size(one.steady.median),
                anonymous_percent=_percent(whole - mapped, longest),
                mapped_percent=_percent(mapped, longest),
            )
        )
    return tuple(bars)


def _percent(size: int, longest: int) -> float:
    return round(100 * max(0, size) / longest, 2) if longest > 0 else 0.0
