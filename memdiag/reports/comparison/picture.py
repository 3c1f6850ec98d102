"""A comparison as a picture: memory by phase and over time, and bars of all columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memdiag.records.comparison import Comparison, ComparisonColumn
from memdiag.records.profile import PHASES
from memdiag.reports import picture
from memdiag.reports.comparison.sentences import (
    bisection_result,
    comparison_answer,
    comparison_sizes,
    comparison_subject,
)
from memdiag.reports.palette import LIGHT_PALETTE as COLOR
from memdiag.reports.palette import SERIES_COLORS
from memdiag.reports.profile.timeline import profile_timeline
from memdiag.reports.text import plain, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_COLUMN_LABEL = 20
_MAX_TIME_FACTOR = 1.5  # of the time until the first run is done


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnTimeline:
    """The memory of one column over time.

    Attributes:
        t_s: seconds since the creation of the session began.
        above_bytes: bytes above the baseline.
        first_run_s: the end of the first run, or of the creation if nothing was run.
    """

    t_s: tuple[float, ...]
    above_bytes: tuple[int, ...]
    first_run_s: float


def column_timeline(column: ComparisonColumn, *, max_points: int = 1200) -> ColumnTimeline | None:
    """Return the timeline of `column`; None if nothing was sampled."""
    if column.profile is None:
        return None
    timeline = profile_timeline(column.profile, max_points=max_points)
    begin_s = next((band.start_s for band in timeline.bands if band.phase != "start"), None)
    if begin_s is None:
        return None
    indices = [index for index, t_s in enumerate(timeline.t_s) if t_s >= begin_s]
    if not indices:
        return None
    end_s = max(band.end_s for band in timeline.bands if band.phase != "steady")
    above_bytes = timeline.above_bytes
    return ColumnTimeline(
        t_s=tuple(round(timeline.t_s[index] - begin_s, 6) for index in indices),
        above_bytes=tuple(above_bytes[index] for index in indices),
        first_run_s=end_s - begin_s,
    )


def draw(comparison: Comparison) -> Figure:
    """Return the picture: peaks by phase, memory over time, and bars of the columns.

    Load times and latencies have bars only if they are compared.
    """
    columns = [column for column in comparison.columns if column.measured is not None]
    bars_height = 0.9 + 0.32 * len(columns)
    result = bisection_result(comparison) or comparison_answer(comparison)
    figure = picture.titled_figure(
        (6.9 + bars_height) if columns else 1.2,
        comparison_subject(comparison),
        ",".join(filter(None, (result, comparison_sizes(comparison).removeprefix(",")))),
    )
    if not columns:
        return figure
    figures_by_heading: dict[str, list[tuple[float, float, float] | None]] = {}
    if comparison.kind != "profiles" and all(
        column.measured and column.measured.times > 1 for column in columns
    ):
        figures_by_heading["load, median ms"] = [_load_interval_ms(column) for column in columns]
    ratios = [column.latency.ratio_with_interval if column.latency else None for column in columns]
    if any(ratios):
        figures_by_heading["latency, × the first\n(alternating runs)"] = [
            (1.0, 1.0, 1.0) if columns[0].latency else None,
            *ratios[1:],
        ]
    grid = figure.add_gridspec(
        3, 1 + len(figures_by_heading), height_ratios=(2.6, 2.8, bars_height)
    )
    _draw_peaks(figure.add_subplot(grid[0, :]), columns)
    _draw_timelines(figure.add_subplot(grid[1, :]), columns)
    _draw_steady(figure.add_subplot(grid[2, 0]), columns)
    for index, (heading, figures) in enumerate(figures_by_heading.items(), 1):
        axes = figure.add_subplot(grid[2, index])
        _draw_bars(axes, columns, heading, figures)
        # The first chart has the labels of all columns.
        axes.tick_params(axis="y", labelleft=False)
    return figure


def column_color(index: int) -> str:
    """Return the colour of the column at `index`."""
    return SERIES_COLORS[index % len(SERIES_COLORS)]


def _draw_peaks(axes: Axes, columns: Sequence[ComparisonColumn]) -> None:
    """Draw the peak above the baseline as a bar for each phase and column."""
    reached_phases = {
        phase_figures.phase
        for column in columns
        if column.measured
        for phase_figures in column.measured.phases
    }
    names = [name for name in PHASES if name in reached_phases]
    unit, unit_name = _largest_peak_unit(columns)
    width = 0.8 / len(columns)
    for index, column in enumerate(columns):
        assert column.measured is not None
        peaks = {phase.phase: phase.peak.median / unit for phase in column.measured.phases}
        positions = [phase + (index + 0.5) * width - 0.4 for phase in range(len(names))]
        heights = [max(0.0, peaks.get(name, 0.0)) for name in names]
        axes.bar(
            positions,
            heights,
            width * 0.92,
            color=column_color(index),
            label=_short_column_label(column),
        )
    axes.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names])
    picture.style_axes(axes, f"peak by phase, median {unit_name} above the baseline", grid="y")


def _draw_timelines(axes: Axes, columns: Sequence[ComparisonColumn]) -> None:
    """Draw the memory of all columns over time, from the session's creation on."""
    unit, unit_name = _largest_peak_unit(columns)
    timelines = []
    for index, column in enumerate(columns):
        timeline = column_timeline(column)
        if timeline is not None:
            timelines.append(timeline)
            sizes = [size / unit for size in timeline.above_bytes]
            axes.plot(
                timeline.t_s, sizes, color=column_color(index), lw=1.5, solid_joinstyle="round"
            )
    if not timelines:
        return
    # Later runs may take long, but add nothing to the picture.
    end_s = max(timeline.t_s[-1] for timeline in timelines)
    axes.set_xlim(
        0, min(end_s, _MAX_TIME_FACTOR * max(timeline.first_run_s for timeline in timelines))
    )
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds since the session's creation began")
    picture.style_axes(axes, f"memory over time, {unit_name} above the baseline", grid="both")


