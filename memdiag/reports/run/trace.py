"""The trace of a recorded program for ui.perfetto.dev, with onnxruntime's own profiles."""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from memdiag.errors import RecordError, UsageError
from memdiag.records.run import ProgramProcess, ProgramRun, ProgramSession
from memdiag.reports.run.names import model_names, process_name, session_name, shapes_text
from memdiag.reports.text import plain
from memdiag.reports.trace import (
    MAX_COUNTER_SAMPLES,
    TraceEvent,
    complete_slice,
    counter_value,
    encoded,
    instant,
    mebibytes,
    memory_counter,
    microseconds,
    slice_of,
    track_name,
)
from memdiag.thinning import thin
from memdiag.units import format_size

MAX_PROFILE_BYTES = 1 << 30
"""Size of a profile of onnxruntime that is merged."""

_MERGED_TID = 1 << 30
"""The first track of onnxruntime's own profiles: larger than the numbers of sessions, which are the
ids of their tracks."""

_XRAY_TID = _MERGED_TID - 1


def run_trace(run: ProgramRun, onnxruntime_profiles: Sequence[Path] = ()) -> bytes:
    """Return `run` as a trace: a track for each process and session, and memory.

    Args:
        run: the recording.
        onnxruntime_profiles: files that the program's sessions wrote themselves
            (``SessionOptions.enable_profiling``), to be merged.

    Raises:
        RecordError: a file cannot be read, or is no profile of onnxruntime.
        UsageError: a profile is not of a session of the recording.
    """
    events: list[TraceEvent] = []
    for process in run.processes:
        events.append(track_name("process_name", process.pid, 0, process_name(process, run)))
        events += memory_counter("memory, MiB", process.pid, process.samples, process.ended_s)
    if run.processes:
        events += _tree_counters(run, run.processes[0].pid)
    models = model_names(run)
    ends = {process.pid: _end_s(process, run) for process in run.processes}
    for session in run.sessions:
        name = session_name(session, models)
        events.append(track_name("thread_name", session.pid, session.number, name))
        events += _session_slices(session, name, ends.get(session.pid, run.duration_s))
    events += _xray_slices(run)
    pids = {session.number: session.pid for session in run.sessions}
    for peak in run.peaks:
        if peak.session in pids:
            size = format_size(peak.peak_rss_bytes)
            track = pids[peak.session], peak.session
            arguments = {
                "peak_rss_bytes": peak.peak_rss_bytes,
                "input_shapes": shapes_text(peak.shapes),
            }
            events.append(instant(f"peak raised to {size}", track, peak.t_s, arguments))
    track_ids = itertools.count(_MERGED_TID)
    for path in onnxruntime_profiles:
        events += _merged(path, run, track_ids)
    return encoded(events)


def _end_s(process: ProgramProcess, run: ProgramRun) -> float:
    return run.duration_s if process.ended_s is None else process.ended_s


def _session_slices(
    session: ProgramSession, name: str, process_end_s: float
) -> Iterator[TraceEvent]:
    """Yield the life of `session`, its creation and first run, and the phases in them."""
    times = session.phase_times
    creation = [time for time in times if time.phase != "first_run"]
    created_s = min((session.created_s, *(time.start_s for time in times)))
    ready_s = max((created_s + (session.creation_s or 0), *(time.end_s for time in creation)))
    end_s = process_end_s if session.released_s is None else session.released_s
    if session.error is not None:
        end_s = ready_s
    end_s = max((end_s, ready_s, *(time.end_s for time in times)))
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
        name, "session", track, microseconds(created_s), microseconds(end_s), arguments
    )
    yield complete_slice(
        "creation", "creation", track, microseconds(created_s), microseconds(ready_s), {}
    )
    peaks = {phase.name: phase for phase in session.phases}
    for time in times:
        phase = peaks.get(time.phase)
        of_phase = {}
        if phase is not None:
            of_phase = {
                "peak_rss_bytes_of_phase": phase.peak_rss_bytes,
                "peak_kind": phase.peak_kind,
            }
        yield slice_of(time.phase, "phase", track, time, of_phase)


