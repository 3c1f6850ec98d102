"""A comparison as a picture: memory by phase and over time, and what is kept, loaded and run."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from memdiag.records.comparison import Column, Comparison
from memdiag.records.profile import PHASES
from memdiag.reporters.palette import LIGHT as COLOR
from memdiag.reporters.palette import SERIES
from memdiag.reporters.views import comparison_lines, comparison_words
from memdiag.reporters.views.text import plain, shortened
from memdiag.units import GIB, MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMAT = "png"
FILE_NAME = "comparison.png"

_DPI = 150
_WIDTH = 12.0
_LONGEST_LABEL = 26
_AFTER = 1.5  # how long is shown, by the time until the first run is done
_LONGEST_TITLE = 125


def render(comparison: Comparison) -> bytes:
    """Return the drawing of `comparison` as PNG, the same for the same record."""
    from matplotlib import rc_context

    out = io.BytesIO()
    with rc_context({"font.family": "DejaVu Sans"}), warnings.catch_warnings():
        # A name may have letters that the font lacks: they show as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        draw(comparison).savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def draw(comparison: Comparison) -> Figure:
    """Return the figure; it belongs to no window and no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = [column for column in comparison.columns if column.measured is not None]
    height = 5.6 + 0.34 * len(columns)
    figure = Figure(
        figsize=(_WIDTH, height), dpi=_DPI, facecolor=COLOR.surface, layout="constrained"
    )
    FigureCanvasAgg(figure)
    answer = comparison_words.found(comparison) or comparison_words.answer(comparison)
    title = shortened(comparison_words.title(comparison), _LONGEST_TITLE)
    figure.suptitle(
        f"{title}\n{shortened(answer, _LONGEST_TITLE)}", x=0.01, ha="left", fontsize=12,
        color=COLOR.ink, parse_math=False,
    )  # fmt: skip
    if not columns:
        return figure
    grid = figure.add_gridspec(6, 2, width_ratios=(3, 2))
    phases, lines = figure.add_subplot(grid[:3, 0]), figure.add_subplot(grid[3:, 0])
    steady, load, run = (figure.add_subplot(grid[2 * row : 2 * row + 2, 1]) for row in range(3))
    _phases(phases, columns)
    _timelines(lines, columns)
    _steady(steady, columns)
    _bars(
        load, columns, "load, ms", lambda one: one.measured.load if one.measured else None,
        lambda value: (value.median * 1e3, value.low * 1e3, value.high * 1e3),
    )  # fmt: skip
    _bars(
        run, columns, "latency, ms", lambda one: one.latency,
        lambda value: (value.median_s * 1e3, value.low_s * 1e3, value.high_s * 1e3),
    )  # fmt: skip
    for axes in (phases, lines, steady, load, run):
        _plain(axes)
    return figure


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
    axes.set_title(f"peak by phase, {word} above the baseline", loc="left", fontsize=11)
    axes.grid(axis="y", color=COLOR.line, lw=0.8)


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
    axes.set_xlabel("seconds since the session's creation began", fontsize=9, color=COLOR.muted)
    axes.set_title(f"memory over time, {word} above the baseline", loc="left", fontsize=11)
    axes.grid(color=COLOR.line, lw=0.8)


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
    axes.set_title(f"steady, {word}: anonymous, and mapped files (pale)", loc="left", fontsize=11)
    _labels(axes, columns)


def _bars(
    axes: Axes,
    columns: Sequence[Column],
    title: str,
    pick: Callable[[Column], Any],
    figures: Callable[[Any], tuple[float, float, float]],
) -> None:
    """Draw a bar a column for what `pick` has of it: the middle, and its range as a line."""
    for index, column in enumerate(columns):
        value = pick(column)
        if value is None:
            continue
        middle, low, high = figures(value)
        axes.barh(index, middle, 0.7, color=color_of(index))
        axes.plot([low, high], [index, index], color=COLOR.ink, lw=1.2)
    axes.set_xlim(left=0)
    axes.set_title(title, loc="left", fontsize=11)
    _labels(axes, columns)


def _labels(axes: Axes, columns: Sequence[Column]) -> None:
    labels = [shortened(plain(column.label), _LONGEST_LABEL) for column in columns]
    axes.set_yticks(range(len(columns)), labels)
    axes.set_ylim(len(columns) - 0.4, -0.6)
    axes.grid(axis="x", color=COLOR.line, lw=0.8)


def _plain(axes: Axes) -> None:
    axes.set_facecolor(COLOR.surface)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9, colors=COLOR.ink, length=0)
    axes.title.set_color(COLOR.ink)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(COLOR.line)


def _unit(columns: Sequence[Column]) -> tuple[int, str]:
    largest = max((one.measured.peak.median for one in columns if one.measured), default=0)
    return (GIB, "GiB") if largest >= 2 * GIB else (MIB, "MiB")
