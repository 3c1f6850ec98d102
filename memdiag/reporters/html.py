"""The report as one self-contained page: it asks the network for nothing, now or years later."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
from dataclasses import asdict
from importlib import resources
from typing import Any

from memdiag.records.profile import Profile
from memdiag.reporters import json_file
from memdiag.reporters.palette import DARK, LIGHT
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

_LARGEST_RECORD = 2_200_000  # bytes of JSON that are embedded as they are
_SPANS_SHOWN = 8
_SPANS_LISTED = 500
_WEIGHTS_LISTED = 300
_FINDINGS_LISTED = 100


def render(profile: Profile) -> bytes:
    """Return the page for `profile`, below 8 MB whatever the record's size.

    Raises:
        ReportError: the record holds what no page can show (see `json_file.render`).
    """
    plotly, script = _plotly(), _template("report.js")
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
        "light": asdict(LIGHT),
        "dark": asdict(DARK),
        "css": _template("report.css"),
        "plotly": plotly,
        "script": script,
        "script_hashes": " ".join(f"'sha256-{_sha256(text)}'" for text in (plotly, script)),
        "charts": _json(_charts(profile)),
        **_embedded(json_file.render(profile)),
    }
    text: str = _page().render(values)
    return text.encode()


def _charts(profile: Profile) -> dict[str, Any]:
    """Return what the script draws: columns and spans, and both palettes."""
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
        "themes": {"light": asdict(LIGHT), "dark": asdict(DARK)},
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


def _embedded(record: bytes) -> dict[str, Any]:
    """Return the record for the page: as JSON, compressed where it is long, or left out."""
    if len(record) <= _LARGEST_RECORD:
        return {"record": record.decode().replace("<", "\\u003c"), "record_encoding": "json"}
    packed = base64.b64encode(gzip.compress(record, mtime=0)).decode()
    if len(packed) <= _LARGEST_RECORD:
        return {"record": packed, "record_encoding": "gzip"}
    return {"record": "", "record_encoding": ""}


def _json(value: object) -> str:
    """Return `value` as JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _template(name: str) -> str:
    return (resources.files(__package__) / "templates" / name).read_text("utf-8")


@functools.cache
def _page() -> Any:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_template("report.html.j2"))


@functools.cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    # A browser reads every line end as a line feed, and the page's policy hashes what it reads.
    return str(get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")
