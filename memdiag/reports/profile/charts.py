"""What scripts draw on the page of a profile: the timeline, the runs, the X-rays."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from memdiag.records.profile import Profile
from memdiag.reports.profile.phases import run_sentence, span_row
from memdiag.reports.profile.timeline import budget_limits, profile_timeline
from memdiag.reports.xray import PageXray, page_xray
from memdiag.units import format_duration

_MAX_EARLIER_COPY_BYTES = 200_000  # of all moments before the steady state together


def page_xrays(profile: Profile) -> tuple[PageXray, ...]:
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


def timeline_data(profile: Profile) -> dict[str, Any]:
    """Return the data of the timeline and of the chart of the runs, as columns."""
    line = profile_timeline(profile)
    runs = [(number, run, run.end_s) for number, run in enumerate(profile.runs, start=1)]
    timed = [(number, run, end_s) for number, run, end_s in runs if end_s is not None]
    base = profile.baseline_rss_bytes
    generation, prefill = profile.generation, profile.phase("prefill")
    before = 0 if generation is None else generation.prefill_tokens
    # With a generation growth since the prompt: the cache is small next to the weights.
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
            "limits": [asdict(limit) for limit in budget_limits(profile)],
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
