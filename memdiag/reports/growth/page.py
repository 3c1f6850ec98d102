"""The page of growth: charts over runs, owners, blocks that grew."""

from __future__ import annotations

from dataclasses import asdict

from memdiag.records import codec
from memdiag.records.growth import Growth
from memdiag.reports.growth.blocks import block_table
from memdiag.reports.growth.chart import growth_chart
from memdiag.reports.growth.headline import growth_headline, reload_line
from memdiag.reports.growth.owners import has_later_reading, owner_table
from memdiag.reports.page import Plotly, page
from memdiag.reports.text import plain


def render(growth: Growth, *, plotly: Plotly = "inline") -> bytes:
    """Return the page for `growth`."""
    chart = growth_chart(growth)
    return page(
        "growth.html.j2",
        ("growth.js",),
        {
            "answer": growth_headline(growth),
            "reloads": reload_line(growth),
            "is_bad": growth.is_leak_or_kept,
            "unit": growth.unit,
            "since": chart.since,
            "has_owners": bool(chart.layers),
            "has_steps": bool(chart.steps),
            "has_comparison": has_later_reading(growth),
            "owners": owner_table(growth),
            "blocks": block_table(growth),
            "notes": tuple(map(plain, growth.notes)),
        },
        charts={"growth": asdict(chart)},
        record=codec.encode(growth),
        record_name="growth",
        record_kind="record",
        plotly=plotly,
    )
