"""A tuning as one self-contained page: what was won, how to set it up, and every point."""

from __future__ import annotations

from dataclasses import asdict

from memdiag.records import codec
from memdiag.records.fix import Fix
from memdiag.reports.fixes.html import charts, values
from memdiag.reports.page import Plotly, page
from memdiag.reports.views import pareto
from memdiag.reports.views import tuning as view

FORMAT = "html"
FILE_NAME = "tune.html"


def render(tuning: Fix, *, plotly: Plotly = "inline") -> bytes:
    """Return the page for `tuning`."""
    shown, points = view.build(tuning), pareto.build(tuning)
    return page(
        "tuning.html.j2",
        ("sorting.js", "copying.js", "fix.js"),
        {
            "what": "tuning",
            **values(tuning),
            "tuning": shown,
            "rows": (*shown.rows, *shown.others),
            "drawable": bool(points),
        },
        charts={**charts(tuning), "points": [asdict(point) for point in points]},
        record=codec.encode(tuning),
        record_name="tune",
        plotly=plotly,
    )
