"""The points of a tuning as a picture: memory against latency, the Pareto fronts as lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from memdiag.records.fix import Fix
from memdiag.reports import picture
from memdiag.reports.palette import LIGHT as COLOR
from memdiag.reports.views import fix_glance, pareto
from memdiag.reports.views.pareto import ParetoPoint
from memdiag.reports.views.text import shortened
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
    """Return the picture: steady memory and peak across, the latency's ratio upwards.

    What is on one of the fronts is numbered from the least steady memory on, and named below; a
    point is marked where it is on the front of the two figures that are drawn.
    """
    points = pareto.build(tuning)
    named = [one for one in points if one.number][:_MOST_NAMED]
    count = sum(1 for one in points if one.number)
    glance = fix_glance.build(tuning)
    made = picture.figure(5.4 + 0.22 * len(named), glance.model, glance.answer)
    if not points:
        return made
    left, right = made.subplots(1, 2, sharey=True)
    _draw_chart(left, points, lambda one: (one.steady_bytes, one.on_steady_front))
    _draw_chart(right, points, lambda one: (one.peak_bytes, one.on_peak_front))
    left.set_xlabel("steady memory, MiB")
    right.set_xlabel("peak, MiB")
    left.set_ylabel("latency, × that of the defaults")
    picture.style(left, "● on the Pareto front (orange: chosen)", grid="both")
    picture.style(right, "✕ others   ■ defaults", grid="both")
    made.supxlabel(
        _legend(named, count), x=0.012, ha="left", fontsize=picture.SMALL, color=COLOR.ink,
        parse_math=False,
    )  # fmt: skip
    return made


def _draw_chart(
    axes: Axes, points: Sequence[ParetoPoint], of: Callable[[ParetoPoint], tuple[int, bool]]
) -> None:
    """Draw `points`, of each of which `of` returns the bytes and whether it is on the front."""
    front = sorted((of(one)[0] / MIB, one.drawn_ratio) for one in points if of(one)[1])
    axes.plot([x for x, _ in front], [y for _, y in front], "-", color=COLOR.rail, lw=1.8, zorder=0)
    for one in sorted(points, key=lambda each: each.is_chosen):
        nbytes, on_front = of(one)
        marker = "s" if one.is_defaults else "o" if on_front else "x"
        color = COLOR.peak if one.is_chosen else COLOR.anonymous if on_front else COLOR.muted
        axes.plot(nbytes / MIB, one.drawn_ratio, marker, color=color, markersize=9)
    axes.margins(0.1)
    shown = [
        (text, (nbytes / MIB, one.drawn_ratio))
        for one in points
        for nbytes, on_front in [of(one)]
        if (text := str(one.number) if on_front else "defaults" if one.is_defaults else "")
    ]
    for text, place in _labels(shown, axes.get_xlim(), axes.get_ylim()):
        axes.annotate(
            text, place, xytext=(0, 8), ha="center", textcoords="offset points",
            fontsize=picture.SMALL, color=COLOR.ink,
        )  # fmt: skip


def _labels(
    texts: Sequence[tuple[str, tuple[float, float]]],
    across: tuple[float, float],
    upwards: tuple[float, float],
) -> list[tuple[str, tuple[float, float]]]:
    """Return labels and their places; those of points that lie on each other are one."""
    labels: list[tuple[str, tuple[float, float]]] = []
    width, height = across[1] - across[0], upwards[1] - upwards[0]
    for text, (x, y) in sorted(texts, key=lambda each: each[1]):
        if labels:
            before, (last_x, last_y) = labels[-1]
            if abs(x - last_x) < _NEAR * width and abs(y - last_y) < _NEAR * height:
                labels[-1] = (f"{before}, {text}", (last_x, max(y, last_y)))
                continue
        labels.append((text, (x, y)))
    return labels


def _legend(named: Sequence[ParetoPoint], count: int) -> str:
    lines = [f"{one.number}  {_name(one)}" for one in named]
    return "\n".join([*lines, *([f"and {count - len(named)} more"] if count > len(named) else [])])


def _name(one: ParetoPoint) -> str:
    return shortened(one.label, _LONGEST_LABEL) + (" (chosen)" if one.is_chosen else "")
