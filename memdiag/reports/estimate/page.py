"""The page of an estimate: the parts of each phase, tensors in memory, and the peak over sizes."""

from __future__ import annotations

from dataclasses import asdict

from memdiag.records import codec
from memdiag.records.estimate import Estimate
from memdiag.reports.estimate.chart import estimate_chart
from memdiag.reports.estimate.layout import layout_caption, layout_chart
from memdiag.reports.estimate.sentences import (
    calibration_lines,
    estimate_headline,
    fit_text,
    generation_lines,
    reduction_lines,
)
from memdiag.reports.estimate.tables import live_table, phase_table, point_table, term_table
from memdiag.reports.page import Plotly, page
from memdiag.reports.text import plain


def render(estimate: Estimate, *, plotly: Plotly = "inline") -> bytes:
    """Return the page for `estimate`."""
    chart = estimate_chart(estimate)
    return page(
        "estimate.html.j2",
        ("estimate.js", "layout.js"),
        {
            "answer": estimate_headline(estimate),
            "peak_phase": estimate.point.peak_phase,
            "phases": phase_table(estimate),
            "terms": term_table(estimate),
            "live": live_table(estimate.point),
            "layout": layout_caption(estimate.point.layout),
            "generation": tuple(generation_lines(estimate)),
            "reductions": tuple(reduction_lines(estimate)),
            "points": point_table(estimate),
            "sizes": chart.sizes,
            "fits": fit_text(estimate),
            "measured": tuple(calibration_lines(estimate)),
            "notes": tuple(map(plain, estimate.notes)),
        },
        charts={
            "estimate": asdict(chart),
            "layout": layout_chart(estimate.point.layout),
        },
        record=codec.encode(estimate),
        record_name="estimate",
        record_kind="record",
        plotly=plotly,
    )
