"""What scripts draw on the page of a profile: the timeline, the runs, the X-rays."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from memdiag.records.profile import Profile
from memdiag.reports.profile.phases import run_sentence, span_row
from memdiag.reports.profile.timeline import budget_limits, profile_timeline
from memdiag.reports.xray import PageXray, page_xray
from memdiag.units import format_duration

_MAX_EARLIER_COPY_BYTES = 200_000  # of all X-rays before the steady state together


def page_xrays(profile: Profile) -> tuple[PageXray, ...]:
    """Return the X-rays for the page, the X-ray of the steady state first."""
    steady_attribution, phase_xrays = profile.attribution, profile.phase_attributions
    trimmed_bytes = profile.allocator_retained_bytes or 0
    steady_label = "steady" if profile.generation is None else "after the last step"
    xrays = (
        [page_xray(steady_label, steady_attribution, trimmed_bytes=trimmed_bytes)]
        if steady_attribution
        else []
    )
    xrays += [
        page_xray(
            f"end of {xray.phase}",
            xray.attribution,
            max_rows=20,
            max_copy_bytes=_MAX_EARLIER_COPY_BYTES // len(phase_xrays),
            max_tiles=40,
        )
        for xray in phase_xrays
    ]
    return tuple(xrays)


def timeline_data(profile: Profile) -> dict[str, Any]:
    """Return the data of the timeline and of the chart of the runs, as columns."""
    timeline = profile_timeline(profile)
    runs = [(number, run, run.end_s) for number, run in enumerate(profile.runs, start=1)]
    timed_runs = [(number, run, end_s) for number, run, end_s in runs if end_s is not None]
    baseline_bytes = profile.baseline_rss_bytes
    generation, prefill = profile.generation, profile.phase("prefill")
    prompt_tokens = 0 if generation is None else generation.prefill_tokens
    # A generation shows growth since the prompt, because the cache is small next to the weights.
    reference_bytes = baseline_bytes if prefill is None else prefill.end.rss_bytes
    return {
        "timeline": {
            "t": timeline.t_s,
            "rss": timeline.rss_bytes,
            "anonymous": timeline.anonymous_bytes,
            "file": timeline.file_bytes,
            "shared": timeline.shared_bytes,
            "baseline": timeline.baseline_bytes,
            "weights": timeline.weight_bytes,
            "start": timeline.start_s,
            "end": timeline.end_s,
            "top": timeline.top_bytes,
            "bands": [asdict(band) for band in timeline.bands],
            "peaks": [asdict(peak) for peak in timeline.peaks],
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
            "first": prompt_tokens + 1,
            "unit": "run" if generation is None else "token",
            "axis": "run" if generation is None else "tokens in the context",
            "relative": "baseline" if generation is None else "the end of the prompt",
            "cache": []
            if generation is None
            else [generation.cache.bytes_at(number) for number in range(1, len(profile.runs) + 1)],
            "latency": [run.latency_s for run in profile.runs],
            "rss": [run.rss_bytes - reference_bytes for run in profile.runs],
            "start": [end_s - run.latency_s for _, run, end_s in timed_runs],
            "end": [end_s for _, _, end_s in timed_runs],
            "sentence": [run_sentence(number, run) for number, run, _ in timed_runs],
        },
    }
