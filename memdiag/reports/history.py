"""The report of a history: a figure of models over time, on a terminal and as a picture."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memdiag.budgets.figures import FIGURES, Figure
from memdiag.errors import UsageError
from memdiag.records.history import History, HistoryEntry
from memdiag.reports import picture
from memdiag.reports.console import line, plain_output
from memdiag.reports.palette import LIGHT
from memdiag.reports.table import Column, Row, Table, print_table
from memdiag.reports.text import plain, shortened
from memdiag.units import MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing
    from rich.console import Console

_MAX_LABEL = 24
_MAX_NAME = 24
_MAX_TICKS = 12
_COLORS = (LIGHT.anonymous, LIGHT.peak, LIGHT.file, LIGHT.muted)
_MARKERS = "os^Dv"
_HEADROOM = 1.15  # above the highest point, for the versions of the runtime
_NAME_HEIGHT = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPoint:
    """One profile of the history, for one figure.

    Attributes:
        value: in the unit of the figure.
        change: the difference from the previous entry of the same model; empty for the first.
        is_other_runtime: whether the previous entry is of another release of the runtime.
    """

    when: str
    label: str
    runtime: str
    value: int
    size: str
    change: str
    is_other_runtime: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryLine:
    """The line of one model in the chart.

    Attributes:
        model: the path of the model.
        points: in the order of the entries.
    """

    model: str
    points: tuple[HistoryPoint, ...]


def figure_of(name: str) -> Figure:
    """Return the figure of a profile that is called `name`.

    Raises:
        UsageError: there is no such figure.
    """
    if name not in FIGURES:
        raise UsageError(f"unknown figure {name!r}. Choose from {', '.join(FIGURES)}.")
    return FIGURES[name]


def lines_of(history: History, name: str) -> tuple[HistoryLine, ...]:
    """Return figure `name` of each model in `history`, the models by name.

    Raises:
        UsageError: there is no such figure, or no entry has it.
    """
    figure = figure_of(name)
    models: dict[str, list[HistoryEntry]] = {}
    for entry in history.entries:
        if name in entry.figures:
            models.setdefault(entry.model, []).append(entry)
    if not models:
        raise UsageError(f"no entry has the figure {name}. Choose another with --figure.")
    return tuple(
        HistoryLine(model=plain(model), points=_points(entries, figure))
        for model, entries in sorted(models.items())
    )


def _points(entries: Sequence[HistoryEntry], figure: Figure) -> tuple[HistoryPoint, ...]:
    points = []
    for before, entry in zip([None, *entries], entries, strict=False):
        value = entry.figures[figure.name]
        change = value - before.figures[figure.name] if before else 0
        points.append(
            HistoryPoint(
                when=time.strftime("%Y-%m-%d %H:%M", time.gmtime(entry.added_s)),
                label=shortened(plain(entry.label), _MAX_LABEL),
                runtime=plain(entry.onnxruntime or "?"),
                value=value,
                size=figure.show(value),
                change=figure.show(change, signed=True) if change else "",
                is_other_runtime=before is not None and before.onnxruntime != entry.onnxruntime,
            )
        )
    return tuple(points)


def show(history: History, figure: str, console: Console) -> None:
    """Print `figure` of each model in `history`, one entry per line.

    Raises:
        UsageError: there is no such figure, or no entry has it.
    """
    lines = lines_of(history, figure)
    heading = f"{figure}: {figure_of(figure).description}"
    with plain_output(console):
        line(console, heading, "bold")
        for each in lines:
            console.print()
            line(console, each.model, "bold")
            rows = (
                Row(f"{p.when} UTC", p.label, f"onnxruntime {p.runtime}", p.size, p.change)
                for p in each.points
            )
            columns = (Column(), Column(), Column(), Column("", "right"), Column("", "right"))
            print_table(console, Table(columns=columns, rows=tuple(rows)))


def render(history: History, figure: str, kind: picture.PictureFormat = "png") -> bytes:
    """Return the chart of `figure` as PNG or SVG.

    Raises:
        UsageError: there is no such figure, or no entry has it.
    """
    return picture.rendered(lambda: draw(history, figure), kind)


def draw(history: History, figure: str) -> Drawing:
    """Return `figure` over the entries, in the order in which they were added.

    Each model has a marker and a colour, and its name at the end of its line.

    Raises:
        UsageError: there is no such figure, or no entry has it.
    """
    lines = lines_of(history, figure)
    definition = figure_of(figure)
    scale = 1 if definition.unit == "count" else MIB
    drawing = picture.figure(5.2, figure, definition.description)
    axes = drawing.add_subplot()
    for index, model in enumerate(lines):
        axes.plot(
            range(1, len(model.points) + 1),
            [point.value / scale for point in model.points],
            color=_COLORS[index % len(_COLORS)],
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=5,
            linewidth=1.6,
        )
    values = [point.value / scale for line in lines for point in line.points]
    axes.set_ylim(min(0, *values), _HEADROOM * max(*values, 1 / scale))
    axes.set_xlim(0.5, max(len(line.points) for line in lines) + 0.5)
    _mark_runtimes(axes, lines)
    _name_lines(axes, lines, scale)
    _label_entries(axes, lines)
    picture.style(axes, "copies" if definition.unit == "count" else "MiB", grid="y")
    return drawing


def _mark_runtimes(axes: Axes, lines: Sequence[HistoryLine]) -> None:
    """Draw a line, with the version, before each entry of another release of the runtime."""
    positions = {
        (position, point.runtime)
        for line in lines
        for position, point in enumerate(line.points, start=1)
        if point.is_other_runtime
    }
    middle = sum(axes.get_xlim()) / 2
    for position, version in sorted(positions):
        # Text on the side that has space.
        is_late = position > middle
        axes.axvline(position - 0.5, color=LIGHT.rail, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
        axes.text(
            position - (0.55 if is_late else 0.45),
            0.985,
            f"onnxruntime {version}",
            transform=axes.get_xaxis_transform(),
            va="top",
            ha="right" if is_late else "left",
            fontsize=picture.SMALL,
            color=LIGHT.muted,
            parse_math=False,
        )


def _name_lines(axes: Axes, lines: Sequence[HistoryLine], scale: int) -> None:
    """Write each model's name and last value beside the end of its line, without overlaps."""
    low, high = axes.get_ylim()
    heights = [(line.points[-1].value / scale - low) / (high - low) for line in lines]
    spread = picture.spread(heights, [_NAME_HEIGHT] * len(lines), gap=0.01, width=1.0)
    for model, height, position in zip(lines, heights, spread, strict=True):
        right = axes.get_xlim()[1]
        end = (len(model.points) - 0.5 + 0.2) / (right - 0.5)
        axes.annotate(
            f"{shortened(model.model, _MAX_NAME)}  {model.points[-1].size}",
            (end, height),
            xytext=(1.03, position),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            fontsize=picture.SMALL,
            color=LIGHT.ink,
            parse_math=False,
            arrowprops={
                "arrowstyle": "-",
                "relpos": (0, 0.5),
                "color": LIGHT.rail,
                "linewidth": 0.8,
            },
        )


def _label_entries(axes: Axes, lines: Sequence[HistoryLine]) -> None:
    """Label the ticks: by the labels of the entries for a single model, otherwise by number."""
    longest = max(len(line.points) for line in lines)
    positions = list(range(1, longest + 1))[:: -(-longest // _MAX_TICKS)]
    if len(lines) > 1:
        axes.set_xticks(positions)
        axes.set_xlabel("entry of the model")
        return
    points = lines[0].points
    axes.set_xticks(
        positions,
        [points[position - 1].label or points[position - 1].when for position in positions],
        rotation=30,
        ha="right",
        fontsize=picture.SMALL,
        parse_math=False,
    )
