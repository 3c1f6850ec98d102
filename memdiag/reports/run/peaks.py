"""The program's peak, and the largest rises of memory: different facts."""

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
        short_text: the same where the model was named before: ``the first run of session 2``.
        shapes: the shapes of the inputs, in words; empty if they are not known.
    """

    session: ProgramSession
    text: str
    short_text: str
    shapes: str = ""


def session_peak_bytes(session: ProgramSession) -> int:
    """Return the resident set where creation and first run took most; 0 if it is not known."""
    phase = _highest_phase(session)
    if phase is None:
        return 0
    return _undivided_peak(session) or phase.peak_rss_bytes


def _undivided_peak(session: ProgramSession) -> int | None:
    """Return the peak of the creation if it is above those of its phases and the first run."""
    mark = session.creation_peak_rss_bytes
    highest = _highest_phase(session)
    if mark is None or highest is None:
        return None
    rise = mark - session.phases[0].start.rss_bytes
    return mark if rise > _own_rise_bytes(session, highest) + MAX_COUNTER_ERROR_BYTES else None


def _highest_phase(session: ProgramSession) -> Phase | None:
    """Return the phase in which the session itself had taken most memory."""
    return max(session.phases, key=lambda phase: _own_rise_bytes(session, phase), default=None)


def _own_rise_bytes(session: ProgramSession, phase: Phase) -> int:
    """Return how far `phase` rose above the start of the creation.

    What others took between the creation and the first run is left out: programs often load all
    models before they run one.
    """
    own_bytes = phase.peak_rss_bytes - session.phases[0].start.rss_bytes
    if phase.name == "first_run" and len(session.phases) > 1:
        own_bytes -= phase.start.rss_bytes - session.phases[-2].end.rss_bytes
    return own_bytes


def session_peak_mark(session: ProgramSession) -> str:
    """Return the mark of `session_peak_bytes`: empty if it is the kernel's figure, or not known."""
    if _undivided_peak(session):
        return ""
    highest = session_peak_bytes(session)
    kinds = {phase.peak_kind for phase in session.phases if phase.peak_rss_bytes == highest}
    return SAMPLED_MARK if kinds == {"sampled"} else ""


def session_peak_text(session: ProgramSession) -> str:
    """Return `session_peak_bytes` with its mark: ``~257 MiB``."""
    return f"{session_peak_mark(session)}{format_size(session_peak_bytes(session))}"


def session_rise_bytes(session: ProgramSession) -> int:
    """Return how much memory the creation and the first run of a session added at most."""
    phase = _highest_phase(session)
    if phase is None:
        return 0
    mark = _undivided_peak(session)
    if mark is not None:
        return mark - session.phases[0].start.rss_bytes
    return max(0, _own_rise_bytes(session, phase))


def session_rise_text(session: ProgramSession) -> str:
    """Return `session_rise_bytes` with the mark of the peak: ``~+157 MiB``."""
    return f"{session_peak_mark(session)}{format_size(session_rise_bytes(session), signed=True)}"


def largest_session(recording: ProgramRun) -> ProgramSession | None:
    """Return the session whose creation and first run raised the resident set most."""
    return max(recording.sessions, key=session_rise_bytes, default=None)


def session_peak_phase(session: ProgramSession) -> PhaseName | None:
    """Return the phase with the peak of the creation and first run; None if it is not known."""
    highest = _highest_phase(session)
    if _undivided_peak(session):
        return None
    if session.peak_phase == "first_run" and highest is not None:
        return highest.name
    return session.peak_phase or (highest.name if highest is not None else None)


def session_activities(recording: ProgramRun, t_s: float) -> tuple[SessionActivity, ...]:
    """Return what the sessions did at `t_s`.

    Runs are known as far as they raised the high-water mark of their process.
    """
    return (*_phase_activities(recording, t_s), *_run_activities(recording, t_s))


def _phase_activities(recording: ProgramRun, t_s: float) -> Iterator[SessionActivity]:
    models = model_names(recording)
    for session in recording.sessions:
        for time in session.phase_times:
            if time.start_s <= t_s <= time.end_s:
                activity = _PHASE_WORDS.get(time.phase, time.phase)
                if time.phase != "first_run" and _undivided_peak(session):
                    activity = "the creation"
                text, shapes = f"{activity} of {session_name(session, models)}", ""
                if time.phase == "first_run" and len(session.shapes) == 1:
                    shapes = shapes_text(session.shapes[0].shapes)
                    text += f" with {shapes}"
                short = f"{activity} of session {session.number}"
                yield SessionActivity(session=session, text=text, short_text=short, shapes=shapes)


