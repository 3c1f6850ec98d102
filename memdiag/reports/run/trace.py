"""The trace of a recorded program for ui.perfetto.dev."""

from collections.abc import Iterator

from memdiag.records.run import ProgramProcess, ProgramRun, ProgramSession
from memdiag.reports.run.names import model_names, process_name, session_name, shapes_text
from memdiag.reports.text import plain
from memdiag.reports.trace import (
    MAX_COUNTER_SAMPLES,
    TraceEvent,
    complete_slice,
    counter_mebibytes,
    counter_value,
    encoded_trace,
    instant_event,
    interval_slice,
    memory_counter,
    trace_microseconds,
    track_name,
)
from memdiag.thinning import thinned_indices
from memdiag.units import format_size

_XRAY_TID = 1 << 30
"""A track number larger than those of sessions, which are their tracks."""


def run_trace(recording: ProgramRun) -> bytes:
    """Return `recording` as a trace: a track for each process and session, and memory."""
    events: list[TraceEvent] = []
    for process in recording.processes:
        events.append(track_name("process_name", process.pid, 0, process_name(process, recording)))
        events += memory_counter("memory, MiB", process.pid, process.samples, process.ended_s)
    if recording.processes:
        events += _tree_counters(recording, recording.processes[0].pid)
    models = model_names(recording)
    end_by_pid = {
        process.pid: _process_end_s(process, recording) for process in recording.processes
    }
    for session in recording.sessions:
        name = session_name(session, models)
        events.append(track_name("thread_name", session.pid, session.number, name))
        events += _session_slices(session, name, end_by_pid.get(session.pid, recording.duration_s))
    events += _xray_slices(recording)
    pids = {session.number: session.pid for session in recording.sessions}
    for peak in recording.peaks:
        if peak.session in pids:
            size = format_size(peak.peak_rss_bytes)
            track = pids[peak.session], peak.session
            arguments = {
                "peak_rss_bytes": peak.peak_rss_bytes,
                "input_shapes": shapes_text(peak.shapes),
            }
            events.append(instant_event(f"peak raised to {size}", track, peak.t_s, arguments))
    return encoded_trace(events)


def _process_end_s(process: ProgramProcess, recording: ProgramRun) -> float:
    return recording.duration_s if process.ended_s is None else process.ended_s


def _session_slices(
    session: ProgramSession, name: str, process_end_s: float
) -> Iterator[TraceEvent]:
    """Yield the life of `session`, its creation and first run, and the phases in them."""
    intervals = session.phase_times
    creation = [interval for interval in intervals if interval.phase != "first_run"]
    created_s = min((session.created_s, *(interval.start_s for interval in intervals)))
    ready_s = max(
        (created_s + (session.creation_s or 0), *(interval.end_s for interval in creation))
    )
    end_s = process_end_s if session.released_s is None else session.released_s
    if session.error is not None:
        end_s = ready_s
    end_s = max((end_s, ready_s, *(interval.end_s for interval in intervals)))
    track = session.pid, session.number
    arguments = {
        "model": plain(session.model.path or "bytes"),
        "created_at": plain(session.created_at),
        "options": {plain(key): plain(value) for key, value in session.options.items()},
        "providers": list(map(plain, session.providers)),
        "runs": session.run_count,
    }
    if session.called_from is not None:
        arguments["called_from"] = plain(session.called_from)
    if session.error is not None:
        arguments["error"] = plain(session.error)
    yield complete_slice(
        name, "session", track, trace_microseconds(created_s), trace_microseconds(end_s), arguments
    )
    yield complete_slice(
        "creation",
        "creation",
        track,
        trace_microseconds(created_s),
        trace_microseconds(ready_s),
        {},
    )
    phase_by_name = {phase.name: phase for phase in session.phases}
    for interval in intervals:
        phase = phase_by_name.get(interval.phase)
        phase_arguments = {}
        if phase is not None:
            phase_arguments = {
                "peak_rss_bytes_of_phase": phase.peak_rss_bytes,
                "peak_kind": phase.peak_kind,
            }
        yield interval_slice(interval.phase, "phase", track, interval, phase_arguments)


def _xray_slices(recording: ProgramRun) -> Iterator[TraceEvent]:
    """Yield the times in which processes waited for X-rays at their end."""
    for xray in recording.xrays:
        if xray.reason == "end":
            track = xray.pid, _XRAY_TID
            yield track_name("thread_name", *track, "X-ray at the end")
            start, end = (
                trace_microseconds(xray.t_s),
                trace_microseconds(xray.t_s + xray.duration_s),
            )
            yield complete_slice("waiting for the X-ray", "xray", track, start, end, {})


def _tree_counters(recording: ProgramRun, pid: int) -> Iterator[TraceEvent]:
    """Yield the memory of all processes together, as counters of the first one."""
    samples = recording.samples
    for name, times, sizes in (
        ("RSS of all processes, MiB", samples.t_s, samples.rss_bytes),
        ("PSS of all processes, MiB", samples.proportional_t_s, samples.pss_bytes),
    ):
        for index in thinned_indices(sizes, MAX_COUNTER_SAMPLES):
            yield counter_value(name, pid, times[index], {"MiB": counter_mebibytes(sizes[index])})
