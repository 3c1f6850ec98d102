"""Traces for ui.perfetto.dev: recorded programs and profiles in the Trace Event Format.

The format is documented in Google's "Trace Event Format". Its events here are complete slices
(``X``), counters (``C``), instants (``i``) and names (``M``). Slices of a thread nest: each track
has slices that contain each other or do not overlap. Times are whole microseconds.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from memdiag.errors import RecordError, UsageError
from memdiag.records.profile import Profile, Samples
from memdiag.records.run import ProgramProcess, ProgramRun, ProgramSession
from memdiag.reports.profile.timeline import thin, timeline
from memdiag.reports.run.names import model_names, process_name, session_name, shapes_text
from memdiag.reports.text import model_file, plain
from memdiag.units import MIB, format_size

Event = dict[str, Any]

FILE_NAME: Final = "trace.json"

MAX_SAMPLES = 20_000
"""Samples of a counter; of more, the largest and smallest ones are kept."""

MAX_PROFILE_BYTES = 1 << 30
"""Size of a profile of onnxruntime that is merged."""

_PROFILE_PID = 1
_PHASES_TID, _RUNS_TID = 1, 2
_MERGED_TID = 1 << 30
"""The first track of onnxruntime's own profiles: larger than the numbers of sessions, which are the
ids of their tracks."""


def profile_trace(profile: Profile) -> bytes:
    """Return `profile` as a trace: phases with their steps, runs, memory, and peaks."""
    line = timeline(profile)
    events = [
        _name("process_name", _PROFILE_PID, 0, model_file(profile.model.path)),
        _name("thread_name", _PROFILE_PID, _PHASES_TID, "phases and steps"),
    ]
    events += _counter("memory, MiB", _PROFILE_PID, profile.samples)
    for band in line.bands:
        events.append(_slice(band.phase, "phase", (_PROFILE_PID, _PHASES_TID), band))
    for span in profile.spans:
        arguments: Event = {
            "net_rss_bytes": span.net_rss_bytes,
            "peak_rss_bytes": span.peak_rss_bytes,
            "peak_kind": span.peak_kind,
        }
        name = plain(span.name)
        events.append(_slice(name, "step", (_PROFILE_PID, _PHASES_TID), span, arguments))
    for peak in line.peaks:
        text = f"peak of {peak.phase}: {format_size(peak.rss_bytes)}"
        arguments = {"rss_bytes": peak.rss_bytes, "kind": peak.kind}
        events.append(_instant(text, (_PROFILE_PID, _PHASES_TID), peak.t_s, arguments))
    runs = [(run, run.end_s) for run in profile.runs if run.end_s is not None]
    if runs:
        events.append(_name("thread_name", _PROFILE_PID, _RUNS_TID, "runs"))
    ended = 0
    for number, (run, end_s) in enumerate(runs, start=1):
        start = max(ended, _micros(end_s - run.latency_s))
        ended = max(start, _micros(end_s))
        arguments = {"rss_bytes": run.rss_bytes, "peak_rss_bytes": run.peak_rss_bytes}
        track = _PROFILE_PID, _RUNS_TID
        events.append(_complete(f"run {number}", "run", track, start, ended, arguments))
    return _encoded(events)


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
    events: list[Event] = []
    for process in run.processes:
        events.append(_name("process_name", process.pid, 0, process_name(process, run)))
        events += _counter("memory, MiB", process.pid, process.samples, process.ended_s)
    if run.processes:
        events += _tree_counters(run, run.processes[0].pid)
    models = model_names(run)
    ends = {process.pid: _end_s(process, run) for process in run.processes}
    for session in run.sessions:
        name = session_name(session, models)
        events.append(_name("thread_name", session.pid, session.number, name))
        events += _session_slices(session, name, ends.get(session.pid, run.duration_s))
    pids = {session.number: session.pid for session in run.sessions}
    for peak in run.peaks:
        if peak.session in pids:
            size = format_size(peak.peak_rss_bytes)
            track = pids[peak.session], peak.session
            arguments = {
                "peak_rss_bytes": peak.peak_rss_bytes,
                "input_shapes": shapes_text(peak.shapes),
            }
            events.append(_instant(f"peak raised to {size}", track, peak.t_s, arguments))
    track_ids = itertools.count(_MERGED_TID)
    for path in onnxruntime_profiles:
        events += _merged(path, run, track_ids)
    return _encoded(events)


def _end_s(process: ProgramProcess, run: ProgramRun) -> float:
    return run.duration_s if process.ended_s is None else process.ended_s


def _session_slices(session: ProgramSession, name: str, process_end_s: float) -> Iterator[Event]:
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
    if session.error is not None:
        arguments["error"] = plain(session.error)
    yield _complete(name, "session", track, _micros(created_s), _micros(end_s), arguments)
    yield _complete("creation", "creation", track, _micros(created_s), _micros(ready_s), {})
    peaks = {phase.name: phase for phase in session.phases}
    for time in times:
        phase = peaks.get(time.phase)
        of_phase = {}
        if phase is not None:
            of_phase = {
                "peak_rss_bytes_of_phase": phase.peak_rss_bytes,
                "peak_kind": phase.peak_kind,
            }
        yield _slice(time.phase, "phase", track, time, of_phase)


def _tree_counters(run: ProgramRun, pid: int) -> Iterator[Event]:
    """Yield the memory of all processes together, as counters of the first one."""
    samples = run.samples
    for name, times, sizes in (
        ("RSS of all processes, MiB", samples.t_s, samples.rss_bytes),
        ("PSS of all processes, MiB", samples.proportional_t_s, samples.pss_bytes),
    ):
        for i in thin(sizes, MAX_SAMPLES):
            yield _value(name, pid, times[i], {"MiB": _mebibytes(sizes[i])})


def _counter(name: str, pid: int, samples: Samples, ended_s: float | None = None) -> list[Event]:
    """Return the resident set of a process, as anonymous and file-backed memory if known."""
    events = []
    split = all(size is not None for size in (*samples.anonymous_bytes, *samples.file_bytes))
    values: dict[str, float] = {}
    for i in thin(samples.rss_bytes, MAX_SAMPLES):
        if split:
            values = {
                "anonymous": _mebibytes(samples.anonymous_bytes[i] or 0),
                "file-backed": _mebibytes(samples.file_bytes[i] or 0),
            }
        else:
            values = {"resident": _mebibytes(samples.rss_bytes[i])}
        events.append(_value(name, pid, samples.t_s[i], values))
    if ended_s is not None and events:
        events.append(_value(name, pid, ended_s, dict.fromkeys(values, 0.0)))
    return events


def _merged(path: Path, run: ProgramRun, track_ids: Iterator[int]) -> Iterator[Event]:
    """Yield the events of one of onnxruntime's own profiles, in the time of the recording.

    Its times are relative to the start of the profiling, which is part of the creation of the
    session. The session is that of the same process whose creation lasted as long, and whose first
    run ended as long after it.

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
    # Two profiles have a thread in common if it runs both sessions. Their times differ from those of
    # the recording by unknown amounts, so that in one track their slices would overlap.
    tracks: dict[str, int] = {}
    for event in events:
        thread = str(event.get("tid", 0))
        if thread not in tracks:
            tracks[thread] = next(track_ids)
            name = f"onnxruntime's profile of session {session.number}, thread {plain(thread)}"
            yield _name("thread_name", session.pid, tracks[thread], name)
        shifted = {**event, "ts": _micros(start_s) + event["ts"], "pid": session.pid}
        yield {**shifted, "tid": tracks[thread]}


