"""The points of a tuning as a picture: memory against latency, the Pareto front as a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memdiag.records.fix import Fix
from memdiag.reporters import picture
from memdiag.reporters.palette import LIGHT as COLOR
from memdiag.reporters.views import fix_glance, pareto
from memdiag.reporters.views.pareto import ParetoPoint
from memdiag.reporters.views.text import shortened
from memdiag.units import MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMAT = "png"
FILE_NAME = "tune.png"

_LONGEST_LABEL = 66
_MOST_NAMED = 10
_NEAR = 0.03  # of an axis: what is nearer to another point cannot be told from it


def render(tuning: Fix) -> bytes:
    """Return the picture of `tuning` as PNG, the same for the same record."""
    return picture.rendered(lambda: draw(tuning), "png")


def draw(tuning: Fix) -> Figure:
    """Return the picture: steady memory above the baseline across, the latency's ratio upwards.

    What lies on the front is numbered from the least memory on, and named below; the line leaves
    out what is there for its peak alone.
    """
    points = pareto.build(tuning)
    front = [one for one in points if one.number]
    named = front[:_MOST_NAMED]
    glance = fix_glance.build(tuning)
    made = picture.figure(5.4 + 0.22 * len(named), glance.model, glance.answer)
    if not points:
        return made
    axes = made.add_subplot()
    axes.plot(
        *_places([one for one in front if one.on_line]), "-", color=COLOR.rail, lw=1.8, zorder=0
    )
    for one in sorted(points, key=lambda each: each.is_chosen):
        _draw_point(axes, one)
    for text, place in _labels(points, axes.get_xlim(), axes.get_ylim()):
        axes.annotate(
            text, place, xytext=(0, 8), ha="center", textcoords="offset points",
            fontsize=picture.SMALL, color=COLOR.ink,
        )  # fmt: skip
    axes.set_xlabel("steady memory above the baseline, MiB")
    axes.set_ylabel("latency, × that of the defaults")
    axes.margins(0.1)
    heading = "● on the Pareto front (orange: chosen)   ✕ others   ■ defaults"
    picture.style(axes, heading, grid="both")
    made.supxlabel(
        _legend(named, len(front)), x=0.012, ha="left", fontsize=picture.SMALL, color=COLOR.ink,
        parse_math=False,
    )  # fmt: skip
    return made


def _draw_point(axes: Axes, one: ParetoPoint) -> None:
    marker = "s" if one.is_defaults else "o" if one.number else "x"
    color = COLOR.peak if one.is_chosen else COLOR.anonymous if one.number else COLOR.muted
    axes.plot(one.steady_bytes / MIB, one.ratio, marker, color=color, markersize=9)


def _labels(
    points: Sequence[ParetoPoint], across: tuple[float, float], upwards: tuple[float, float]
) -> list[tuple[str, tuple[float, float]]]:
    """Return labels and their places; points that lie on each other share one."""
    labels: list[tuple[str, tuple[float, float]]] = []
    for one in points:
        text = str(one.number) if one.number else "defaults" if one.is_defaults else ""
        x, y = one.steady_bytes / MIB, one.ratio
        if text and labels:
            before, (last_x, last_y) = labels[-1]
            width, height = across[1] - across[0], upwards[1] - upwards[0]
            if abs(x - last_x) < _NEAR * width and abs(y - last_y) < _NEAR * height:
                labels[-1] = (f"{before}, {text}", (last_x, max(y, last_y)))
                continue
        if text:
            labels.append((text, (x, y)))
    return labels


def _places(points: Sequence[ParetoPoint]) -> tuple[list[float], list[float]]:
    return [one.steady_bytes / MIB for one in points], [one.ratio for one in points]


def _legend(named: Sequence[ParetoPoint], count: int) -> str:
    lines = [f"{one.number}  {_name(one)}" for one in named]
    return "\n".join([*lines, *([f"and {count - len(named)} more"] if count > len(named) else [])])


def _name(one: ParetoPoint) -> str:
    return shortened(one.label, _LONGEST_LABEL) + (" (chosen)" if one.is_chosen else "")