def _xray_slices(run: ProgramRun) -> Iterator[TraceEvent]:
    """Yield the times in which processes waited for X-rays at their end."""
    for xray in run.xrays:
        if xray.reason == "end" and xray.duration_s is not None:
            track = xray.pid, _XRAY_TID
            yield track_name("thread_name", *track, "X-ray at the end")
            start, end = microseconds(xray.t_s), microseconds(xray.t_s + xray.duration_s)
            yield complete_slice("waiting for the X-ray", "xray", track, start, end, {})


def _tree_counters(run: ProgramRun, pid: int) -> Iterator[TraceEvent]:
    """Yield the memory of all processes together, as counters of the first one."""
    samples = run.samples
    for name, times, sizes in (
        ("RSS of all processes, MiB", samples.t_s, samples.rss_bytes),
        ("PSS of all processes, MiB", samples.proportional_t_s, samples.pss_bytes),
    ):
        for i in thin(sizes, MAX_COUNTER_SAMPLES):
            yield counter_value(name, pid, times[i], {"MiB": mebibytes(sizes[i])})


def _merged(path: Path, run: ProgramRun, track_ids: Iterator[int]) -> Iterator[TraceEvent]:
    """Yield the events of one of onnxruntime's own profiles, in the time of the recording.

    Its times are relative to the start of the profiling, which is part of the creation of the
    session. It belongs to the session of the same process whose creation lasted as long, and whose
    first run ended as long after it.

    Raises:
        RecordError: the file cannot be read, or is no profile of onnxruntime.
        UsageError: it is not of a session of the recording.
    """
    events = _read_profile(path)
    pids = {event["pid"] for event in events}
    sessions = [s for s in run.sessions if s.pid in pids and s.creation_s is not None]
    profiled = [session for session in sessions if "enable_profiling" in session.options]
    if not sessions:
        raise UsageError(
            f"{path}: its process {min(pids)} is not a process with sessions of this recording."
            " Give the profiles that the recorded program wrote."
        )
    ready = _first_end(events, lambda event: event["name"] == "session_initialization")
    first_run = _first_end(events, lambda event: event["name"] == "model_run")

    def difference(session: ProgramSession) -> float:
        found = abs((session.creation_s or 0.0) - (ready or 0.0))
        if first_run is not None and session.first_run_s is not None:
            found += abs(session.first_run_s - session.created_s - first_run)
        return found + (first_run is None) * (session.first_run_s is not None)

    session = min(profiled or sessions, key=difference)
    start_s = session.created_s
    if ready is not None:
        start_s += max(0.0, (session.creation_s or 0.0) - ready)
    # Two profiles have a thread in common if it runs both sessions. Their times differ from the
    # recording's by unknown amounts, so that in one track their slices would overlap.
    tracks: dict[str, int] = {}
    for event in events:
        thread = str(event.get("tid", 0))
        if thread not in tracks:
            tracks[thread] = next(track_ids)
            name = f"onnxruntime's profile of session {session.number}, thread {plain(thread)}"
            yield track_name("thread_name", session.pid, tracks[thread], name)
        shifted = {**event, "ts": microseconds(start_s) + event["ts"], "pid": session.pid}
        yield {**shifted, "tid": tracks[thread]}


def _first_end(
    events: Sequence[TraceEvent], is_wanted: Callable[[TraceEvent], bool]
) -> float | None:
    """Return the end of the first event that is wanted, in seconds; None without one."""
    return next((1e-6 * (e["ts"] + e.get("dur", 0)) for e in events if is_wanted(e)), None)


def _read_profile(path: Path) -> list[TraceEvent]:
    try:
        if path.stat().st_size > MAX_PROFILE_BYTES:
            raise RecordError(f"{path}: larger than {format_size(MAX_PROFILE_BYTES)}.")
        events = json.loads(path.read_bytes())
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror}). Check the path.") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: not a profile of onnxruntime: {error}.") from error
    if not isinstance(events, list) or not events or not all(map(_is_event, events)):
        raise RecordError(
            f"{path}: not a profile of onnxruntime. Give a file that a session with"
            " SessionOptions.enable_profiling wrote."
        )
    return events


def _is_event(event: Any) -> bool:
    return (
        isinstance(event, dict)
        and all(isinstance(event.get(field), int) for field in ("pid", "ts"))
        and isinstance(event.get("name"), str)
        and isinstance(event.get("dur", 0), int)
        and isinstance(event.get("ph"), str)
    )
