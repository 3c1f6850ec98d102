"""Bars of peak and steady memory, of several things on one scale."""

from collections.abc import Iterable
from dataclasses import dataclass

from memdiag.reports.views.text import plain
from memdiag.units import format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One thing: the lengths of its bars in per cent of the longest, and their figures.

    The steady state is anonymous memory and, after it, what is mapped from files. `peak_exact` and
    `steady_exact` are in bytes, as texts.
    """

    label: str
    peak: str
    peak_exact: str
    peak_percent: float
    steady: str
    steady_exact: str
    anonymous_percent: float
    mapped_percent: float


def bars(sizes: Iterable[tuple[str, int, int, int]]) -> tuple[Bar, ...]:
    """Return a bar for each label, peak, steady memory and what of it is mapped, in bytes."""
    rows = list(sizes)
    longest = max((max(peak, steady) for _, peak, steady, _ in rows), default=0)
    return tuple(_bar(*row, longest) for row in rows)


def _bar(label: str, peak: int, steady: int, mapped: int, longest: int) -> Bar:
    whole = max(0, steady)
    from_files = min(whole, max(0, mapped))
    return Bar(
        label=plain(label),
        peak=format_size(peak),
        peak_exact=f"{peak:,} bytes",
        peak_percent=_percent(peak, longest),
        steady=format_size(steady),
        steady_exact=f"{steady:,} bytes",
        anonymous_percent=_percent(whole - from_files, longest),
        mapped_percent=_percent(from_files, longest),
    )


def _percent(size: int, longest: int) -> float:
    return round(100 * max(0, size) / longest, 2) if longest > 0 else 0.0
