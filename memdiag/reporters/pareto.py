"""The points of a tuning as a picture: memory against latency, the Pareto front as a line."""

import io
from typing import TYPE_CHECKING

from memdiag.records.fix import Fix, Point
from memdiag.reporters.palette import LIGHT
from memdiag.reporters.views.text import model_file, plain, shortened
from memdiag.reporters.views.tuning import label
from memdiag.units import MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LONGEST_LABEL = 100


def render(tuning: Fix) -> bytes:
    """Return the picture as a PNG."""
    target = io.BytesIO()
    draw(tuning).savefig(target, format="png", metadata={"Software": None})
    return target.getvalue()


def draw(tuning: Fix) -> "Figure":
    """Return the picture: steady memory above the baseline across, the latency's ratio upwards.

    What lies on the front is numbered from the least memory on, and named below.
    """
    from matplotlib.figure import Figure

    points = [one for one in tuning.points if one.figures and one.ratio and not one.problem]
    front = sorted((one for one in points if one.on_front), key=_at)
    figure = Figure(
        figsize=(8, 5 + 0.2 * len(front)), dpi=150, layout="constrained", facecolor=LIGHT.surface
    )
    axes = figure.add_subplot()
    axes.plot(*zip(*map(_at, front), strict=True), "-", color=LIGHT.rail, zorder=0)
    for one in points:
        if one.on_front:
            continue
        is_defaults = not one.options
        axes.plot(*_at(one), "s" if is_defaults else "x", color=LIGHT.anonymous, markersize=5)
        if is_defaults:
            _annotate(axes, one, "defaults")
    for number, one in enumerate(front, 1):
        color = LIGHT.peak if one.options == tuning.chosen else LIGHT.anonymous
        axes.plot(*_at(one), "o", color=color, markersize=8)
        _annotate(axes, one, str(number))
    axes.set_xlabel("steady memory above the baseline, MiB")
    axes.set_ylabel("latency, × that of the defaults")
    axes.set_title(f"{model_file(tuning.model)}: options tried, ● on the Pareto front", fontsize=10)
    axes.margins(0.1)
    axes.grid(color=LIGHT.line, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.supxlabel(_legend(front, tuning), x=0.02, ha="left", fontsize=8, color=LIGHT.ink)
    return figure


def _annotate(axes: "Axes", point: Point, text: str) -> None:
    axes.annotate(
        text,
        _at(point),
        xytext=(0, 7),
        ha="center",
        textcoords="offset points",
        fontsize=8,
        color=LIGHT.ink,
    )


def _legend(front: list[Point], tuning: Fix) -> str:
    return "\n".join(
        f"{number}  {shortened(plain(label(one)), _LONGEST_LABEL)}"
        f"{' (chosen)' if one.options == tuning.chosen else ''}"
        for number, one in enumerate(front, 1)
    )


def _at(point: Point) -> tuple[float, float]:
    assert point.figures is not None
    return point.figures.steady_bytes / MIB, point.ratio or 1.0
