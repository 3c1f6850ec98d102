"""Growth as a picture: the resident set over runs, the growth of each owner, and the owners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memdiag.records.growth import Growth
from memdiag.reports import picture
from memdiag.reports.growth.chart import GrowthChart, GrowthLayer, SlopeLine, growth_chart
from memdiag.reports.growth.headline import growth_headline
from memdiag.reports.palette import LIGHT_PALETTE as COLOR
from memdiag.reports.palette import colors_by_kind
from memdiag.reports.text import capitalized
from memdiag.units import GIB, KIB, MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIN_RANGE_SHARE = 0.04
"""Share of the resident set that its chart has at least as height, so that noise looks small."""

_OWNER_LEGEND_COLUMNS = 3
_TEXT_PLATE = {"facecolor": COLOR.surface, "edgecolor": "none", "alpha": 0.8, "pad": 1.0}


def draw(growth: Growth) -> Figure:
    """Return the picture: curve, growth by owner, and owners on top of each other."""
    chart = growth_chart(growth, max_points=2000)
    answer = growth_headline(growth)
    has_owners = bool(chart.layers)
    height, ratios = (9.6, (1, 1, 1.25)) if has_owners else (3.6, (1,))
    figure = picture.titled_figure(height, answer.subject, capitalized(answer.first))
    grid = figure.add_gridspec(len(ratios), 1, height_ratios=ratios)
    curve_axes = figure.add_subplot(grid[0])
    _draw_curve(curve_axes, chart)
    lowest_axes = curve_axes
    if has_owners:
        lines_axes = figure.add_subplot(grid[1], sharex=curve_axes)
        _draw_growth(lines_axes, chart)
        lowest_axes = figure.add_subplot(grid[2], sharex=curve_axes)
        _draw_owners(lowest_axes, chart)
        for axes in (curve_axes, lines_axes):
            axes.tick_params(axis="x", labelbottom=False)
    lowest_axes.set_xlabel(chart.x_label, loc="left")
    x_end = max((*chart.x, *chart.moments_x, 1.0))
    lowest_axes.set_xlim(0, x_end)
    lowest_axes.xaxis.set_major_formatter("{x:,.10g}")
    figure.align_ylabels()
    return figure


def _draw_curve(axes: Axes, chart: GrowthChart) -> None:
    title = f"resident set after each {chart.unit}" if chart.has_samples else "resident set"
    picture.style_axes(axes, title, grid="y")
    unit, name = picture.size_unit(max(chart.resident_bytes, default=0))
    sizes = [size / unit for size in chart.resident_bytes]
    axes.axvspan(0, chart.warm_up, color=COLOR.band, lw=0)
    # Steps also between moments, because a sloped line would show one step as steady growth.
    axes.plot(chart.x, sizes, drawstyle="steps-post", color=COLOR.anonymous, lw=1.8)
    low, high = min(sizes, default=0.0), max(sizes, default=1.0)
    middle, height = (low + high) / 2, max(1.3 * (high - low), MIN_RANGE_SHARE * high)
    axes.set_ylim(middle - height / 2, middle + height / 2)
    axes.set_ylabel(name)
    axes.annotate(
        "end of warm-up", (chart.warm_up, 0), xycoords=("data", "axes fraction"), xytext=(4, 4),
        textcoords="offset points", va="bottom", fontsize=picture.SMALL, color=COLOR.muted,
    )  # fmt: skip
    axes.axvline(chart.warm_up, color=COLOR.rail, lw=1.0, ls=":")
    if chart.slope is not None and chart.slope.of_owner is None:
        _draw_slope(axes, chart.slope, unit)


def _draw_slope(axes: Axes, slope: SlopeLine, unit: int) -> None:
    axes.plot(
        slope.x, [size / unit for size in slope.bytes], color=COLOR.peak, lw=1.8, ls="--", zorder=5
    )
    # The text is where a rising line leaves space.
    settings: dict[str, Any] = (
        {
            "xy": (1, 0), "xytext": (-6, 6), "xycoords": "axes fraction", "ha": "right",
            "va": "bottom",
        }
        if slope.of_owner is None
        else {
            "xy": (slope.x[0], 1), "xytext": (6, -4), "xycoords": ("data", "axes fraction"),
            "ha": "left", "va": "top",
        }
    )  # fmt: skip
    axes.annotate(
        slope.text, textcoords="offset points", fontsize=picture.TEXT, weight="bold",
        color=COLOR.peak_ink, parse_math=False, zorder=6, bbox=_TEXT_PLATE, **settings,
    )  # fmt: skip


def _draw_growth(axes: Axes, chart: GrowthChart) -> None:
    from matplotlib.patheffects import Normal, Stroke

    picture.style_axes(axes, f"growth by owner since {chart.since}", grid="y")
    drawn_layers = [layer for layer in chart.layers if layer.is_drawn]
    values = [size for layer in drawn_layers for size in layer.growth_bytes]
    low, high = float(min((*values, 0))), float(max((*values, 0)))
    missing_bytes = max(chart.min_range_bytes, 1) - (high - low)
    low, high = (
        (low - missing_bytes / 2, high + missing_bytes / 2) if missing_bytes > 0 else (low, high)
    )
    unit, name = _growth_unit(max(-low, high))
    axes.axhline(0, color=COLOR.rail, lw=1.0)
    axes.axvspan(0, chart.warm_up, color=COLOR.band, lw=0)
    colors = colors_by_kind("light")
    for layer in drawn_layers:
        (line,) = axes.plot(
            chart.growth_x, [size / unit for size in layer.growth_bytes], marker="o", ms=4,
            color=colors[layer.kind], lw=2.6, ls=":" if layer.is_idle else "-",
            clip_on=False,
        )  # fmt: skip
        line.set_path_effects([Stroke(linewidth=3.8, foreground=COLOR.ink), Normal()])
    gap = 0.12 * (high - low)
    axes.set_ylim((low - gap) / unit, (high + gap) / unit)
    axes.set_ylabel(name)
    if chart.slope is not None and chart.slope.of_owner is not None:
        _draw_slope(axes, chart.slope, unit)


def _growth_unit(largest: float) -> tuple[int, str]:
    """Return the unit of an axis of growth that reaches `largest` bytes, and its name."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if largest >= unit:
            return unit, name
    return 1, "bytes"


