"""A fix as one self-contained page: what it did, what that is worth, and what was left undone."""

from __future__ import annotations

import shlex
from typing import Any

from memdiag.records import codec
from memdiag.records.fix import Fix
from memdiag.reports.page import Plotly, page
from memdiag.reports.views import bars, fix_glance
from memdiag.reports.views import fix as view
from memdiag.reports.views.text import plain

FORMAT = "html"
FILE_NAME = "fix.html"


def render(fix: Fix, *, plotly: Plotly = "inline") -> bytes:
    """Return the page for `fix`."""
    return page(
        "fix.html.j2",
        ("sorting.js", "fix.js"),
        {"what": "fix", **values(fix)},
        charts=charts(fix),
        record=codec.encode(fix),
        record_name="fix",
        plotly=plotly,
    )


def values(fix: Fix) -> dict[str, Any]:
    """Return what the pages of fixes and of tunings show alike."""
    shown, glance = view.build(fix), fix_glance.build(fix)
    return {
        "glance": glance,
        "shown": shown,
        "bars": _bars(fix) if glance.changes else (),
        "notes": shown.notes,
        "command": shlex.join(map(plain, fix.command)),
    }


def charts(fix: Fix) -> dict[str, Any]:
    """Return what the script draws of fixes and of tunings alike."""
    rows = view.build(fix).latencies
    return {
        "latencies": [
            {
                "inputs": plain(at.inputs),
                "ratio": at.ratio,
                "low": at.low,
                "high": at.high,
                "before": row.before,
                "after": row.after,
            }
            for at, row in zip(fix.latencies, rows, strict=False)
        ]
    }


def _bars(fix: Fix) -> tuple[bars.Bar, ...]:
    sides = (("before", fix.before), ("after", fix.after))
    return bars.bars(
        (label, one.peak_bytes, one.steady_bytes, one.file_bytes) for label, one in sides if one
    )
