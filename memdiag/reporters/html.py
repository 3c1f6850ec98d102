"""The report as one self-contained page: it asks the network for nothing, now or years later."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from memdiag.records.profile import Profile
from memdiag.reporters import json_file
from memdiag.reporters.page import page
from memdiag.reporters.views import (
    attribution,
    copies_by_phase,
    facts,
    findings,
    headline,
    phase_table,
    runs,
    span_table,
    timeline,
)

FORMAT = "html"
FILE_NAME = "report.html"

_SPANS_SHOWN = 8
_SPANS_LISTED = 500
_WEIGHTS_LISTED = 300
_FINDINGS_LISTED = 100


def render(profile: Profile) -> bytes:
    """Return the page for `profile`, below 8 MB whatever the record's size.

    Raises:
        ReportError: the record holds what no page can show (see `json_file.render`).
    """
    spans = span_table.build(profile)
    owned = attribution.build(profile.attribution) if profile.attribution else None
    values = {
        "answer": headline.build(profile),
        "drawable": bool(profile.samples.t_s or profile.spans),
        "outcome": profile.outcome,
        "bars": _bars(profile),
        "phases": phase_table.build(profile),
        "spans": spans[:_SPANS_SHOWN],
        "more_spans": spans[_SPANS_SHOWN:_SPANS_LISTED],
        "unlisted_spans": max(0, len(spans) - _SPANS_LISTED),
        "runs": runs.build(profile),
        "owners": owned,
        "more_weights": attribution.rest(owned.weights[_WEIGHTS_LISTED:]) if owned else "",
        "copies_by_phase": copies_by_phase.build(profile),
        "weights_listed": _WEIGHTS_LISTED,
        "findings": [findings.build(one) for one in profile.findings[:_FINDINGS_LISTED]],
        "findings_summary": findings.summary(profile.findings) if profile.findings else "",
        "unlisted_findings": max(0, len(profile.findings) - _FINDINGS_LISTED),
        "inputs": facts.inputs(profile),
        "facts": (
            ("Model", facts.model(profile)),
            ("Session", facts.session(profile)),
            ("Environment", facts.environment(profile)),
            ("How it was watched", facts.sampling(profile)),
        ),
        "notes": facts.notes(profile),
    }
    return page(
        "report.html.j2",
        "report.js",
        values,
        charts=_charts(profile),
        record=json_file.render(profile),
        record_name="profile",
    )


def _charts(profile: Profile) -> dict[str, Any]:
    """Return what the script draws: columns and spans."""
    view = timeline.build(profile)
    run = runs.build(profile)
    rows = {index: span_table.row(span) for index, span in enumerate(profile.spans)}
    return {
        "timeline": {
            "t": view.t_s,
            "rss": view.rss_bytes,
            "anonymous": view.anonymous_bytes,
            "file": view.file_bytes,
            "baseline": view.baseline_bytes,
            "weights": view.weight_bytes,
            "start": view.start_s,
            "end": view.end_s,
            "top": view.top_bytes,
            "bands": [asdict(band) for band in view.bands],
            "peaks": [asdict(peak) for peak in view.peaks],
        },
        "spans": [
            {
                "title": row.title,
                "phase": row.phase,
                "start": profile.spans[index].start_s,
                "end": profile.spans[index].end_s,
                "growth": row.peak_growth_bytes,
                "sentence": row.sentence,
                "duration": row.duration,
            }
            for index, row in rows.items()
        ],
        "runs": {"latency": run.latency_s, "rss": run.rss_above_bytes},
    }


def _bars(profile: Profile) -> list[dict[str, Any]]:
    """Return the headline's figures with their bars' lengths in per cent of the longest."""
    figures = headline.build(profile).figures
    longest = max((figure.size_bytes for figure in figures), default=0)
    return [
        {"figure": figure, "percent": round(max(0, figure.size_bytes) / longest * 100, 2)}
        for figure in figures
        if longest > 0
    ]