def _draw_owners(axes: Axes, chart: GrowthChart) -> None:
    from matplotlib.patches import Patch

    picture.style_axes(axes, "owners of the resident set", grid="y")
    sizes_by_layer = [layer.resident_bytes for layer in chart.layers]
    totals = [sum(sizes) for sizes in zip(*sizes_by_layer, strict=True)]
    unit, name = picture.size_unit(max(totals))
    # Growing owners are on top, where the others do not move their edges.
    layers = sorted(chart.layers, key=lambda layer: (layer.is_drawn, layer.is_judged))
    colors = colors_by_kind("light")
    areas = axes.stackplot(
        chart.moments_x, [[size / unit for size in layer.resident_bytes] for layer in layers],
        colors=[colors[layer.kind] for layer in layers], lw=0.4, edgecolor=COLOR.surface,
    )  # fmt: skip
    for area, layer in zip(areas, layers, strict=True):
        if layer.is_idle:
            area.set_hatch("////")
    axes.axvline(chart.warm_up, color=COLOR.rail, lw=1.0, ls=":")
    axes.set_ylim(0, 1.05 * max(totals) / unit)
    axes.set_ylabel(name)
    handles = [
        Patch(
            fc=colors[layer.kind], label=_layer_legend_label(layer),
            hatch="////" if layer.is_idle else None,
            ec=COLOR.surface, lw=0,
        )
        for layer in reversed(layers)
    ]  # fmt: skip
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(-0.02, -0.24),
        ncols=_OWNER_LEGEND_COLUMNS,
        fontsize=picture.SMALL - 1, frameon=False, labelcolor=COLOR.ink, handlelength=1.1,
        handleheight=1.0, columnspacing=1.2,
    )  # fmt: skip


def _layer_legend_label(layer: GrowthLayer) -> str:
    return f"{layer.label} {layer.grown}" if layer.is_drawn else layer.label