def _run_activities(recording: ProgramRun, t_s: float) -> Iterator[SessionActivity]:
    models = model_names(recording)
    sessions = {session.number: session for session in recording.sessions}
    found: dict[int, HighWaterRun] = {}
    for peak in recording.peaks:
        session = sessions.get(peak.session)
        if session is None:
            continue
        if peak.t_s - peak.latency_s - _REPORT_TOLERANCE_S <= t_s <= peak.t_s + _REPORT_TOLERANCE_S:
            found.setdefault(peak.session, peak)
    for number, peak in found.items():
        name, shapes = session_name(sessions[number], models), shapes_text(peak.shapes)
        yield SessionActivity(
            session=sessions[number],
            text=f"a run of {name} with {shapes}",
            short_text=f"a run of session {number}",
            shapes=shapes,
        )


def activities_text(recording: ProgramRun, t_s: float) -> str:
    """Return what the sessions did at `t_s`: ``prepack of session 2 (m.onnx)``, or nothing."""
    return _listed_activities([each.text for each in session_activities(recording, t_s)])


def _listed_activities(texts: list[str]) -> str:
    more = f" and {len(texts) - _MAX_ACTIVITIES} more" if len(texts) > _MAX_ACTIVITIES else ""
    return " and ".join(texts[:_MAX_ACTIVITIES]) + more


def program_peak_sentence(recording: ProgramRun) -> str:
    """Return the activities, with their processes, when the program's memory was largest.

    Empty if no session was recorded.
    """
    if not recording.sessions or not recording.peak_rss_bytes:
        return ""
    found = session_activities(recording, recording.peak_s)
    size, at = format_size(recording.peak_rss_bytes), format_duration(recording.peak_s)
    texts = [f"{each.text} in process {each.session.pid}" for each in found]
    activity = (
        f", during {_listed_activities(texts)}"
        if found
        else _no_activity_ending(recording, recording.peak_s)
    )
    return f"Peak of the program: {size} at {at}{activity}.{_largest_processes_text(recording)}"


def after_last_run_clause(recording: ProgramRun, t_s: float) -> str:
    """Return ``after the last run of a session (at 4.9 s)``; empty if that is not so at `t_s`.

    Runs in forks, and of sessions that were created before the recording, have no times: with these
    it is not known.
    """
    ends = [
        end
        for each in recording.sessions
        for end in (each.first_run_s, each.last_run_s)
        if end is not None
    ]
    if not ends or recording.earlier_sessions or _has_forked_runs(recording):
        return ""
    last_created_s = max(each.created_s + (each.creation_s or 0.0) for each in recording.sessions)
    if t_s <= max(*ends, last_created_s) + _REPORT_TOLERANCE_S:
        return ""
    last = f"after the last run of a session (at {format_duration(max(ends))})"
    return f"{last}{_calibration_clause(recording, t_s) or _ending_process_clause(recording, t_s)}"


def idle_moment_clause(recording: ProgramRun, t_s: float) -> str:
    """Return what is known of `t_s` if no creation or run was recorded then; empty for nothing."""
    if not recording.sessions or recording.earlier_sessions or _has_forked_runs(recording):
        return ""
    in_use = _sessions_in_use_text(recording, t_s)
    return (
        f"while {in_use}" if in_use else after_last_run_clause(recording, t_s) or _NO_SESSION_CLAUSE
    )


def _calibration_clause(recording: ProgramRun, t_s: float) -> str:
    """Return a clause if a calibrator of onnxruntime was alive at `t_s`; else empty."""
    for session in recording.sessions:
        is_released = session.released_s is not None and session.released_s < t_s
        if is_calibrator(session.created_at) and not is_released:
            return f", before the calibration released its session {session.number}"
    return ""


def _has_forked_runs(recording: ProgramRun) -> bool:
    return any(session.forked_run_count for session in recording.sessions)


