"""Helpers of all pictures that matplotlib draws: figures, sizes of text, units, legends."""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, cast

from memdiag.reports.palette import LIGHT_PALETTE as COLOR
from memdiag.reports.palette import colors_by_kind
from memdiag.reports.text import shortened
from memdiag.units import GIB, MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

PictureFormat = Literal["png", "svg"]

TITLE, TEXT, SMALL = 16.0, 12.5, 11.5  # points: legible where the picture is 400 pixels wide

_FIGURE_WIDTH = 8.0  # inches
_FIGURE_DPI = 200
_TITLE_LEFT = 0.012
_CHART_GAP_INCHES = 0.09  # inches above and below the charts
_MAX_TITLE, _MAX_LINE = 54, 76  # letters
_MAX_SUBTITLE_LINES = 2
_HEX_COLOR = re.compile(r"#[0-9a-f]{6}")
_SVG_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_LETTER_WIDTH_SHARE = 0.66  # a wide letter's width as a share of its size

# Sizes of timelines, which are wider than other pictures.
WIDE_TEXT, _WIDE_TITLE = 14.0, 19.0  # points: legible at half of the width
MAX_WIDE_LINE = 92  # letters of a line of WIDE_TEXT
RIGHT, _AXES_LEFT = 0.985, 0.085  # edges of the axes
_WIDE_WIDTH, _WIDE_DPI, _WIDE_LETTER = 10.0, 160, 0.62
_POINTS = 72.0  # of an inch


def rendered_picture(
    draw: Callable[[], Figure], kind: PictureFormat, *, outlined: bool = False
) -> bytes:
    """Return the figure of `draw` as PNG or SVG, with the same bytes for the same record.

    Letters in an SVG are text in a font of the reader, or shapes if they are `outlined`.
    """
    from matplotlib import rc_context

    metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
    settings: dict[Any, Any] = {
        "font.family": ["DejaVu Sans", "sans-serif"],
        "svg.hashsalt": "memdiag",
        "svg.fonttype": "path" if outlined else "none",
    }
    out = io.BytesIO()
    with rc_context(settings), warnings.catch_warnings():
        # The font lacks letters of some names. matplotlib draws boxes for them.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        # Parts overlap if a damaged record has figures out of all proportion.
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        draw().savefig(out, format=kind, metadata=metadata)
    return out.getvalue()


def embedded_svg(draw: Callable[[], Figure]) -> str:
    """Return the figure of `draw` as an element of a page, without its title.

    Its colours are variables of the page, so they follow the light or dark theme.
    """
    svg = rendered_picture(lambda: _untitled_figure(draw()), "svg").decode()
    variables = {
        color: f"var(--{name.replace('_', '-')})"
        for name, color in {**colors_by_kind("light"), **asdict(COLOR)}.items()
    }
    svg = _HEX_COLOR.sub(lambda match: variables.get(match[0], match[0]), svg[svg.index("<svg") :])
    return _SVG_METADATA.sub("", svg)


def _untitled_figure(figure: Figure) -> Figure:
    """Return `figure` without the title and the subtitle of `titled_figure`."""
    engine = cast("ConstrainedLayoutEngine", figure.get_layout_engine())
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height * engine.get()["rect"][3])
    engine.set(rect=(0, 0, 1, 1))
    for text in figure.texts[:2]:
        text.remove()
    return figure


def titled_figure(height: float, title: str, subtitle: str) -> Figure:
    """Return a figure with a title and a subtitle, which belongs to no window.

    `height` is in inches, title and subtitle included. Long texts are shortened.
    """
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    lines = textwrap.wrap(subtitle, _MAX_LINE, max_lines=_MAX_SUBTITLE_LINES, placeholder=" …")
    text_height = 0.5 + 0.22 * len(lines)
    figure = _empty_figure(_FIGURE_WIDTH, height, _FIGURE_DPI)
    figure.set_layout_engine(
        ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - text_height / height), h_pad=_CHART_GAP_INCHES)
    )
    figure.text(
        _TITLE_LEFT, 1 - 0.12 / height, shortened(title, _MAX_TITLE), fontsize=TITLE, weight="bold",
        va="top", color=COLOR.ink, parse_math=False,
    )  # fmt: skip
    figure.text(
        _TITLE_LEFT, 1 - 0.44 / height, "\n".join(lines), fontsize=TEXT, va="top",
        color=COLOR.muted,
        parse_math=False,
    )  # fmt: skip
    return figure


def _empty_figure(width: float, height: float, dpi: int) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, facecolor=COLOR.surface)
    FigureCanvasAgg(figure)
    return figure


def timeline_figure(height: float) -> Figure:
    """Return an empty figure of `height` inches, which belongs to no window."""
    return _empty_figure(_WIDE_WIDTH, height, _WIDE_DPI)


