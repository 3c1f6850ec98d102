"""A comparison as a picture: memory by phase and over time, and what is kept, loaded and run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from memdiag.records.comparison import Column, Comparison, Latency
from memdiag.records.profile import PHASES
from memdiag.reports import picture
from memdiag.reports.palette import LIGHT as COLOR
from memdiag.reports.palette import SERIES
from memdiag.reports.views import comparison_lines, comparison_words
from memdiag.reports.views.text import plain, shortened
from memdiag.units import GIB, MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMAT = "png"
FILE_NAME = "comparison.png"

_LONGEST_LABEL = 20
_AFTER = 1.5  # how long is shown, by the time until the first run is done


def render(comparison: Comparison) -> bytes:
    """Return the drawing of `comparison` as PNG, the same for the same record."""
    return picture.rendered(lambda: draw(comparison), "png")


def draw(comparison: Comparison) -> Figure:
    """Return the figure: peaks by phase, memory over time, then bars side by side."""
    columns = [column for column in comparison.columns if column.measured is not None]
    bars_height = 0.9 + 0.32 * len(columns)
    found = comparison_words.found(comparison)
    made = picture.figure(
        (6.9 + bars_height) if columns else 1.2,
        comparison_words.title(comparison),
        found or comparison_words.answer(comparison),
    )
    if not columns:
        return made
    grid = made.add_gridspec(3, 3, height_ratios=(2.6, 2.8, bars_height))
    phases, lines = made.add_subplot(grid[0, :]), made.add_subplot(grid[1, :])
    steady, load, run = (made.add_subplot(grid[2, place]) for place in range(3))
    _phases(phases, columns)
    _timelines(lines, columns)
    _steady(steady, columns)
    _bars(
        load, columns, "load, median ms", lambda one: one.measured.load if one.measured else None,
        lambda value: (value.median * 1e3, value.low * 1e3, value.high * 1e3),
    )  # fmt: skip
    raced = any(one.latency and one.latency.ratio is not None for one in columns)
    title = "latency, × the first\n(alternating runs)" if raced else "latency, median ms"
    _bars(run, columns, title, lambda one: one.latency, _ratio if raced else _milliseconds)
    if raced:
        run.axvline(1.0, color=COLOR.ink, lw=1.0, ls=":")
    # The first of the three is labelled for all.
    for axes in (load, run):
        axes.tick_params(axis="y", labelleft=False)
    return made


def color_of(index: int) -> str:
    """Return the colour of a column by its place."""
    return SERIES[index % len(SERIES)]


def _phases(axes: Axes, columns: Sequence[Column]) -> None:
    """Draw a bar a phase and column: the peak above the baseline."""
    names = [
        name
        for name in PHASES
        if any(
            each.phase == name for one in columns if one.measured for each in one.measured.phases
        )
    ]
    unit, word = _unit(columns)
    width = 0.8 / len(columns)
    for index, column in enumerate(columns):
        assert column.measured is not None
        peaks = {each.phase: each.peak.median / unit for each in column.measured.phases}
        places = [place - 0.4 + width * (index + 0.5) for place in range(len(names))]
        heights = [max(0.0, peaks.get(name, 0.0)) for name in names]
        label = shortened(plain(column.label), _LONGEST_LABEL)
        axes.bar(places, heights, width * 0.92, color=color_of(index), label=label)
    axes.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names])
    picture.style(axes, f"peak by phase, median {word} above the baseline", grid="y")


def _timelines(axes: Axes, columns: Sequence[Column]) -> None:
    """Draw the memory of all columns over time, from the moment the session is created."""
    unit, word = _unit(columns)
    lines = []
    for index, column in enumerate(columns):
        line = comparison_lines.build(column)
        if line is None:
            continue
        lines.append(line)
        sizes = [size / unit for size in line.above_bytes]
        axes.plot(line.t_s, sizes, color=color_of(index), lw=1.5, solid_joinstyle="round")
    if not lines:
        return
    # Runs may last long, and show least.
    ends = [(line.t_s[-1], line.first_run_s) for line in lines]
    axes.set_xlim(0, min(max(end for end, _ in ends), _AFTER * max(run for _, run in ends)))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds since the session's creation began")
    picture.style(axes, f"memory over time, {word} above the baseline", grid="both")


def _steady(axes: Axes, columns: Sequence[Column]) -> None:
    """Draw what each column keeps: anonymous memory in its colour, mapped files paler."""
    unit, word = _unit(columns)
    for index, column in enumerate(columns):
        one = column.measured
        assert one is not None
        whole = max(0.0, one.steady.median / unit)
        mapped = min(whole, max(0.0, one.file.median / unit if one.file else 0.0))
        anonymous = whole - mapped
        axes.barh(index, anonymous, 0.7, color=color_of(index))
        axes.barh(index, mapped, 0.7, left=anonymous, color=color_of(index), alpha=0.4)
    _labels(axes, columns)
    picture.style(axes, f"steady, median {word}\n(mapped: pale)", grid="x")


def _bars(
    axes: Axes,
    columns: Sequence[Column],
    title: str,
    pick: Callable[[Column], Any],
    figures: Callable[[Any], tuple[float, float, float] | None],
) -> None:
    """Draw a bar a column for what `pick` has of it: the middle, and its range as a line."""
    for index, column in enumerate(columns):
        value = pick(column)
        found = None if value is None else figures(value)
        if found is None:
            continue
        middle, low, high = found
        axes.barh(index, middle, 0.7, color=color_of(index))
        axes.plot([low, high], [index, index], color=COLOR.ink, lw=1.2)
    axes.set_xlim(left=0)
    _labels(axes, columns)
    picture.style(axes, title, grid="x")


def _milliseconds(latency: Latency) -> tuple[float, float, float]:
    return latency.median_s * 1e3, latency.low_s * 1e3, latency.high_s * 1e3


def _ratio(latency: Latency) -> tuple[float, float, float] | None:
    """Return the ratio to the first column and its interval; None for what did not race."""
    if latency.ratio is None or latency.ratio_low is None or latency.ratio_high is None:
        return None
    return latency.ratio, latency.ratio_low, latency.ratio_high


def _labels(axes: Axes, columns: Sequence[Column]) -> None:
    labels = [shortened(plain(column.label), _LONGEST_LABEL) for column in columns]
    axes.set_yticks(range(len(columns)), labels)
    axes.set_ylim(len(columns) - 0.4, -0.6)


def _unit(columns: Sequence[Column]) -> tuple[int, str]:
    largest = max((one.measured.peak.median for one in columns if one.measured), default=0)
    return (GIB, "GiB") if largest >= 2 * GIB else (MIB, "MiB")
