"""A figure of models over time as a picture: a line a model, marked where the runtime changed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memdiag.records.history import History
from memdiag.reporters.palette import LIGHT
from memdiag.reporters.views import history as view
from memdiag.reporters.views import labels
from memdiag.reporters.views.text import shortened
from memdiag.units import MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = (LIGHT.anonymous, LIGHT.peak, LIGHT.file, LIGHT.muted)
_MARKERS = "os^Dv"
_LONGEST_NAME = 32
_MOST_TICKS = 12
_ROOM = 1.15  # above the highest point, for the runtime's versions
_NAME_HEIGHT = 0.05


def draw(history: History, figure: str) -> bytes:
    """Return a PNG of `figure`: entries across in the order in which they were added, MiB upwards.

    Models are told apart by marker as well as by colour, and named at the end of their lines.

    Raises:
        UsageError: there is no such figure, or no entry has it.
    """
    from matplotlib.figure import Figure

    lines = view.build(history, figure)
    what = view.figure_of(figure)
    scale = 1 if what.unit == "count" else MIB
    drawing = Figure(figsize=(10, 5.2), dpi=160, layout="constrained", facecolor=LIGHT.surface)
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
    axes.set_ylabel("copies" if what.unit == "count" else "MiB")
    axes.set_title(f"{figure}: {what.says}", fontsize=12, loc="left", color=LIGHT.ink, pad=12)
    axes.grid(color=LIGHT.line, linewidth=0.6, axis="y")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    target = io.BytesIO()
    drawing.savefig(target, format="png", metadata={"Software": None})
    return target.getvalue()


def _mark_runtimes(axes: Axes, lines: Sequence[view.Line]) -> None:
    """Draw a line, with the version, before each entry whose runtime is another than before."""
    places = {
        (place, point.runtime)
        for line in lines
        for place, point in enumerate(line.points, start=1)
        if point.is_other_runtime
    }
    for place, version in sorted(places):
        axes.axvline(place - 0.5, color=LIGHT.rail, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
        axes.text(
            place - 0.45,
            0.985,
            f"onnxruntime {version}",
            transform=axes.get_xaxis_transform(),
            va="top",
            fontsize=9,
            color=LIGHT.muted,
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
            fontsize=10,
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
        fontsize=9,
        parse_math=False,
    )
