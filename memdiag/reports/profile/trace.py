"""The trace of a profile for ui.perfetto.dev: phases with their steps, runs, memory, peaks."""

from memdiag.records.profile import Profile
from memdiag.reports.profile.timeline import profile_timeline
from memdiag.reports.text import model_file_name, plain
from memdiag.reports.trace import (
    TraceEvent,
    complete_slice,
    encoded_trace,
    instant_event,
    interval_slice,
    memory_counter,
    trace_microseconds,
    track_name,
)
from memdiag.units import format_size

_PROFILE_PID = 1
_PHASES_TID, _RUNS_TID = 1, 2


def profile_trace(profile: Profile) -> bytes:
    """Return `profile` as a trace: phases with their steps, runs, memory, and peaks."""
    timeline = profile_timeline(profile)
    events = [
        track_name("process_name", _PROFILE_PID, 0, model_file_name(profile.model.path)),
        track_name("thread_name", _PROFILE_PID, _PHASES_TID, "phases and steps"),
    ]
    events += memory_counter("memory, MiB", _PROFILE_PID, profile.samples)
    for band in timeline.bands:
        events.append(interval_slice(band.phase, "phase", (_PROFILE_PID, _PHASES_TID), band))
    for span in profile.spans:
        arguments: TraceEvent = {
            "net_rss_bytes": span.net_rss_bytes,
            "peak_rss_bytes": span.peak_rss_bytes,
            "peak_kind": span.peak_kind,
        }
        name = plain(span.name)
        events.append(interval_slice(name, "step", (_PROFILE_PID, _PHASES_TID), span, arguments))
    for peak in timeline.peaks:
        text = f"peak of {peak.phase}: {format_size(peak.rss_bytes)}"
        arguments = {"rss_bytes": peak.rss_bytes, "kind": peak.kind}
        events.append(instant_event(text, (_PROFILE_PID, _PHASES_TID), peak.t_s, arguments))
    runs = [(run, run.end_s) for run in profile.runs if run.end_s is not None]
    if runs:
        events.append(track_name("thread_name", _PROFILE_PID, _RUNS_TID, "runs"))
    end_us = 0
    for number, (run, end_s) in enumerate(runs, start=1):
        start_us = max(end_us, trace_microseconds(end_s - run.latency_s))
        end_us = max(start_us, trace_microseconds(end_s))
        arguments = {"rss_bytes": run.rss_bytes, "peak_rss_bytes": run.peak_rss_bytes}
        track = _PROFILE_PID, _RUNS_TID
        events.append(complete_slice(f"run {number}", "run", track, start_us, end_us, arguments))
    return encoded_trace(events)
