"""Data of the picture: the resident set over runs, and its owners at the moments."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from memdiag.growth.growth_sentences import slope_text
from memdiag.records.growth import Growth
from memdiag.reports.growth.owners import (
    OwnerSeries,
    attributed_moments,
    judged_series,
    moment_position,
    owner_series,
    warm_up_index,
    warm_up_position,
)
from memdiag.thinning import thinned_indices
from memdiag.units import MIB, format_size

MIN_OWNER_LINE_SHARE = 0.05
"""Share of the largest change below which the line of an owner is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlopeLine:
    """The slope as a line between two points.

    Attributes:
        of_owner: the index of the owner that grows with this slope; None for the resident set.
    """

    x: tuple[float, float]
    bytes: tuple[float, float]
    text: str
    of_owner: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthLayer:
    """One owner at the moments.

    Attributes:
        grown: its growth as text, with its sign.
        resident_bytes: the height in the stack of owners.
        growth_bytes: the growth since `GrowthChart.since`, at `GrowthChart.growth_x`.
        is_drawn: whether its growth is large enough for a line.
    """

    kind: str
    label: str
    is_idle: bool
    is_judged: bool
    is_drawn: bool
    grown: str
    resident_bytes: tuple[int, ...]
    growth_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthChart:
    """The data of the charts, as columns.

    Attributes:
        x_label: the name of the horizontal axis.
        x, resident_bytes: the resident set after runs, or only at the moments.
        has_samples: whether it is known after each run.
        moments_x: the moments.
        growth_x: the moments from `since` on. A leak may be small next to the growth before the end
            of the warm-up, which is then left out.
        warm_up: the position of the end of the warm-up.
        since: the words for the moment from which growth by owner is counted.
        min_range_bytes: the minimum height of the chart of growth, so that noise looks small.
    """

    unit: str
    x_label: str
    x: tuple[float, ...]
    resident_bytes: tuple[int, ...]
    has_samples: bool
    warm_up: float
    moments_x: tuple[float, ...]
    growth_x: tuple[float, ...]
    layers: tuple[GrowthLayer, ...]
    since: str
    min_range_bytes: int
    slope: SlopeLine | None


def growth_chart(growth: Growth, *, max_points: int = 3000) -> GrowthChart:
    """Return the chart of `growth`. Its curve has about `max_points` points at most."""
    moments = attributed_moments(growth)
    series = owner_series(growth)
    is_bad = growth.is_leak_or_kept
    since = warm_up_index(growth, moments) if is_bad and moments else 0
    judged_owner = judged_series(growth, series)
    has_samples = bool(growth.samples) and growth.unit != "second"
    if has_samples:
        xs: list[float] = [sample.run for sample in growth.samples]
        sizes = [sample.resident_bytes for sample in growth.samples]
    else:
        xs = [moment_position(growth, moment) for moment in growth.moments]
        sizes = [moment.resident_bytes for moment in growth.moments]
    indices = thinned_indices(sizes, max_points)
    positions = tuple(moment_position(growth, moment) for moment in moments)
    units = {"run": "runs", "reload": "reloads", "second": "seconds"}
    return GrowthChart(
        unit=growth.unit,
        x_label=units[growth.unit],
        x=tuple(xs[index] for index in indices),
        resident_bytes=tuple(sizes[index] for index in indices),
        has_samples=has_samples,
        # Runs that ended early may have ended before the warm-up did.
        warm_up=min(max(0.0, warm_up_position(growth)), xs[-1]),
        moments_x=positions,
        growth_x=positions[since:],
        layers=_growth_layers(growth, series, judged_owner, since),
        since=_growth_start_words(growth, is_bad=is_bad),
        min_range_bytes=0 if is_bad else MIB,
        slope=_slope_line(growth, series, judged_owner, since),
    )


def _growth_start_words(growth: Growth, *, is_bad: bool) -> str:
    if is_bad:
        return "the warm-up"
    return f"the first {growth.unit}" if growth.kind == "model" else "the start"


def _growth_layers(
    growth: Growth, series: Sequence[OwnerSeries], judged_owner: OwnerSeries | None, since: int
) -> tuple[GrowthLayer, ...]:
    changes = [tuple(size - owner.bytes[since] for size in owner.bytes[since:]) for owner in series]
    largest_changes = [max(map(abs, change)) for change in changes]
    largest_change = max(largest_changes, default=0)
    return tuple(
        GrowthLayer(
            kind=owner.kind,
            label=owner.label,
            is_idle=owner.is_idle,
            is_judged=owner is judged_owner
            or (judged_owner is None and owner.growing == growth.owner),
            is_drawn=largest_change > 0 and size >= MIN_OWNER_LINE_SHARE * largest_change,
            grown=format_size(change[-1], signed=True),
            resident_bytes=owner.resident_bytes,
            growth_bytes=change,
        )
        for owner, change, size in zip(series, changes, largest_changes, strict=True)
    )


def _slope_line(
    growth: Growth, series: Sequence[OwnerSeries], judged_owner: OwnerSeries | None, since: int
) -> SlopeLine | None:
    """Return the slope to draw; None if the growth had ended."""
    if growth.slope is None or not (growth.is_leak_or_kept or growth.verdict == "undecided"):
        return None
    if judged_owner is None:
        moments, sizes = growth.moments, [moment.resident_bytes for moment in growth.moments]
    else:
        moments = attributed_moments(growth)[since:]
        sizes = [size - judged_owner.bytes[since] for size in judged_owner.bytes[since:]]
    xs = [moment_position(growth, moment) for moment in moments]
    per_unit = growth.slope.bytes_per_unit
    offset = statistics.median(y - per_unit * x for x, y in zip(xs, sizes, strict=True))
    return SlopeLine(
        x=(xs[0], xs[-1]),
        bytes=(offset + per_unit * xs[0], offset + per_unit * xs[-1]),
        text=slope_text(growth.slope, growth.unit),
        of_owner=None if judged_owner is None else series.index(judged_owner),
    )