def timeline_axes(figure: Figure, bottom: float, height: float) -> Axes:
    """Return new axes over the whole width of `figure`."""
    axes = figure.add_axes((_AXES_LEFT, bottom, RIGHT - _AXES_LEFT, height))
    axes.set_facecolor(COLOR.surface)
    return axes


def timeline_letters(size: float) -> float:
    """Return how many letters of `size` points fit into the width of a timeline's axes."""
    return _WIDE_WIDTH * (RIGHT - _AXES_LEFT) * _POINTS / (size * _WIDE_LETTER)


def timeline_title(
    figure: Figure, heights: tuple[float, float], title: str, answer: str, size: float, color: str
) -> None:
    """Write the title and the `answer` at the two `heights`.

    The answer has `color` and a font of `size` points.
    """
    title, title_size = fitted_text_and_size(title, _WIDE_TITLE, _WIDE_WIDTH * _POINTS * 0.97)
    texts = ((title, title_size, COLOR.ink, "bold"), (answer, size, color, "normal"))
    for y, (text, points, ink, weight) in zip(heights, texts, strict=True):
        figure.text(
            0.014, y, text, fontsize=points, color=ink, weight=weight, va="top", parse_math=False,
            linespacing=1.1,
        )  # fmt: skip


def fitted_text_and_size(
    text: str, size: float, width: float, *, smallest: float = 9.0
) -> tuple[str, float]:
    """Return `text` and the font size, at most `size`, at which it fits into `width` points.

    Text that does not fit even at the `smallest` size loses its middle.
    """
    letters = max(8, int(width / (_LETTER_WIDTH_SHARE * smallest)))
    text = shortened(text, letters)
    return text, min(size, width / (_LETTER_WIDTH_SHARE * max(1, len(text))))


def style_axes(axes: Axes, heading: str, *, grid: Literal["x", "y", "both"]) -> None:
    """Give `axes` a heading and the style of all pictures: no box, a light grid."""
    axes.set_title(heading, loc="left", fontsize=TEXT, color=COLOR.ink, parse_math=False)
    axes.set_facecolor(COLOR.surface)
    axes.set_axisbelow(True)
    axes.grid(axis=grid, color=COLOR.line, lw=0.8)
    axes.tick_params(labelsize=SMALL, colors=COLOR.ink, length=0)
    for axis_label in (axes.xaxis.label, axes.yaxis.label):
        axis_label.set(fontsize=TEXT, color=COLOR.ink)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)
    outline(axes, "left", "bottom")


def style_timeline(axes: Axes, sizes: str, small: float) -> None:
    """Name the axis of `sizes`, and give `axes` the style of timelines."""
    axes.set_ylabel(sizes, fontsize=small, color=COLOR.muted)
    axes.tick_params(axis="y", labelsize=small, colors=COLOR.muted, length=0)
    axes.grid(axis="y", color=COLOR.line, lw=0.8)
    axes.set_axisbelow(True)
    outline(axes, "bottom")


def outline(axes: Axes, *sides: str) -> None:
    """Show the edges of `axes` on `sides` only."""
    for side, spine in axes.spines.items():
        spine.set_visible(side in sides)
        spine.set_color(COLOR.line)


def size_unit(largest: int) -> tuple[int, str]:
    """Return the unit of an axis that reaches `largest` bytes, and its name."""
    return (GIB, "GiB") if largest >= 2 * GIB else (MIB, "MiB")


def color_legend(axes: Axes, colors: Mapping[str, str]) -> None:
    """Draw a legend of `colors` in the lower right corner of `axes`."""
    from matplotlib.patches import Patch

    handles = [Patch(fc=color, label=label) for label, color in colors.items()]
    if handles:
        axes.legend(
            handles=handles, loc="lower right", fontsize=SMALL, frameon=False,
            labelcolor=COLOR.ink, handlelength=0.9, handleheight=0.9,
        )  # fmt: skip


def label_centres(
    wanted_centres: Sequence[float], widths: Sequence[float], *, gap: float, width: float
) -> tuple[float, ...]:
    """Return the centres of labels as near to `wanted_centres` as possible without overlaps.

    `widths`, `gap` and `width` (of the whole row) are in the unit of `wanted_centres`. Labels that
    do not fit into the row overlap evenly.
    """
    order = sorted(range(len(wanted_centres)), key=lambda index: wanted_centres[index])
    needed_width = sum(widths) + gap * max(0, len(widths) - 1)
    gap = gap if needed_width <= width else gap - (needed_width - width) / max(1, len(widths) - 1)
    centres = dict.fromkeys(order, 0.0)
    edge = 0.0
    for index in order:  # to the right, as far as the label before demands
        centres[index] = max(wanted_centres[index], edge + widths[index] / 2)
        edge = centres[index] + widths[index] / 2 + gap
    edge = width
    for index in reversed(order):  # back to the left, as far as the end of the row demands
        centres[index] = min(centres[index], edge - widths[index] / 2)
        edge = centres[index] - widths[index] / 2 - gap
    return tuple(centres[index] for index in range(len(wanted_centres)))
