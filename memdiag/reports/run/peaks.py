"""The program's peak, and the largest rises of memory, which are different facts."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from memdiag.growth.growth_sentences import is_calibrator
from memdiag.records.phases import PhaseName
from memdiag.records.profile import Phase
from memdiag.records.run import HighWaterRun, ProgramRun, ProgramSession
from memdiag.reports.phase_table import SAMPLED_MARK
from memdiag.reports.run.names import model_names, number_ranges_text, session_name, shapes_text
from memdiag.runner.observer import MAX_COUNTER_ERROR_BYTES
from memdiag.units import counted, format_duration, format_size

_REPORT_TOLERANCE_S = 0.02  # between a sample and the report of a run
_MAX_ACTIVITIES = 2
_MAX_PROCESSES = 3
_NO_SESSION_CLAUSE = "while no session was being created or run"
_PHASE_WORDS: Mapping[PhaseName, str] = {"first_run": "the first run"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionActivity:
    """A creation, first run or run of a session at one moment.

    Attributes:
        text: such as ``the first run of session 2 (m.onnx) with x: 1×3``.
        short_text: the same without the model: ``the first run of session 2``.
        shapes: the shapes of the inputs, in words; empty if they are not known.
    """

    session: ProgramSession
    text: str
    short_text: str
    shapes: str = ""


def session_peak_bytes(session: ProgramSession) -> int:
    """Return the largest resident set in the creation and first run; 0 if it is not known."""
    phase = _highest_phase(session)
    if phase is None:
        return 0
    return _undivided_peak_bytes(session) or phase.peak_rss_bytes


def _undivided_peak_bytes(session: ProgramSession) -> int | None:
    """Return the peak of the creation if it is above those of its phases and the first run."""
    peak_bytes = session.creation_peak_rss_bytes
    highest_phase = _highest_phase(session)
    if peak_bytes is None or highest_phase is None:
        return None
    rise = peak_bytes - session.phases[0].start.rss_bytes
    return (
        peak_bytes
        if rise > _own_rise_bytes(session, highest_phase) + MAX_COUNTER_ERROR_BYTES
        else None
    )


def _highest_phase(session: ProgramSession) -> Phase | None:
    """Return the phase in which the session itself took most memory."""
    return max(session.phases, key=lambda phase: _own_rise_bytes(session, phase), default=None)


def _own_rise_bytes(session: ProgramSession, phase: Phase) -> int:
    """Return the bytes by which `phase` rose above the start of the creation.

    Memory that others took between the creation and the first run does not count, because programs
    often load all models before they run one.
    """
    own_bytes = phase.peak_rss_bytes - session.phases[0].start.rss_bytes
    if phase.name == "first_run" and len(session.phases) > 1:
        own_bytes -= phase.start.rss_bytes - session.phases[-2].end.rss_bytes
    return own_bytes


def session_peak_mark(session: ProgramSession) -> str:
    """Return the mark of `session_peak_bytes`: empty if it is the kernel's figure, or unknown."""
    if _undivided_peak_bytes(session):
        return ""
    peak_bytes = session_peak_bytes(session)
    kinds = {phase.peak_kind for phase in session.phases if phase.peak_rss_bytes == peak_bytes}
    return SAMPLED_MARK if kinds == {"sampled"} else ""


def session_peak_text(session: ProgramSession) -> str:
    """Return `session_peak_bytes` with its mark: ``~257 MiB``."""
    return f"{session_peak_mark(session)}{format_size(session_peak_bytes(session))}"


def session_rise_bytes(session: ProgramSession) -> int:
    """Return the bytes that the creation and the first run of a session added at most."""
    phase = _highest_phase(session)
    if phase is None:
        return 0
    peak_bytes = _undivided_peak_bytes(session)
    if peak_bytes is not None:
        return peak_bytes - session.phases[0].start.rss_bytes
    return max(0, _own_rise_bytes(session, phase))


def session_rise_text(session: ProgramSession) -> str:
    """Return `session_rise_bytes` with the mark of the peak: ``~+157 MiB``."""
    return f"{session_peak_mark(session)}{format_size(session_rise_bytes(session), signed=True)}"


def largest_session(recording: ProgramRun) -> ProgramSession | None:
    """Return the session whose creation and first run raised the resident set most."""
    return max(recording.sessions, key=session_rise_bytes, default=None)


def session_peak_phase(session: ProgramSession) -> PhaseName | None:
    """Return the phase with the peak of the creation and first run; None if it is not known."""
    highest_phase = _highest_phase(session)
    if _undivided_peak_bytes(session):
        return None
    if session.peak_phase == "first_run" and highest_phase is not None:
        return highest_phase.name
    return session.peak_phase or (highest_phase.name if highest_phase is not None else None)


def session_activities(recording: ProgramRun, t_s: float) -> tuple[SessionActivity, ...]:
    """Return what the sessions did at `t_s`.

    A run is known only if it raised the high-water mark of its process.
    """
    return (*_phase_activities(recording, t_s), *_run_activities(recording, t_s))