def _ending_process_clause(recording: ProgramRun, t_s: float) -> str:
    """Return ``, while process 7 ended`` for one that had waited for its X-ray before `t_s`."""
    ended = {process.pid: process.ended_s for process in recording.processes}
    for xray in recording.xrays:
        last_s = ended.get(xray.pid)
        if xray.reason == "end" and xray.t_s <= t_s and (last_s is None or t_s <= last_s):
            return f", while process {xray.pid} ended"
    return ""


def _no_activity_ending(recording: ProgramRun, t_s: float) -> str:
    """Return the end of the sentence on a moment at which no activity is known."""
    if recording.earlier_sessions:
        return (
            ". No listed session was being created or set a new peak of its process with a run."
            " Sessions from before the recording may have run: their runs are not recorded"
        )
    in_use = _sessions_in_use_text(recording, t_s)
    if not in_use:
        if _has_forked_runs(recording):
            return (
                ". No session was being created, or run in the process that created it. Forked"
                " workers may have been running sessions: the time of each of their runs is not"
                " recorded"
            )
        return f", {after_last_run_clause(recording, t_s) or _NO_SESSION_CLAUSE}"
    return f". No session was being created, and no run set a new peak of its process ({in_use})"


def _sessions_in_use_text(recording: ProgramRun, t_s: float) -> str:
    """Return ``session 2 was in use``; empty if `t_s` is between runs of no session."""
    in_use = [session.number for session in recording.sessions if _is_session_in_use(session, t_s)]
    if not in_use:
        return ""
    noun, verb = ("sessions", "were") if len(in_use) > 1 else ("session", "was")
    return f"{noun} {number_ranges_text(in_use)} {verb} in use"


def _is_session_in_use(session: ProgramSession, t_s: float) -> bool:
    """Return whether `t_s` is between the first and the last run of `session`."""
    if session.first_run_s is None or t_s < session.first_run_s - _REPORT_TOLERANCE_S:
        return False
    ends = [end for end in (session.last_run_s, session.released_s) if end is not None]
    return t_s <= min(ends, default=t_s) + _REPORT_TOLERANCE_S


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
    listed = ", ".join(f"process {pid} {format_size(size)}" for size, pid in sizes[:_MAX_PROCESSES])
    others = sizes[_MAX_PROCESSES:]
    if others:
        rest = format_size(sum(size for size, _ in others))
        listed += f", {counted(len(others), 'other process', 'other processes')} {rest}"
    return f" Then resident: {listed}."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRise:
    """A run after the first one that raised the high-water mark of its process.

    Attributes:
        bytes: by how much.
        peak: the mark, and when it was reached.
        shapes: the shapes of the inputs, in words.
    """

    session: ProgramSession
    bytes: int
    peak: HighWaterRun
    shapes: str


def largest_run_rise(recording: ProgramRun) -> RunRise | None:
    """Return the run after the first that raised the mark of its process most; None for none."""
    largest = max(_run_rises(recording), key=lambda each: each[0], default=None)
    if largest is None:
        return None
    size, peak, session = largest
    return RunRise(session=session, bytes=size, peak=peak, shapes=shapes_text(peak.shapes))


def run_rise_sentence(recording: ProgramRun) -> str:
    """Return which run after the first raised its process's memory most; empty for none."""
    largest = largest_run_rise(recording)
    if largest is None:
        return ""
    name = session_name(largest.session, model_names(recording))
    return (
        f"Largest rise in a run after the first: {name} with {largest.shapes} in process"
        f" {largest.session.pid}, {format_size(largest.bytes, signed=True)} to"
        f" {format_size(largest.peak.peak_rss_bytes)} (the run ended at"
        f" {format_duration(largest.peak.t_s)})."
    )


def _run_rises(recording: ProgramRun) -> Iterator[tuple[int, HighWaterRun, ProgramSession]]:
    """Yield each run that raised the high-water mark of its process, and by how much."""
    sessions = {session.number: session for session in recording.sessions}
    marks: dict[int, int] = {}
    for peak in sorted(recording.peaks, key=lambda each: each.t_s):
        session = sessions.get(peak.session)
        if session is None:
            continue
        before = max(
            marks.get(session.pid, 0),
            *(
                phase.peak_rss_bytes
                for each in recording.sessions
                if each.pid == session.pid and each.created_s < peak.t_s
                for phase in each.phases
            ),
            0,
        )
        marks[session.pid] = max(before, peak.peak_rss_bytes)
        if before and peak.peak_rss_bytes > before:
            yield peak.peak_rss_bytes - before, peak, session
