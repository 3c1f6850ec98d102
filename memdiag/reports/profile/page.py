"""The page of a profile: timeline, phases, owners, copies, findings, facts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from memdiag.records import codec
from memdiag.records.profile import Profile
from memdiag.reports.budget import verdict
from memdiag.reports.findings import finding_text, profile_summary, rule_documentation
from memdiag.reports.page import page
from memdiag.reports.profile.advice import profile_advice
from memdiag.reports.profile.facts import (
    environment_facts,
    input_table,
    model_facts,
    sampling_facts,
    session_facts,
)
from memdiag.reports.profile.generation import (
    GENERATION_HEADING,
    generation_sentences,
    generation_table,
)
from memdiag.reports.profile.headline import profile_headline
from memdiag.reports.profile.phases import (
    phase_table,
    run_sentence,
    runs_summary,
    span_row,
    span_rows,
    span_table,
)
from memdiag.reports.profile.run_peak import (
    run_peak_sentences,
    run_peak_table,
)
from memdiag.reports.profile.timeline import limits, timeline
from memdiag.reports.text import plain
from memdiag.reports.xray import PageXray, page_xray
from memdiag.units import format_duration

_MAX_SPANS_SHOWN = 8
_MAX_SPANS_LISTED = 500
_MAX_FINDINGS = 100
_MAX_EARLIER_COPY_BYTES = 200_000  # of all moments before the steady state together


def render(profile: Profile) -> bytes:
    """Return the page for `profile`, below 8 MB whatever the size of the record."""
    answer = profile_headline(profile)
    spans = span_rows(profile)
    xrays = _xrays(profile)
    findings = profile.findings[:_MAX_FINDINGS]
    values = {
        "answer": answer,
        "advice": profile_advice(profile),
        "verdict": verdict(profile.judgement) if profile.judgement else "",
        "has_timeline": bool(profile.samples.t_s or profile.spans),
        "outcome": profile.outcome,
        "phases": phase_table(profile),
        "spans": span_table(spans[:_MAX_SPANS_SHOWN]),
        "more_spans": span_table(spans[_MAX_SPANS_SHOWN:_MAX_SPANS_LISTED]),
        "unlisted_spans": max(0, len(spans) - _MAX_SPANS_LISTED),
        "runs": runs_summary(profile),
        "run_count": len(profile.runs),
        "generation": generation_sentences(profile),
        "contexts": generation_table(profile),
        "contexts_heading": GENERATION_HEADING,
        "run_peak": run_peak_sentences(profile),
        "live": run_peak_table(profile),
        "xrays": xrays,
        "findings": [finding_text(finding) for finding in findings],
        "rules": {finding.name: rule_documentation(finding.name) for finding in findings},
        "findings_summary": profile_summary(profile) if profile.findings else "",
        "unlisted_findings": max(0, len(profile.findings) - _MAX_FINDINGS),
        "inputs": input_table(profile),
        "facts": (
            ("Model", model_facts(profile)),
            ("Session", session_facts(profile)),
            ("Environment", environment_facts(profile)),
            ("Sampling", sampling_facts(profile)),
        ),
        "notes": tuple(map(plain, profile.notes)),
        "command": shlex.join(map(plain, profile.command)),
    }
    return page(
        "profile.html.j2",
        ("timeline.js", "owners.js"),
        values,
        charts=_charts(profile, xrays),
        record=codec.encode(profile),
        record_name="profile",
        record_kind="profile",
    )


def _xrays(profile: Profile) -> tuple[PageXray, ...]:
    """Return the X-rays for the page, the X-ray of the steady state first."""
    steady, earlier = profile.attribution, profile.phase_attributions
    trimmed = profile.allocator_retained_bytes or 0
    last = "steady" if profile.generation is None else "after the last step"
    xrays = [page_xray(last, steady, trimmed_bytes=trimmed)] if steady else []
    xrays += [
        page_xray(
            f"end of {xray.phase}",
            xray.attribution,
            max_rows=20,
            max_copy_bytes=_MAX_EARLIER_COPY_BYTES // len(earlier),
            max_tiles=40,
        )
        for xray in earlier
    ]
    return tuple(xrays)


def _charts(profile: Profile, xrays: Sequence[PageXray]) -> dict[str, Any]:
    """Return the data of the page's charts, as columns."""
    line = timeline(profile)
    runs = [(number, run, run.end_s) for number, run in enumerate(profile.runs, start=1)]
    timed = [(number, run, end_s) for number, run, end_s in runs if end_s is not None]
    base = profile.baseline_rss_bytes
    generation, prefill = profile.generation, profile.phase("prefill")
    before = 0 if generation is None else generation.prefill_tokens
    # With a generation growth since the prompt: the cache is small beside the weights.
    since = base if prefill is None else prefill.end.rss_bytes
    return {
        "timeline": {
            "t": line.t_s,
            "rss": line.rss_bytes,
            "anonymous": line.anonymous_bytes,
            "file": line.file_bytes,
            "shared": line.shared_bytes,
            "baseline": line.baseline_bytes,
            "weights": line.weight_bytes,
            "start": line.start_s,
            "end": line.end_s,
            "top": line.top_bytes,
            "bands": [asdict(band) for band in line.bands],
            "peaks": [asdict(peak) for peak in line.peaks],
            "limits": [asdict(limit) for limit in limits(profile)],
        },
        "spans": [
            {
                "title": row.title,
                "phase": row.phase,
                "start": span.start_s,
                "end": span.end_s,
                "growth": row.peak_growth_bytes,
                "sentence": row.sentence,
                "duration": format_duration(row.duration_s),
            }
            for span in profile.spans
            for row in [span_row(span)]
        ],
        "xrays": [xray.charts for xray in xrays],
        "runs": {
            "first": before + 1,
            "unit": "run" if generation is None else "token",
            "axis": "run" if generation is None else "tokens in the context",
            "relative": "baseline" if generation is None else "the end of the prompt",
            "cache": []
            if generation is None
            else [generation.cache.bytes_at(number) for number in range(1, len(profile.runs) + 1)],
            "latency": [run.latency_s for run in profile.runs],
            "rss": [run.rss_bytes - since for run in profile.runs],
            "start": [end_s - run.latency_s for _, run, end_s in timed],
            "end": [end_s for _, _, end_s in timed],
            "sentence": [run_sentence(number, run) for number, run, _ in timed],
        },
    }
