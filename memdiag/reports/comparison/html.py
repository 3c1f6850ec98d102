"""A comparison as one self-contained page: timelines over each other, and every table."""

from __future__ import annotations

from typing import Any

from memdiag.records import codec
from memdiag.records.comparison import Comparison
from memdiag.reports.page import Plotly, page
from memdiag.reports.palette import LIGHT, SERIES
from memdiag.reports.views import comparison as view
from memdiag.reports.views import comparison_bars, comparison_lines
from memdiag.reports.views.text import plain

FORMAT = "html"
FILE_NAME = "comparison.html"


def render(comparison: Comparison, *, plotly: Plotly = "inline") -> bytes:
    """Return the page for `comparison`."""
    shown = view.build(comparison)
    values = {
        "shown": shown,
        "bars": comparison_bars.build(comparison),
        # The one colour that is nearly black would vanish on a dark page.
        "colors": ["var(--ink)" if color == LIGHT.ink else color for color in SERIES],
        "drawable": any(_lines(comparison)),
    }
    return page(
        "comparison.html.j2",
        ("comparison.js",),
        values,
        charts={"lines": _lines(comparison)},
        record=codec.encode(comparison),
        record_name="comparison",
        plotly=plotly,
    )


def _lines(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the timelines of the columns that were measured, each with its colour."""
    found = []
    measured = [column for column in comparison.columns if column.measured is not None]
    for index, column in enumerate(measured):
        line = comparison_lines.build(column)
        if line is not None:
            found.append(
                {
                    "label": plain(column.label),
                    "color": SERIES[index % len(SERIES)],
                    "t": line.t_s,
                    "above": line.above_bytes,
                    "layers": [
                        {"name": layer.name, "above": layer.above_bytes} for layer in line.layers
                    ],
                    "bands": [
                        {"phase": band.phase, "start": band.start_s, "end": band.end_s}
                        for band in line.bands
                    ],
                }
            )
    return found
