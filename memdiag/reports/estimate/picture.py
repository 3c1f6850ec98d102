"""An estimate as a picture: the parts of each phase, and the peak over sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memdiag.records.estimate import Estimate
from memdiag.reports import picture
from memdiag.reports.estimate.chart import EstimateChart, SizeChart, estimate_chart
from memdiag.reports.estimate.sentences import estimate_headline
from memdiag.reports.palette import LIGHT_PALETTE as COLOR
from memdiag.reports.palette import SERIES_COLORS, colors_by_kind
from memdiag.reports.text import capitalized
from memdiag.units import GIB, MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

_TERM_LEGEND_COLUMNS = 3
_BAR_ROW_INCHES = 0.42  # inches
_MAX_DARK_TEXT = 0.75  # position on the colour scale up to which dark letters are legible


def draw(estimate: Estimate) -> Figure:
    """Return the picture: bars of the phases, and the peak over sizes if there are several."""
    chart = estimate_chart(estimate)
    answer = estimate_headline(estimate)
    legend_inches = 0.28 * -(-len(chart.terms) // _TERM_LEGEND_COLUMNS)
    bars_inches = 0.9 + _BAR_ROW_INCHES * len(chart.phases) + legend_inches
    heights = [bars_inches]
    if chart.sizes is not None:
        heights.append(1.4 + _BAR_ROW_INCHES * max(5, len(chart.sizes.y)))
    figure = picture.titled_figure(1.0 + sum(heights), answer.model, capitalized(answer.first))
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    _draw_phase_parts(figure.add_subplot(grid[0]), chart)
    if chart.sizes is not None:
        axes = figure.add_subplot(grid[1])
        (_draw_size_grid if chart.sizes.y else _draw_size_curve)(axes, chart.sizes)
    return figure


def _draw_phase_parts(axes: Axes, chart: EstimateChart) -> None:
    picture.style_axes(axes, "peak of each phase above the process before the session", grid="x")
    totals = [sum(sizes) for sizes in zip(*(term.peak_bytes for term in chart.terms), strict=True)]
    unit, name = picture.size_unit(max(totals, default=0))
    colors = colors_by_kind("light")
    starts = [0.0] * len(chart.phases)
    for term in chart.terms:
        widths = [size / unit for size in term.peak_bytes]
        axes.barh(
            range(len(chart.phases)), widths, left=starts, height=0.7, color=colors[term.kind],
            edgecolor=COLOR.surface, lw=0.5, label=term.name,
        )  # fmt: skip
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    axes.set_yticks(range(len(chart.phases)), chart.phases)
    axes.invert_yaxis()
    axes.set_xlabel(name, loc="right")
    if chart.terms:
        axes.legend(
            loc="upper left", bbox_to_anchor=(-0.02, -0.14), ncols=_TERM_LEGEND_COLUMNS,
            frameon=False,
            fontsize=picture.SMALL - 1, labelcolor=COLOR.ink, handlelength=1.1, handleheight=1.0,
        )  # fmt: skip


def _draw_size_curve(axes: Axes, chart: SizeChart) -> None:
    picture.style_axes(axes, f"peak over {chart.x_name}", grid="y")
    peak_sizes, steady_sizes = chart.peak_bytes[0], chart.steady_bytes[0]
    unit, name = picture.size_unit(max((size or 0 for size in peak_sizes), default=0))
    # The lines are often the same, so the wider one stays visible below the other.
    for sizes, label, color, width in (
        (steady_sizes, "after the runs", COLOR.file, 6),
        (peak_sizes, "peak", COLOR.peak, 2),
    ):
        axes.plot(
            chart.x, [(size or 0) / unit for size in sizes], marker="o", ms=width + 2, lw=width,
            color=color, label=label,
        )  # fmt: skip
    if chart.limit_bytes is not None:
        axes.axhline(chart.limit_bytes / unit, color=COLOR.ink, lw=1.2, ls="--", label="limit")
    axes.set_ylim(bottom=0)
    axes.set_ylabel(name)
    axes.set_xlabel(_size_axis_label(chart, chart.x_name), loc="left")
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.legend(loc="upper left", fontsize=picture.SMALL, frameon=False, labelcolor=COLOR.ink)


def _draw_size_grid(axes: Axes, chart: SizeChart) -> None:
    """Draw a cell for each pair of sizes, darker for more memory. Bold cells exceed the limit."""
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    picture.style_axes(axes, "peak", grid="x")
    axes.grid(visible=False)
    sizes = [[float(size or 1) for size in row] for row in chart.peak_bytes]
    low, high = min(map(min, sizes)), max(map(max, sizes))
    shades = LinearSegmentedColormap.from_list("peak", [COLOR.band, SERIES_COLORS[0]])
    norm = LogNorm(max(low, 1), max(high, low + 1, 2))
    axes.imshow(sizes, aspect="auto", cmap=shades, norm=norm)
    for row, values in enumerate(sizes):
        for column, size in enumerate(values):
            is_over = chart.limit_bytes is not None and size > chart.limit_bytes
            axes.text(
                column, row, _grid_cell_text(size), ha="center", va="center",
                fontsize=picture.SMALL - 1, weight="bold" if is_over else "normal",
                color=COLOR.surface if norm(size) > _MAX_DARK_TEXT else COLOR.ink,
            )  # fmt: skip
            if is_over:
                axes.add_patch(_grid_cell_frame(column, row))
    axes.set_xticks(range(len(chart.x)), [f"{size:,}" for size in chart.x])
    axes.set_yticks(range(len(chart.y)), [f"{size:,}" for size in chart.y])
    axes.set_xlabel(_size_axis_label(chart, chart.x_name), loc="left")
    axes.set_ylabel(chart.y_name)


def _grid_cell_text(size: float) -> str:
    return f"{size / GIB:.2f} G" if size >= GIB else f"{size / MIB:,.0f} M"


def _grid_cell_frame(column: int, row: int) -> Patch:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.48, row - 0.46), 0.96, 0.92, fill=False, ec=COLOR.peak, lw=1.6)


def _size_axis_label(chart: SizeChart, name: str) -> str:
    frame_text = ", framed: above the limit" if chart.y and chart.limit_bytes is not None else ""
    return f"{name}{f', at {chart.others}' if chart.others else ''}{frame_text}"
