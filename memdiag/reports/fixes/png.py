"""A fix as a picture: memory and files before and after, and the latencies' ratios."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memdiag.records.fix import Figures, Fix, LatencyAt
from memdiag.reports import picture
from memdiag.reports.palette import LIGHT as COLOR
from memdiag.reports.views import fix_glance
from memdiag.reports.views.text import plain, shortened
from memdiag.units import GIB, MIB, format_sizes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMAT = "png"
FILE_NAME = "fix.png"

_BAR = 0.36
_MOST_RATIOS = 6
_LONGEST_LABEL = 22
_LEAST_RANGE = (0.9, 1.1)  # that ratios are shown on, so that no trifle looks large


def render(fix: Fix) -> bytes:
    """Return the drawing of `fix` as PNG, the same for the same record."""
    return picture.rendered(lambda: draw(fix), "png")


def draw(fix: Fix) -> Figure:
    """Return the figure: bars of memory and files, the latencies below; words where nothing is."""
    glance = fix_glance.build(fix)
    ratios = sorted(fix.latencies, key=lambda one: -one.ratio)[:_MOST_RATIOS]
    if fix.before is None or fix.after is None:
        return picture.figure(1.2, glance.model, glance.answer)
    heights = [2.6, 0.5 + 0.34 * len(ratios)] if ratios else [2.6]
    made = picture.figure(1.3 + sum(heights), glance.model, glance.answer)
    grid = made.add_gridspec(len(heights), 1, height_ratios=heights)
    _sizes(made.add_subplot(grid[0]), fix.before, fix.after)
    if ratios:
        _ratios(made.add_subplot(grid[1]), ratios, len(fix.latencies))
    return made


def _sizes(axes: Axes, before: Figures, after: Figures) -> None:
    """Draw peak, steady memory (mapped files paler) and files, each before and after."""
    most = max(*_three(before), *_three(after))
    unit, name = (GIB, "GiB") if most >= 2 * GIB else (MIB, "MiB")
    for shift, one, other, color in (
        (-0.5, before, after, COLOR.muted),
        (0.5, after, before, COLOR.anonymous),
    ):
        whole = max(0, one.steady_bytes)
        mapped = min(whole, max(0, one.file_bytes))
        for place, size in enumerate((one.peak_bytes, whole - mapped, one.disk_bytes)):
            axes.barh(place + shift * _BAR, max(0, size) / unit, _BAR, color=color)
        axes.barh(
            1 + shift * _BAR, mapped / unit, _BAR, left=(whole - mapped) / unit, color=color,
            alpha=0.45,
        )  # fmt: skip
        for place, (size, beside) in enumerate(zip(_three(one), _three(other), strict=True)):
            axes.annotate(
                format_sizes(size, beside)[0], (max(0, size) / unit, place + shift * _BAR),
                xytext=(4, 0), textcoords="offset points", va="center", fontsize=picture.SMALL,
                color=COLOR.ink,
            )  # fmt: skip
    axes.set_yticks(range(3), ["peak", "steady", "on disk"])
    axes.set_ylim(2.5, -0.5)
    axes.set_xlim(0, 1.16 * most / unit if most > 0 else 1)
    heading = f"{name}, before (grey) and after (blue); mapped files pale"
    picture.style(axes, heading, grid="x")


def _three(figures: Figures) -> tuple[int, int, int]:
    return figures.peak_bytes, figures.steady_bytes, figures.disk_bytes


def _ratios(axes: Axes, latencies: Sequence[LatencyAt], count: int) -> None:
    """Draw the ratio for each set of inputs on its interval, the largest first."""
    labels = [shortened(plain(one.inputs), _LONGEST_LABEL) for one in latencies]
    for place, one in enumerate(latencies):
        axes.plot([one.low, one.high], [place, place], color=COLOR.rail, lw=3)
        axes.plot(one.ratio, place, "o", color=COLOR.anonymous, markersize=8)
    axes.axvline(1, color=COLOR.ink, lw=1.2, linestyle=(0, (2, 2)))
    low, high = _LEAST_RANGE
    low = min(low, *(one.low for one in latencies), *(one.ratio for one in latencies))
    high = max(high, *(one.high for one in latencies), *(one.ratio for one in latencies))
    axes.set_xlim(low - 0.04 * (high - low), high + 0.04 * (high - low))
    axes.set_yticks(range(len(latencies)), labels)
    axes.set_ylim(len(latencies) - 0.5, -0.5)
    of = "" if count == len(latencies) else f", the largest {len(latencies)} of {count}"
    picture.style(axes, f"latency, × that before, with its interval{of}", grid="x")
