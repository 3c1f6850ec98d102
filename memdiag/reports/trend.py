"""A figure of models over time as a picture: a line a model, marked where the runtime changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memdiag.records.history import History
from memdiag.reports import picture
from memdiag.reports.palette import LIGHT
from memdiag.reports.views import history as view
from memdiag.reports.views import labels
from memdiag.reports.views.text import shortened
from memdiag.units import MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = (LIGHT.anonymous, LIGHT.peak, LIGHT.file, LIGHT.muted)
_MARKERS = "os^Dv"
_LONGEST_NAME = 24
_MOST_TICKS = 12
_ROOM = 1.15  # above the highest point, for the runtime's versions
_NAME_HEIGHT = 0.05


def render(history: History, figure: str, kind: picture.Kind = "png") -> bytes:
    """Return `figure` of the models in `history` as a picture, the same for the same record.

    Raises:
        UsageError: there is no such figure, or no entry has it.
    """
    return picture.rendered(lambda: draw(history, figure), kind)


def draw(history: History, figure: str) -> Figure:
    """Return `figure`: entries across in the order in which they were added, MiB upwards.

    Models are told apart by marker as well as by colour, and named at the end of their lines.

    Raises:
        UsageError: there is no such figure, or no entry has it.
    """
    lines = view.build(history, figure)
    what = view.figure_of(figure)
    scale = 1 if what.unit == "count" else MIB
    drawing = picture.figure(5.2, figure, what.description)
    axes = drawing.add_subplot()
    for index, line in enumerate(lines):
        axes.plot(
            range(1, len(line.points) + 1),
            [point.value / scale for point in line.points],
            color=_COLORS[index % len(_COLORS)],
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=5,
            linewidth=1.6,
        )
    values = [point.value / scale for line in lines for point in line.points]
    axes.set_ylim(min(0, *values), _ROOM * max(*values, 1 / scale))
    axes.set_xlim(0.5, max(len(line.points) for line in lines) + 0.5)
    _mark_runtimes(axes, lines)
    _name_lines(axes, lines, scale)
    _label_entries(axes, lines)
    picture.style(axes, "copies" if what.unit == "count" else "MiB", grid="y")
    return drawing


def _mark_runtimes(axes: Axes, lines: Sequence[view.Line]) -> None:
    """Draw a line, with the version, before each entry whose runtime is another than before."""
    places = {
        (place, point.runtime)
        for line in lines
        for place, point in enumerate(line.points, start=1)
        if point.is_other_runtime
    }
    middle = sum(axes.get_xlim()) / 2
    for place, version in sorted(places):
        # Written on the side that has room.
        is_late = place > middle
        axes.axvline(place - 0.5, color=LIGHT.rail, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
        axes.text(
            place - (0.55 if is_late else 0.45),
            0.985,
            f"onnxruntime {version}",
            transform=axes.get_xaxis_transform(),
            va="top",
            ha="right" if is_late else "left",
            fontsize=picture.SMALL,
            color=LIGHT.muted,
            parse_math=False,
        )


def _name_lines(axes: Axes, lines: Sequence[view.Line], scale: int) -> None:
    """Write each model's name and its last value beside the end of its line, none over another."""
    low, high = axes.get_ylim()
    heights = [(line.points[-1].value / scale - low) / (high - low) for line in lines]
    spread = labels.spread(heights, [_NAME_HEIGHT] * len(lines), gap=0.01, width=1.0)
    for line, height, place in zip(lines, heights, spread, strict=True):
        right = axes.get_xlim()[1]
        end = (len(line.points) - 0.5 + 0.2) / (right - 0.5)
        axes.annotate(
            f"{shortened(line.model, _LONGEST_NAME)}  {line.points[-1].size}",
            (end, height),
            xytext=(1.03, place),
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


def _label_entries(axes: Axes, lines: Sequence[view.Line]) -> None:
    """Label the entries by what they were added as where there is one model, else by number."""
    longest = max(len(line.points) for line in lines)
    places = list(range(1, longest + 1))[:: -(-longest // _MOST_TICKS)]
    if len(lines) > 1:
        axes.set_xticks(places)
        axes.set_xlabel("entry of the model")
        return
    points = lines[0].points
    axes.set_xticks(
        places,
        [points[place - 1].label or points[place - 1].when for place in places],
        rotation=30,
        ha="right",
        fontsize=picture.SMALL,
        parse_math=False,
    )
