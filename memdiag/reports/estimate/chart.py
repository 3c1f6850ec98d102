"""The charts of an estimate as data: the parts of each phase, and the peak over sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memdiag.records.estimate import Estimate, EstimatedPhase
from memdiag.reports.estimate.sentences import dimension_sizes_text
from memdiag.reports.estimate.tables import TERM_COLORS
from memdiag.reports.text import plain, shortened

MAX_DIMENSION_NAME = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class TermSeries:
    """One part of the memory in each phase.

    Attributes:
        name: the part.
        kind: the kind of copy or owner that has the same colour.
        peak_bytes: its size at the peak of each phase.
    """

    name: str
    kind: str
    peak_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChart:
    """The peak over one or two dimensions.

    Attributes:
        x_name, y_name: the dimensions; `y_name` is empty for one dimension.
        x, y: their sizes.
        peak_bytes: for each size `y` the peak at each size `x`; one row if `y` is empty.
        steady_bytes: the same after the runs.
        others: the sizes of the other dimensions in words.
        limit_bytes: the limit; None without one.
    """

    x_name: str
    y_name: str
    x: tuple[int, ...]
    y: tuple[int, ...]
    peak_bytes: tuple[tuple[int | None, ...], ...]
    steady_bytes: tuple[tuple[int | None, ...], ...]
    others: str
    limit_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateChart:
    """All charts.

    Attributes:
        phases: the names of the phases.
        terms: the parts, in the order of `TERM_COLORS`.
        sizes: the peak over sizes; None if there is one point.
    """

    phases: tuple[str, ...]
    terms: tuple[TermSeries, ...]
    sizes: SizeChart | None


def estimate_chart(estimate: Estimate) -> EstimateChart:
    """Return the charts of `estimate`."""
    phases = estimate.point.phases
    present_terms = {term.name for phase in phases for term in phase.peak_terms}
    return EstimateChart(
        phases=tuple(phase.name for phase in phases),
        terms=tuple(
            TermSeries(name=name, kind=kind, peak_bytes=_term_peak_sizes(phases, name))
            for name, kind in TERM_COLORS.items()
            if name in present_terms
        ),
        sizes=_size_chart(estimate),
    )


def _term_peak_sizes(phases: Sequence[EstimatedPhase], name: str) -> tuple[int, ...]:
    return tuple(
        sum(term.bytes for term in phase.peak_terms if term.name == name) for phase in phases
    )


def _size_chart(estimate: Estimate) -> SizeChart | None:
    """Return the peak over the two dimensions with most sizes, at the largest sizes of others."""
    if not estimate.varied:
        return None
    sizes = {
        name: sorted({point.dims[name] for point in estimate.points}) for name in estimate.varied
    }
    names = sorted(sizes, key=lambda name: -len(sizes[name]))[:2]
    fixed_sizes = {name: sizes[name][-1] for name in sizes if name not in names}
    x_name, y_name = names[0], names[1] if len(names) > 1 else ""
    points = {
        (point.dims[x_name], point.dims[y_name] if y_name else 0): point
        for point in estimate.points
        if all(point.dims[name] == size for name, size in fixed_sizes.items())
    }
    x, y = tuple(sizes[x_name]), tuple(sizes[y_name] if y_name else ())
    rows = [[points.get((size, y_size)) for size in x] for y_size in y or (0,)]
    return SizeChart(
        x_name=shortened(plain(x_name), MAX_DIMENSION_NAME),
        y_name=shortened(plain(y_name), MAX_DIMENSION_NAME),
        x=x,
        y=y,
        peak_bytes=tuple(
            tuple(
                None if point is None else point.peak_bytes + estimate.beside_bytes(point)
                for point in row
            )
            for row in rows
        ),
        steady_bytes=tuple(
            tuple(
                None if point is None else point.steady_bytes + estimate.beside_bytes(point)
                for point in row
            )
            for row in rows
        ),
        others=dimension_sizes_text(estimate, fixed_sizes) if fixed_sizes else "",
        limit_bytes=estimate.fit.limit_bytes if estimate.fit else None,
    )