def _draw_steady(axes: Axes, columns: Sequence[ComparisonColumn]) -> None:
    """Draw steady memory: anonymous memory in the colour of the column, mapped files paler."""
    unit, unit_name = _largest_peak_unit(columns)
    for index, column in enumerate(columns):
        measured = column.measured
        assert measured is not None
        steady_size = max(0.0, measured.steady.median / unit)
        mapped_size = min(
            steady_size, max(0.0, measured.file.median / unit if measured.file else 0.0)
        )
        axes.barh(index, steady_size - mapped_size, 0.7, color=column_color(index))
        axes.barh(
            index,
            mapped_size,
            0.7,
            left=steady_size - mapped_size,
            color=column_color(index),
            alpha=0.4,
        )
    _draw_column_labels(axes, columns)
    picture.style_axes(axes, f"steady, median {unit_name}\n(mapped: pale)", grid="x")


def _draw_bars(
    axes: Axes,
    columns: Sequence[ComparisonColumn],
    heading: str,
    figures: Sequence[tuple[float, float, float] | None],
) -> None:
    """Draw a bar for the median of each column, and its range as a line."""
    for index, figure in enumerate(figures):
        if figure is not None:
            median, low, high = figure
            axes.barh(index, median, 0.7, color=column_color(index))
            axes.plot([low, high], [index, index], color=COLOR.ink, lw=1.2)
    axes.set_xlim(left=0)
    _draw_column_labels(axes, columns)
    picture.style_axes(axes, heading, grid="x")


def _load_interval_ms(column: ComparisonColumn) -> tuple[float, float, float] | None:
    load: Any = column.measured.load if column.measured else None
    return None if load is None else (load.median * 1e3, load.low * 1e3, load.high * 1e3)


def _draw_column_labels(axes: Axes, columns: Sequence[ComparisonColumn]) -> None:
    axes.set_yticks(range(len(columns)), [_short_column_label(column) for column in columns])
    axes.set_ylim(len(columns) - 0.4, -0.6)


def _short_column_label(column: ComparisonColumn) -> str:
    return shortened(plain(column.label), _MAX_COLUMN_LABEL)


def _largest_peak_unit(columns: Sequence[ComparisonColumn]) -> tuple[int, str]:
    peaks = (column.measured.peak.median for column in columns if column.measured)
    return picture.size_unit(max(peaks, default=0))
