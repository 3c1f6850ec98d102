"""The report as one self-contained page: it asks the network for nothing, now or years later."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from memdiag.records.finding import Finding
from memdiag.records.profile import Profile
from memdiag.reports import drawing_svg, json_file
from memdiag.reports.page import Plotly, page
from memdiag.reports.views import (
    facts,
    findings,
    glance,
    headline,
    judgement,
    limits,
    phase_table,
    rule_text,
    runs,
    span_table,
    timeline,
    xrays,
)
from memdiag.reports.views.text import plain
from memdiag.reports.views.xrays import Xray

FORMAT = "html"
FILE_NAME = "report.html"

_SPANS_SHOWN = 8
_SPANS_LISTED = 500
_FINDINGS_LISTED = 100
_FINDINGS_DRAWN = 20
_SCRIPTS = ("report.js", "sorting.js", "owners.js", "addresses.js")


def render(profile: Profile, *, plotly: Plotly = "inline") -> bytes:
    """Return the page for `profile`, below 8 MB whatever the record's size.

    Raises:
        ReportError: the record holds what no page can show (see `json_file.render`).
    """
    spans = span_table.build(profile)
    taken = xrays.build(profile)
    listed = profile.findings[:_FINDINGS_LISTED]
    values = {
        "answer": headline.build(profile),
        "glance": glance.build(profile),
        "verdict": judgement.verdict(profile.judgement) if profile.judgement else "",
        "drawable": bool(profile.samples.t_s or profile.spans),
        "outcome": profile.outcome,
        "bars": _bars(profile),
        "phases": phase_table.build(profile),
        "spans": spans[:_SPANS_SHOWN],
        "more_spans": spans[_SPANS_SHOWN:_SPANS_LISTED],
        "unlisted_spans": max(0, len(spans) - _SPANS_LISTED),
        "runs": runs.build(profile),
        "xrays": taken,
        "findings": [findings.build(one) for one in listed],
        "drawings": [_drawings(one) for one in listed[:_FINDINGS_DRAWN]],
        "rules": {one.name: rule_text.build(one.name) for one in listed},
        "findings_summary": findings.profile_summary(profile) if profile.findings else "",
        "unlisted_findings": max(0, len(profile.findings) - _FINDINGS_LISTED),
        "inputs": facts.inputs(profile),
        "facts": (
            ("Model", facts.model(profile)),
            ("Session", facts.session(profile)),
            ("Environment", facts.environment(profile)),
            ("How it was watched", facts.sampling(profile)),
        ),
        "notes": facts.notes(profile),
        "command": shlex.join(map(plain, profile.command)),
    }
    return page(
        "report.html.j2",
        _SCRIPTS,
        values,
        charts=_charts(profile, taken),
        record=json_file.render(profile),
        record_name="profile",
        plotly=plotly,
    )


def _drawings(finding: Finding) -> list[tuple[str, str]]:
    """Return the drawing of `finding`, below what it is; none where nothing was drawn."""
    if finding.drawing is None:
        return []
    return [("In the model", drawing_svg.render(finding.drawing))]


def xray_chart(xray: Xray) -> dict[str, Any]:
    """Return the tiles, the strip and the copies of an X-ray, as columns."""
    return {
        "tiles": {
            "id": [one.id for one in xray.tiles],
            "parent": [one.parent for one in xray.tiles],
            "label": [one.label for one in xray.tiles],
            "bytes": [one.size_bytes for one in xray.tiles],
            "size": [one.size for one in xray.tiles],
            "kind": [one.kind for one in xray.tiles],
            "detail": [one.detail for one in xray.tiles],
        },
        "strip": [
            (one.resident_bytes, one.kind, one.idle, one.sentence, one.start)
            for one in (xray.strip.stretches if xray.strip else ())
        ],
        "copies": {
            "weights": xray.copies.weights,
            "variants": xray.copies.variants,
            "rows": xray.copies.rows,
        },
    }


def _charts(profile: Profile, taken: Sequence[Xray]) -> dict[str, Any]:
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
            "shared": view.shared_bytes,
            "baseline": view.baseline_bytes,
            "weights": view.weight_bytes,
            "start": view.start_s,
            "end": view.end_s,
            "top": view.top_bytes,
            "bands": [asdict(band) for band in view.bands],
            "peaks": [asdict(peak) for peak in view.peaks],
            "limits": [asdict(limit) for limit in limits.build(profile)],
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
        "xrays": [xray_chart(one) for one in taken],
        "runs": {
            "latency": run.latency_s,
            "rss": run.rss_above_bytes,
            "start": [moment.start_s for moment in run.moments],
            "end": [moment.end_s for moment in run.moments],
            "sentence": [moment.sentence for moment in run.moments],
        },
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
