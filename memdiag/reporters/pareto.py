"""The points of a tuning as a picture: memory against latency, the Pareto front as a line."""

import io

from memdiag.records.fix import Fix, Point
from memdiag.reporters.palette import LIGHT
from memdiag.reporters.views.text import model_file, plain, shortened
from memdiag.reporters.views.tuning import label
from memdiag.units import MIB

_LONGEST_LABEL = 40


def draw(tuning: Fix) -> bytes:
    """Return a PNG: steady memory above the baseline across, the latency's ratio upwards."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=150, layout="constrained", facecolor=LIGHT.surface)
    axes = figure.add_subplot()
    points = [one for one in tuning.points if one.figures is not None and not one.problem]
    for one in points:
        color = LIGHT.peak if one.options == tuning.chosen else LIGHT.anonymous
        marker = "o" if one.on_front else "x"
        axes.plot(*_at(one), marker, color=color, markersize=8 if one.on_front else 5)
    front = sorted(_at(one) for one in points if one.on_front)
    axes.plot(*zip(*front, strict=True), "-", color=LIGHT.rail, zorder=0)
    middle = sum(axes.get_xlim()) / 2
    for one in points:
        if one.on_front or not one.options:
            leftwards = _at(one)[0] > middle
            text = shortened(plain(label(one)), _LONGEST_LABEL)
            weight = "bold" if one.options == tuning.chosen else "normal"
            axes.annotate(
                text,
                _at(one),
                xytext=(-7 if leftwards else 7, 4),
                ha="right" if leftwards else "left",
                textcoords="offset points",
                fontsize=8,
                color=LIGHT.ink,
                weight=weight,
            )
    axes.set_xlabel("steady memory above the baseline, MiB")
    axes.set_ylabel("latency, × that of the defaults")
    axes.set_title(f"{model_file(tuning.model)}: options tried, ● on the Pareto front", fontsize=10)
    axes.margins(0.15)
    axes.grid(color=LIGHT.line, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    target = io.BytesIO()
    figure.savefig(target, format="png", metadata={"Software": None})
    return target.getvalue()


def _at(point: Point) -> tuple[float, float]:
    assert point.figures is not None
    return point.figures.steady_bytes / MIB, point.ratio or 1.0
