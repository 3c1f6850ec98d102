"""A memory limit as a picture: time by limit, and the limits under which it is killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memdiag.records.limit import MemoryLimit
from memdiag.reports import picture
from memdiag.reports.limit.chart import LimitChart, limit_chart
from memdiag.reports.limit.sentences import limit_headline
from memdiag.reports.palette import LIGHT_PALETTE as COLOR
from memdiag.reports.text import capitalized
from memdiag.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(limit: MemoryLimit) -> Figure:
    """Return the picture."""
    chart = limit_chart(limit)
    answer = limit_headline(limit)
    figure = picture.titled_figure(5.4, answer.subject, capitalized(answer.first))
    _draw_times(figure.add_subplot(), chart)
    return figure


def _draw_times(axes: Axes, chart: LimitChart) -> None:
    picture.style_axes(axes, "time relative to the shortest; filled: slowed by the limit", grid="y")
    largest = max((mark.bytes for mark in chart.marks), default=0)
    unit, name = picture.size_unit(max((largest, *chart.x, *chart.failed)))
    for label, values, color, marker in (
        ("loading", chart.load_ratio, COLOR.file, "s"),
        (chart.y_label, chart.ratio, COLOR.anonymous, "o"),
    ):
        points = zip(chart.x, values, chart.is_slow, strict=True)
        known_points = [(x / unit, y, is_slow) for x, y, is_slow in points if y is not None]
        if known_points:
            x, y, _ = zip(*known_points, strict=True)
            axes.plot(
                x, y, marker=marker, ms=5, lw=1.6, color=color, mfc=COLOR.surface, label=label
            )
            slow_points = [(x, y) for x, y, is_slow in known_points if is_slow]
            axes.plot(
                [x for x, _ in slow_points],
                [y for _, y in slow_points],
                ls="",
                marker=marker,
                ms=5,
                color=color,
            )
    if chart.failed:
        axes.plot(
            [x / unit for x in chart.failed], [1.0] * len(chart.failed), ls="", marker="x", ms=8,
            mew=2, color=COLOR.peak, label=chart.failed_label,
        )  # fmt: skip
        axes.axvspan(0, max(chart.failed) / unit, color=COLOR.peak_soft, lw=0, zorder=0)
    axes.axhline(chart.max_slowdown, color=COLOR.rail, lw=1.0, ls=":")
    all_sizes = (*chart.x, *chart.failed, *(mark.bytes for mark in chart.marks))
    if all_sizes:
        low, high = min(all_sizes) / unit, max(all_sizes) / unit
        gap = max(0.06 * (high - low), 0.02 * high)
        axes.set_xlim(low - gap, high + gap)
    known_ratios = [y for y in (*chart.ratio, *chart.load_ratio) if y is not None]
    axes.set_yscale("log")
    axes.set_ylim(min((*known_ratios, 1.0)) / 1.3, max((*known_ratios, 1.5)) * 1.3)
    axes.yaxis.set_major_formatter("{x:.3g} ×")
    axes.yaxis.set_minor_formatter("{x:.3g} ×")
    middle = sum(axes.get_xlim()) / 2
    for number, mark in enumerate(chart.marks):
        is_left = mark.bytes / unit <= middle
        axes.axvline(mark.bytes / unit, color=COLOR.ink, lw=1.0, ls="--")
        axes.annotate(
            f"{mark.name} {format_size(mark.bytes)}", (mark.bytes / unit, 1),
            xycoords=("data", "axes fraction"), xytext=(4 if is_left else -4, -6 - 16 * number),
            textcoords="offset points", ha="left" if is_left else "right", va="top",
            fontsize=picture.SMALL, color=COLOR.ink, parse_math=False,
            bbox={"facecolor": COLOR.surface, "edgecolor": "none", "alpha": 0.8, "pad": 1.0},
        )  # fmt: skip
    axes.set_xlabel(f"memory limit ({name})", loc="left")
    axes.xaxis.set_major_formatter("{x:,.10g}")
    if chart.x or chart.failed:
        axes.legend(
            loc="upper left", bbox_to_anchor=(-0.02, -0.14), ncols=3, frameon=False,
            fontsize=picture.SMALL, labelcolor=COLOR.ink,
        )  # fmt: skip
