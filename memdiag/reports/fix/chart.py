"""The chart of a fix: memory and latency of its points, with the Pareto front of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memdiag.records.fix import Fix, Point
from memdiag.records.pareto_front import is_drawn, pareto_fronts
from memdiag.reports.palette import LIGHT_PALETTE as COLOR
from memdiag.reports.text import plain, shortened
from memdiag.units import MIB, format_sizes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_MAX_PICTURE_LABEL = 66
_MAX_PICTURE_NAMES = 10
_CHART_HEIGHT, _LEGEND_HEIGHT = 4.2, 0.75  # inches
_MIN_RATIO_HEIGHT = 0.1  # between the least and the greatest ratio that are drawn
_LABEL_DISTANCE = 0.03  # of an axis: nearer points share a label
_MARKER_BY_MEANING = {"chosen": "*", "defaults": "s", "on the Pareto front": "o", "others": "x"}
_SIZE_BY_MARKER = {"*": 15, "s": 9, "o": 9, "x": 8, "D": 7}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint:
    """One point, drawn in two charts: steady memory and peak, each against latency.

    Attributes:
        number: counts the points on either front from the least steady memory on, 0 for others.
        on_steady_front, on_peak_front: the fronts that it is on (see `pareto_fronts`).
        label: the names of the options.
        steady_bytes, peak_bytes: the memory.
        steady, peak: the memory as text.
        ratio: latency ÷ latency of the defaults.
        low, high: the interval of the ratio; the ratio itself if there is none.
        may_equal_defaults: whether it is unknown if the point is faster or slower than the
            defaults, because its interval includes 1. False for the defaults.
        drawn_ratio: the ratio in the chart, from which the fronts are made: 1 if the point may
            equal the defaults.
        is_chosen, is_defaults: whether it is the chosen point, or the point of the defaults.
    """

    number: int
    on_steady_front: bool
    on_peak_front: bool
    label: str
    steady_bytes: int
    peak_bytes: int
    steady: str
    peak: str
    ratio: float
    low: float
    high: float
    may_equal_defaults: bool
    drawn_ratio: float
    is_chosen: bool
    is_defaults: bool


def point_label(point: Point) -> str:
    """Return the options of a point, or ``defaults``."""
    return " + ".join(map(plain, point.option_names)) or "defaults"


def point_sizes(points: Sequence[Point]) -> list[tuple[str, str]]:
    """Return peak and steady memory of each point; empty texts if they are unknown."""
    known_figures = [point.figures for point in points if point.figures is not None]
    peak_sizes = iter(format_sizes(*(figures.peak_bytes for figures in known_figures)))
    steady_sizes = iter(format_sizes(*(figures.steady_bytes for figures in known_figures)))
    return [
        (next(peak_sizes), next(steady_sizes)) if point.figures else ("", "") for point in points
    ]


def pareto_points(fix: Fix) -> tuple[ParetoPoint, ...]:
    """Return the points of `fix` that can be used and were compared, the fronts first."""
    usable = [point for point in fix.points if is_drawn(point)]
    points_with_fronts = sorted(
        zip(usable, pareto_fronts(usable), strict=True),
        key=lambda pair: (not any(pair[1]), _point_steady_bytes(pair[0]), pair[0].known_ratio),
    )
    sizes = point_sizes([point for point, _ in points_with_fronts])
    drawn_points = []
    for number, ((point, fronts), (peak, steady)) in enumerate(
        zip(points_with_fronts, sizes, strict=True), start=1
    ):
        ratio = point.ratio or 1.0
        drawn_points.append(
            ParetoPoint(
                number=number if any(fronts) else 0,
                on_steady_front=fronts.steady,
                on_peak_front=fronts.peak,
                label=point_label(point),
                steady_bytes=_point_steady_bytes(point),
                peak_bytes=_point_peak_bytes(point),
                steady=steady,
                peak=peak,
                ratio=ratio,
                low=ratio if point.low is None else point.low,
                high=ratio if point.high is None else point.high,
                may_equal_defaults=point.may_equal_defaults and bool(point.option_names),
                drawn_ratio=point.known_ratio,
                is_chosen=fix.is_chosen(point),
                is_defaults=not point.option_names,
            )
        )
    return tuple(drawn_points)


def _point_steady_bytes(point: Point) -> int:
    assert point.figures is not None
    return point.figures.steady_bytes


def _point_peak_bytes(point: Point) -> int:
    assert point.figures is not None
    return point.figures.peak_bytes


def draw_pareto_points(figure: Figure, points: Sequence[ParetoPoint]) -> None:
    """Draw steady memory and peak across, the ratio of latencies upwards, and the legend below.

    Points on one of the fronts are numbered from the least steady memory on, and named in the
    legend. A point is marked if it is on the front of the two figures that are drawn.
    """
    from memdiag.reports import picture

    if not points:
        return
    grid = figure.add_gridspec(2, 2, height_ratios=(_CHART_HEIGHT, _LEGEND_HEIGHT))
    steady_axes = figure.add_subplot(grid[0, 0])
    peak_axes = figure.add_subplot(grid[0, 1], sharey=steady_axes)
    peak_axes.tick_params(labelleft=False)
    _draw_pareto_chart(
        steady_axes, points, lambda point: (point.steady_bytes, point.on_steady_front)
    )
    _draw_pareto_chart(peak_axes, points, lambda point: (point.peak_bytes, point.on_peak_front))
    picture.style_axes(steady_axes, "steady memory", grid="both")
    picture.style_axes(peak_axes, "peak", grid="both")
    steady_axes.set_xlabel("MiB")
    peak_axes.set_xlabel("MiB")
    steady_axes.set_ylabel("latency ÷ latency of the defaults")
    legend_axes = figure.add_subplot(grid[1, :])
    legend_axes.set_axis_off()
    legend_axes.legend(
        handles=_point_legend_marks(points), loc="upper left", ncols=2, frameon=False, borderpad=0,
        borderaxespad=0, fontsize=picture.SMALL, labelcolor=COLOR.ink, columnspacing=1.2,
    )  # fmt: skip
    names = [f"{point.number}  {_picture_name(point)}" for point in named_pareto_points(points)]
    omitted_count = sum(point.number > 0 for point in points) - len(names)
    figure.supxlabel(
        "\n".join([*names, *([f"and {omitted_count} more"] if omitted_count else [])]),
        x=0.012, ha="left", fontsize=picture.SMALL, color=COLOR.ink, parse_math=False,
    )  # fmt: skip


def named_pareto_points(points: Sequence[ParetoPoint]) -> list[ParetoPoint]:
    """Return the points whose numbers the picture names."""
    return [point for point in points if point.number][:_MAX_PICTURE_NAMES]


def _draw_pareto_chart(
    axes: Axes,
    points: Sequence[ParetoPoint],
    size_and_front: Callable[[ParetoPoint], tuple[int, bool]],
) -> None:
    """Draw `points` by their size and latency, with the front of these two figures as a line."""
    from memdiag.reports import picture

    front = sorted(
        (size_and_front(point)[0] / MIB, point.drawn_ratio)
        for point in points
        if size_and_front(point)[1]
    )
    axes.plot([x for x, _ in front], [y for _, y in front], "-", color=COLOR.rail, lw=1.8, zorder=0)
    for point in sorted(points, key=lambda point: point.is_chosen):
        size, is_on_front = size_and_front(point)
        kind = _point_mark_meaning(point, is_on_front)
        if point.low < point.high:
            axes.plot(
                [size / MIB] * 2, [point.low, point.high], "-", color=_point_mark_color(kind),
                lw=1.2,
                alpha=0.6, zorder=1,
            )  # fmt: skip
        axes.add_line(_point_mark(kind, size / MIB, point.drawn_ratio, point.may_equal_defaults))
    axes.autoscale_view()
    axes.margins(0.1)
    # Longer intervals leave the chart, instead of squeezing all points together.
    ratios = [point.drawn_ratio for point in points]
    height = max(max(ratios) - min(ratios), _MIN_RATIO_HEIGHT)
    axes.set_ylim(min(ratios) - 0.5 * height, max(ratios) + 0.5 * height)
    labels = []
    for point in points:
        size, is_on_front = size_and_front(point)
        text = str(point.number) if is_on_front else "defaults" if point.is_defaults else ""
        if text:
            labels.append((text, (size / MIB, point.drawn_ratio)))
    for text, position in _merged_labels(labels, axes.get_xlim(), axes.get_ylim()):
        # The label is next to the interval. The defaults have no interval.
        offset, alignment = ((0, 9), "center") if "defaults" in text else ((9, 5), "left")
        axes.annotate(
            text, position, xytext=offset, ha=alignment, textcoords="offset points",
            fontsize=picture.SMALL, color=COLOR.ink,
        )  # fmt: skip


def _point_mark_meaning(point: ParetoPoint, is_on_front: bool) -> str:
    """Return the name of the mark of `point` in the legend."""
    if point.is_chosen:
        return "chosen"
    if point.is_defaults:
        return "defaults"
    return "on the Pareto front" if is_on_front else "others"


def _point_mark_color(kind: str) -> str:
    colors = {"chosen": COLOR.peak, "defaults": COLOR.ink, "on the Pareto front": COLOR.anonymous}
    return colors.get(kind, COLOR.muted)


def _point_mark(kind: str, x: float, y: float, is_hollow: bool, label: str = "") -> Line2D:
    from matplotlib.lines import Line2D

    marker = "D" if is_hollow and kind == "others" else _MARKER_BY_MEANING[kind]
    return Line2D(
        [x], [y], linestyle="", marker=marker, color=_point_mark_color(kind),
        markersize=_SIZE_BY_MARKER[marker],
        markerfacecolor=COLOR.surface if is_hollow else _point_mark_color(kind),
        markeredgewidth=1.6,
        label=label, zorder=3,
    )  # fmt: skip


def _point_legend_marks(points: Sequence[ParetoPoint]) -> list[Line2D]:
    """Return a mark with its meaning for each kind of mark that is drawn."""
    from matplotlib.lines import Line2D

    drawn_meanings = {
        _point_mark_meaning(point, is_on_front)
        for point in points
        for is_on_front in (point.on_steady_front, point.on_peak_front)
    }
    marks = [
        _point_mark(kind, 0, 0, False, kind)
        for kind in _MARKER_BY_MEANING
        if kind in drawn_meanings
    ]
    if any(point.may_equal_defaults for point in points):
        undecided = "hollow: may be as fast as the defaults"
        marks.append(_point_mark("on the Pareto front", 0, 0, True, undecided))
    marks.append(Line2D([], [], color=COLOR.muted, lw=1.2, label="95 % interval of the latency"))
    return marks


def _merged_labels(
    texts: Sequence[tuple[str, tuple[float, float]]],
    x_range: tuple[float, float],
    y_range: tuple[float, float],
) -> list[tuple[str, tuple[float, float]]]:
    """Return labels and their positions. Points that are drawn over each other share a label."""
    labels: list[tuple[str, tuple[float, float]]] = []
    width, height = x_range[1] - x_range[0], y_range[1] - y_range[0]
    for text, (x, y) in sorted(texts, key=lambda text_and_position: text_and_position[1]):
        if labels:
            last_text, (last_x, last_y) = labels[-1]
            is_near = abs(y - last_y) < _LABEL_DISTANCE * height
            if is_near and abs(x - last_x) < _LABEL_DISTANCE * width:
                labels[-1] = (f"{last_text}, {text}", (last_x, max(y, last_y)))
                continue
        labels.append((text, (x, y)))
    return labels


def _picture_name(point: ParetoPoint) -> str:
    return shortened(point.label, _MAX_PICTURE_LABEL) + (" (chosen)" if point.is_chosen else "")