def _phase_activities(recording: ProgramRun, t_s: float) -> Iterator[SessionActivity]:
    models = model_names(recording)
    for session in recording.sessions:
        for phase_time in session.phase_times:
            if phase_time.start_s <= t_s <= phase_time.end_s:
                activity = _PHASE_WORDS.get(phase_time.phase, phase_time.phase)
                if phase_time.phase != "first_run" and _undivided_peak_bytes(session):
                    activity = "the creation"
                text, shapes = f"{activity} of {session_name(session, models)}", ""
                if phase_time.phase == "first_run" and len(session.shapes) == 1:
                    shapes = shapes_text(session.shapes[0].shapes)
                    text += f" with {shapes}"
                short_text = f"{activity} of session {session.number}"
                yield SessionActivity(
                    session=session, text=text, short_text=short_text, shapes=shapes
                )


def _run_activities(recording: ProgramRun, t_s: float) -> Iterator[SessionActivity]:
    models = model_names(recording)
    session_by_number = {session.number: session for session in recording.sessions}
    peak_by_session: dict[int, HighWaterRun] = {}
    for peak in recording.peaks:
        session = session_by_number.get(peak.session)
        if session is None:
            continue
        if peak.t_s - peak.latency_s - _REPORT_TOLERANCE_S <= t_s <= peak.t_s + _REPORT_TOLERANCE_S:
            peak_by_session.setdefault(peak.session, peak)
    for number, peak in peak_by_session.items():
        name, shapes = session_name(session_by_number[number], models), shapes_text(peak.shapes)
        yield SessionActivity(
            session=session_by_number[number],
            text=f"a run of {name} with {shapes}",
            short_text=f"a run of session {number}",
            shapes=shapes,
        )


def activities_text(recording: ProgramRun, t_s: float) -> str:
    """Return what the sessions did at `t_s`: ``prepack of session 2 (m.onnx)``; empty for none."""
    return _listed_activities([activity.text for activity in session_activities(recording, t_s)])


def _listed_activities(texts: list[str]) -> str:
    more_text = f" and {len(texts) - _MAX_ACTIVITIES} more" if len(texts) > _MAX_ACTIVITIES else ""
    return " and ".join(texts[:_MAX_ACTIVITIES]) + more_text


def program_peak_sentence(recording: ProgramRun) -> str:
    """Return a sentence on the program's peak and the activities at it.

    Empty if no session was recorded.
    """
    if not recording.sessions or not recording.peak_rss_bytes:
        return ""
    activities = session_activities(recording, recording.peak_s)
    size, peak_time = format_size(recording.peak_rss_bytes), format_duration(recording.peak_s)
    texts = [f"{activity.text} in process {activity.session.pid}" for activity in activities]
    activity_clause = (
        f", during {_listed_activities(texts)}"
        if activities
        else _no_activity_ending(recording, recording.peak_s)
    )
    processes_text = _largest_processes_text(recording)
    return f"Peak of the program: {size} at {peak_time}{activity_clause}.{processes_text}"


def after_last_run_clause(recording: ProgramRun, t_s: float) -> str:
    """Return ``after the last run of a session (at 4.9 s)``; empty if `t_s` is not after it.

    Also empty if the last run is unknown: runs in forks, and runs of sessions that were created
    before the recording, have no times.
    """
    run_ends_s = [
        end_s
        for session in recording.sessions
        for end_s in (session.first_run_s, session.last_run_s)
        if end_s is not None
    ]
    if not run_ends_s or recording.earlier_sessions or _has_forked_runs(recording):
        return ""
    last_created_s = max(
        session.created_s + (session.creation_s or 0.0) for session in recording.sessions
    )
    if t_s <= max(*run_ends_s, last_created_s) + _REPORT_TOLERANCE_S:
        return ""
    clause = f"after the last run of a session (at {format_duration(max(run_ends_s))})"
    return clause + (_calibration_clause(recording, t_s) or _ending_process_clause(recording, t_s))


def idle_moment_clause(recording: ProgramRun, t_s: float) -> str:
    """Return what is known about `t_s` if no creation or run was recorded then."""
    if not recording.sessions or recording.earlier_sessions or _has_forked_runs(recording):
        return ""
    sessions_in_use = _sessions_in_use_text(recording, t_s)
    if sessions_in_use:
        return f"while {sessions_in_use}"
    return after_last_run_clause(recording, t_s) or _NO_SESSION_CLAUSE


def _calibration_clause(recording: ProgramRun, t_s: float) -> str:
    """Return a clause if a calibrator of onnxruntime was alive at `t_s`, or an empty text."""
    for session in recording.sessions:
        is_released = session.released_s is not None and session.released_s < t_s
        if is_calibrator(session.created_at) and not is_released:
            return f", before the calibration released its session {session.number}"
    return ""


def _has_forked_runs(recording: ProgramRun) -> bool:
    return any(session.forked_run_count for session in recording.sessions)


def _ending_process_clause(recording: ProgramRun, t_s: float) -> str:
    """Return ``, while process 7 ended`` if that process had its last X-ray before `t_s`."""
    end_by_pid = {process.pid: process.ended_s for process in recording.processes}
    for xray in recording.xrays:
        end_s = end_by_pid.get(xray.pid)
        if xray.reason == "end" and xray.t_s <= t_s and (end_s is None or t_s <= end_s):
            return f", while process {xray.pid} ended"
    return ""