def _first_end(events: Sequence[Event], is_wanted: Callable[[Event], bool]) -> float | None:
    """Return the end of the first event that is wanted, in seconds; None without one."""
    return next((1e-6 * (e["ts"] + e.get("dur", 0)) for e in events if is_wanted(e)), None)


def _read_profile(path: Path) -> list[Event]:
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


def _micros(seconds: float) -> int:
    return max(0, round(seconds * 1e6))


def _mebibytes(size: int) -> float:
    return round(size / MIB, 3)


def _name(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def _value(name: str, pid: int, t_s: float, values: Mapping[str, float]) -> Event:
    return {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": _micros(t_s), "args": values}


def _instant(name: str, track: tuple[int, int], t_s: float, arguments: Event) -> Event:
    pid, tid = track
    return {
        "ph": "i", "s": "t", "cat": "peak", "name": name, "pid": pid, "tid": tid,
        "ts": _micros(t_s), "args": arguments,
    }  # fmt: skip


def _slice(
    name: str, category: str, track: tuple[int, int], time: Any, arguments: Event | None = None
) -> Event:
    """Return the slice of anything with a `start_s` and an `end_s`."""
    start, end = _micros(time.start_s), _micros(time.end_s)
    return _complete(name, category, track, start, end, arguments or {})


def _complete(
    name: str, category: str, track: tuple[int, int], start: int, end: int, arguments: Event
) -> Event:
    pid, tid = track
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start,
        "dur": max(0, end - start), "args": arguments,
    }  # fmt: skip


def _encoded(events: list[Event]) -> bytes:
    """Return the file: names first, then by time, a slice before the slices in it."""
    events.sort(key=lambda event: (event["ph"] != "M", event["ts"], -event.get("dur", 0)))
    text = json.dumps(
        {"displayTimeUnit": "ms", "traceEvents": events}, ensure_ascii=True, separators=(",", ":")
    )
    return text.encode() + b"\n"
