"""What every picture drawn by matplotlib has: one font, and the same bytes for the same record."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from memdiag.reports.palette import LIGHT as COLOR
from memdiag.reports.views.text import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Kind = Literal["png", "svg"]

TITLE, TEXT, SMALL = 16.0, 12.5, 11.5  # points: legible where the picture is 400 pixels wide

_WIDTH = 8.0  # inches
_DPI = 200
_LEFT = 0.012
_GAP = 0.09  # inches above and below what is drawn
_TITLE_LETTERS, _LETTERS = 54, 76  # that fit in a line
_MOST_LINES = 2
_LETTER = 0.66  # a letter's width as a share of its size, generously


def rendered(draw: Callable[[], Figure], kind: Kind, *, outlined: bool = False) -> bytes:
    """Return the figure that `draw` makes as PNG or SVG.

    In SVG letters stay text, in whatever font the reader has, unless they are to be `outlined`.
    """
    from matplotlib import rc_context

    metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
    fixed: dict[Any, Any] = {
        "font.family": ["DejaVu Sans", "sans-serif"],
        "svg.hashsalt": "memdiag",
        "svg.fonttype": "path" if outlined else "none",
    }
    out = io.BytesIO()
    with rc_context(fixed), warnings.catch_warnings():
        # A name may have letters that the font lacks: they show as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        draw().savefig(out, format=kind, metadata=metadata)
    return out.getvalue()


def figure(height: float, title: str, subtitle: str) -> Figure:
    """Return a figure below its title and subtitle; it belongs to no window and no global state.

    `height` is in inches, that of the two included. What has no room is left out.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    lines = textwrap.wrap(subtitle, _LETTERS, max_lines=_MOST_LINES, placeholder=" …")
    room = 0.5 + 0.22 * len(lines)
    made = Figure(figsize=(_WIDTH, height), dpi=_DPI, facecolor=COLOR.surface)
    made.set_layout_engine(ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - room / height), h_pad=_GAP))
    FigureCanvasAgg(made)
    made.text(
        _LEFT, 1 - 0.12 / height, shortened(title, _TITLE_LETTERS), fontsize=TITLE, weight="bold",
        va="top", color=COLOR.ink, parse_math=False,
    )  # fmt: skip
    made.text(
        _LEFT, 1 - 0.44 / height, "\n".join(lines), fontsize=TEXT, va="top", color=COLOR.muted,
        parse_math=False,
    )  # fmt: skip
    return made


def fitting(text: str, size: float, width: float, *, smallest: float = 9.0) -> tuple[str, float]:
    """Return `text` and the font size, at most `size`, at which it fits into `width` points.

    Text that does not fit at the `smallest` size loses its middle.
    """
    letters = max(8, int(width / (_LETTER * smallest)))
    text = shortened(text, letters)
    return text, min(size, width / (_LETTER * max(1, len(text))))


def style(axes: Axes, heading: str, *, grid: Literal["x", "y", "both"]) -> None:
    """Give `axes` a heading and the look of all pictures: no box, a quiet grid, names as text."""
    axes.set_title(heading, loc="left", fontsize=TEXT, color=COLOR.ink, parse_math=False)
    axes.set_facecolor(COLOR.surface)
    axes.set_axisbelow(True)
    axes.grid(axis=grid, color=COLOR.line, lw=0.8)
    axes.tick_params(labelsize=SMALL, colors=COLOR.ink, length=0)
    for name in (axes.xaxis.label, axes.yaxis.label):
        name.set(fontsize=TEXT, color=COLOR.ink)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_parse_math(False)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(COLOR.line)