def _no_activity_ending(recording: ProgramRun, t_s: float) -> str:
    """Return the end of the sentence on a moment at which no activity is known."""
    if recording.earlier_sessions:
        return (
            ". No listed session was being created or set a new peak of its process with a run."
            " Sessions from before the recording may have run: their runs are not recorded"
        )
    sessions_in_use = _sessions_in_use_text(recording, t_s)
    if not sessions_in_use:
        if _has_forked_runs(recording):
            return (
                ". No session was being created, or run in the process that created it. Forked"
                " workers may have been running sessions: the time of each of their runs is not"
                " recorded"
            )
        return f", {after_last_run_clause(recording, t_s) or _NO_SESSION_CLAUSE}"
    return (
        ". No session was being created, and no run set a new peak of its process"
        f" ({sessions_in_use})"
    )


def _sessions_in_use_text(recording: ProgramRun, t_s: float) -> str:
    """Return ``session 2 was in use``; empty if no session was in use at `t_s`."""
    session_numbers = [
        session.number for session in recording.sessions if _is_session_in_use(session, t_s)
    ]
    if not session_numbers:
        return ""
    noun, verb = ("sessions", "were") if len(session_numbers) > 1 else ("session", "was")
    return f"{noun} {number_ranges_text(session_numbers)} {verb} in use"


def _is_session_in_use(session: ProgramSession, t_s: float) -> bool:
    """Return whether `t_s` is between the first and the last run of `session`."""
    if session.first_run_s is None or t_s < session.first_run_s - _REPORT_TOLERANCE_S:
        return False
    ends_s = [end_s for end_s in (session.last_run_s, session.released_s) if end_s is not None]
    return t_s <= min(ends_s, default=t_s) + _REPORT_TOLERANCE_S


def _largest_processes_text(recording: ProgramRun) -> str:
    """Return the largest processes at the peak; empty if there is only one."""
    sizes = []
    for process in recording.processes:
        index = bisect_right(process.samples.t_s, recording.peak_s) - 1
        has_ended = process.ended_s is not None and process.ended_s < recording.peak_s
        if index >= 0 and not has_ended:
            sizes.append((process.samples.rss_bytes[index], process.pid))
    if len(sizes) < 2:
        return ""
    sizes.sort(reverse=True)
    listed_processes = ", ".join(
        f"process {pid} {format_size(size)}" for size, pid in sizes[:_MAX_PROCESSES]
    )
    other_sizes = sizes[_MAX_PROCESSES:]
    if other_sizes:
        other_size = format_size(sum(size for size, _ in other_sizes))
        listed_processes += (
            f", {counted(len(other_sizes), 'other process', 'other processes')} {other_size}"
        )
    return f" Then resident: {listed_processes}."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRise:
    """A run after the first one that raised the high-water mark of its process.

    Attributes:
        bytes: the rise.
        peak: the mark that the run set, with its time.
        shapes: the shapes of the inputs, in words.
    """

    session: ProgramSession
    bytes: int
    peak: HighWaterRun
    shapes: str


def largest_run_rise(recording: ProgramRun) -> RunRise | None:
    """Return the run after the first one that raised the mark of its process most."""
    largest_rise = max(_run_rises(recording), key=lambda rise: rise[0], default=None)
    if largest_rise is None:
        return None
    size, peak, session = largest_rise
    return RunRise(session=session, bytes=size, peak=peak, shapes=shapes_text(peak.shapes))


def run_rise_sentence(recording: ProgramRun) -> str:
    """Return a sentence on the run of `largest_run_rise`; empty if there is none."""
    rise = largest_run_rise(recording)
    if rise is None:
        return ""
    name = session_name(rise.session, model_names(recording))
    return (
        f"Largest rise in a run after the first: {name} with {rise.shapes} in process"
        f" {rise.session.pid}, {format_size(rise.bytes, signed=True)} to"
        f" {format_size(rise.peak.peak_rss_bytes)} (the run ended at"
        f" {format_duration(rise.peak.t_s)})."
    )


def _run_rises(recording: ProgramRun) -> Iterator[tuple[int, HighWaterRun, ProgramSession]]:
    """Yield each run that raised the high-water mark of its process, and by how much."""
    session_by_number = {session.number: session for session in recording.sessions}
    peak_by_pid: dict[int, int] = {}
    for peak in sorted(recording.peaks, key=lambda peak: peak.t_s):
        session = session_by_number.get(peak.session)
        if session is None:
            continue
        earlier_peak = max(
            peak_by_pid.get(session.pid, 0),
            *(
                phase.peak_rss_bytes
                for other_session in recording.sessions
                if other_session.pid == session.pid and other_session.created_s < peak.t_s
                for phase in other_session.phases
            ),
            0,
        )
        peak_by_pid[session.pid] = max(earlier_peak, peak.peak_rss_bytes)
        if earlier_peak and peak.peak_rss_bytes > earlier_peak:
            yield peak.peak_rss_bytes - earlier_peak, peak, session
