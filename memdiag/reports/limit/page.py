"""The page of a memory limit: the suggestion, time against limit, and the trials."""

from __future__ import annotations

from dataclasses import asdict

from memdiag.records import codec
from memdiag.records.limit import MemoryLimit
from memdiag.reports.limit import compose, kubernetes
from memdiag.reports.limit.chart import limit_chart
from memdiag.reports.limit.rows import trial_table
from memdiag.reports.limit.sentences import limit_headline, suggestion_reason
from memdiag.reports.page import Plotly, page
from memdiag.reports.text import plain


def render(limit: MemoryLimit, *, plotly: Plotly = "inline") -> bytes:
    """Return the page for `limit`."""
    chart = limit_chart(limit)
    return page(
        "limit.html.j2",
        ("limit.js",),
        {
            "answer": limit_headline(limit),
            "suggestion": suggestion_reason(limit),
            "kubernetes": kubernetes(limit),
            "compose": compose(limit),
            "has_chart": bool(chart.x or chart.failed),
            "trials": trial_table(limit),
            "notes": tuple(map(plain, limit.notes)),
        },
        charts={"limit": asdict(chart)},
        record=codec.encode(limit),
        record_name="limit",
        record_kind="record",
        plotly=plotly,
    )
