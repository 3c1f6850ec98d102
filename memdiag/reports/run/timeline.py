"""The timeline to draw: a lane for each process, with the bars of its sessions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from memdiag.records.phases import PhaseName
from memdiag.records.run import ProgramProcess, ProgramRun, ProgramSession, TreeSamples
from memdiag.reports.run.headline import has_run, runs_text
from memdiag.reports.run.names import (
    created_text,
    model_names,
    process_name,
    shapes_text,
)
from memdiag.reports.run.peaks import (
    largest_session,
    session_activities,
    session_peak_phase,
    session_peak_text,
    session_rise_bytes,
)
from memdiag.reports.text import plain, shortened
from memdiag.thinning import thinned_indices
from memdiag.units import MIB, counted, format_duration, format_size

MIN_MARKED_RISE_BYTES = MIB

_MAX_BAR_NAME = 60
_MAX_HOVER = 200
_MAX_MARKS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSegment:
    """An interval of time of a session in one phase.

    Attributes:
        is_peak: whether the process reached its largest resident set during the creation and first
            run in this phase, if these raised it by at least `MIN_MARKED_RISE_BYTES`.
    """

    phase: PhaseName
    start_s: float
    end_s: float
    is_peak: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionBar:
    """The life of a session.

    Attributes:
        row: the row below the lane of its process, from 0; bars of a row do not overlap.
        sentences: the facts of the session.
    """

    number: int
    label: str
    row: int
    start_s: float
    end_s: float
    segments: tuple[PhaseSegment, ...]
    is_failed: bool
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMark:
    """A run that raised the high-water mark of its process."""

    t_s: float
    rss_bytes: int
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLane:
    """The memory of a process, as columns of equal length, and its sessions.

    Attributes:
        anonymous_bytes, file_and_shared_bytes: None if the system does not split the resident set.
        peak_bytes: the largest resident set, also between the samples if the system reports it.
        rows: the number of rows of the bars.
        left_out: the number of sessions that have no bar.
    """

    pid: int
    label: str
    t_s: tuple[float, ...]
    rss_bytes: tuple[int, ...]
    peak_bytes: int
    anonymous_bytes: tuple[int, ...] | None
    file_and_shared_bytes: tuple[int, ...] | None
    bars: tuple[SessionBar, ...]
    rows: int
    left_out: int
    peaks: tuple[PeakMark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimeline:
    """The memory of all processes, as columns, and a lane for each process that is drawn.

    Attributes:
        is_peak_sampled: whether the peak is the largest sum of samples, not a process's own mark.
        longest_gap_s: the longest time between two samples that differ. The memory between them is
            not known.
        end_xrays: start and end of the times in which processes waited for X-rays at their end.
        left_out: the number of processes that have no lane.
    """

    t_s: tuple[float, ...]
    rss_bytes: tuple[int, ...]
    proportional_t_s: tuple[float, ...]
    pss_bytes: tuple[int, ...]
    peak_s: float
    peak_bytes: int
    is_peak_sampled: bool
    end_s: float
    longest_gap_s: float
    end_xrays: tuple[tuple[float, float], ...]
    lanes: tuple[ProcessLane, ...]
    left_out: int


def run_timeline(
    recording: ProgramRun,
    *,
    max_points: int = 3000,
    max_lanes: int = 10,
    max_rows: int = 12,
    max_bars: int = 300,
) -> RunTimeline:
    """Return the timeline of `recording`.

    Args:
        recording: the recording.
        max_points: about the number of samples of all processes together, and of each process.
        max_lanes: processes with a lane. Processes with sessions go first, then the largest.
        max_rows: rows of bars below a lane.
        max_bars: bars below a lane. The bars of the longest lives are kept.

    The sessions at the peak of the program, the session with the largest rise, and their processes
    go before all others.
    """
    pids_with_sessions = {session.pid for session in recording.sessions}
    first_sessions = [
        activity.session for activity in session_activities(recording, recording.peak_s)
    ]
    session_of_largest_rise = largest_session(recording)
    first_sessions += [session_of_largest_rise] if session_of_largest_rise is not None else []
    first_numbers = [session.number for session in first_sessions]
    first_pids = {session.pid for session in first_sessions}
    ordered_processes = sorted(
        recording.processes,
        key=lambda process: (
            process.pid not in first_pids,
            process.pid not in pids_with_sessions,
            -process.peak_rss_bytes,
        ),
    )
    drawn_processes = ordered_processes[:max_lanes]
    model_name_by_key = model_names(recording)
    indices = thinned_indices(recording.samples.rss_bytes, max_points)
    ends_s = [recording.duration_s, *recording.samples.t_s[-1:]]
    return RunTimeline(
        t_s=tuple(recording.samples.t_s[index] for index in indices),
        rss_bytes=tuple(recording.samples.rss_bytes[index] for index in indices),
        proportional_t_s=recording.samples.proportional_t_s,
        pss_bytes=recording.samples.pss_bytes,
        peak_s=recording.peak_s,
        peak_bytes=recording.peak_rss_bytes,
        is_peak_sampled=all(
            process.peak_rss_bytes != recording.peak_rss_bytes for process in recording.processes
        ),
        end_s=max(ends_s),
        longest_gap_s=_longest_gap_s(recording.samples),
        end_xrays=recording.end_waits,
        lanes=tuple(
            _process_lane(
                process,
                recording,
                model_name_by_key,
                max_points,
                (max_rows, max_bars),
                first_numbers,
            )
            for process in recording.processes
            if any(process is drawn_process for drawn_process in drawn_processes)
        ),
        left_out=len(ordered_processes) - len(drawn_processes),
    )


def left_out_texts(timeline: RunTimeline) -> tuple[str, ...]:
    """Return how many processes and sessions are only in the tables; empty if none are."""
    session_count = sum(lane.left_out for lane in timeline.lanes)
    counts = (
        (timeline.left_out, "more process", "more processes"),
        (session_count, "more session", ""),
    )
    return tuple(
        f"{counted(count, singular, plural_noun)} {'is' if count == 1 else 'are'} in the tables"
        " only."
        for count, singular, plural_noun in counts
        if count
    )


def _longest_gap_s(samples: TreeSamples) -> float:
    """Return the longest time in seconds between neighbours of different size."""
    samples_by_time = zip(samples.t_s, samples.rss_bytes, strict=True)
    return max(
        (
            after[0] - before[0]
            for before, after in pairwise(samples_by_time)
            if before[1] != after[1]
        ),
        default=0.0,
    )


def _process_lane(
    process: ProgramProcess,
    recording: ProgramRun,
    names: Mapping[str, str],
    max_points: int,
    max_bars: tuple[int, int],
    first_numbers: Sequence[int],
) -> ProcessLane:
    """Return the lane of `process`.

    Args:
        process: the process.
        recording: its recording.
        names: the names of the models by their keys.
        max_points: about the number of samples.
        max_bars: the rows, and the bars in all.
        first_numbers: the numbers of the sessions whose bars go first.
    """
    max_rows, max_count = max_bars
    samples = process.samples
    indices = thinned_indices(samples.rss_bytes, max_points)
    sessions = [session for session in recording.sessions if session.pid == process.pid]
    end_s = recording.duration_s if process.ended_s is None else process.ended_s
    life_by_number = {
        session.number: (_session_start_s(session), _session_end_s(session, end_s))
        for session in sessions
    }
    ordered_sessions = sorted(
        sessions,
        key=lambda session: (
            session.number not in first_numbers,
            life_by_number[session.number][0] - life_by_number[session.number][1],
        ),
    )
    drawn_sessions = sorted(ordered_sessions[:max_count], key=lambda session: session.number)
    rows = packed_rows([life_by_number[session.number] for session in drawn_sessions])
    first_rows = [
        row
        for session, row in zip(drawn_sessions, rows, strict=True)
        if session.number in first_numbers
    ]
    kept_rows = sorted(list(dict.fromkeys((*first_rows, *sorted(rows))))[:max_rows])
    bars = [
        _session_bar(session, kept_rows.index(row), end_s, names)
        for session, row in zip(drawn_sessions, rows, strict=True)
        if row in kept_rows
    ]
    peaks = [peak for peak in recording.peaks if peak.session in life_by_number]
    kept_peaks = thinned_indices([peak.peak_rss_bytes for peak in peaks], _MAX_MARKS)
    model_by_number = {session.number: names[session.model_key] for session in sessions}
    return ProcessLane(
        pid=process.pid,
        label=shortened(f"{process.pid} {process_name(process, recording)}", _MAX_BAR_NAME),
        t_s=tuple(samples.t_s[index] for index in indices),
        rss_bytes=tuple(samples.rss_bytes[index] for index in indices),
        peak_bytes=process.peak_rss_bytes,
        anonymous_bytes=_complete_samples(samples.anonymous_bytes, indices),
        file_and_shared_bytes=_complete_samples(samples.file_and_shared_bytes, indices),
        bars=tuple(bars),
        rows=max((bar.row + 1 for bar in bars), default=0),
        left_out=len(sessions) - len(bars),
        peaks=tuple(
            PeakMark(
                t_s=peak.t_s,
                rss_bytes=peak.peak_rss_bytes,
                sentences=(
                    f"run of session {peak.session}"
                    f" ({shortened(model_by_number[peak.session], _MAX_BAR_NAME)})",
                    shortened(shapes_text(peak.shapes), _MAX_HOVER),
                ),
            )
            for peak in (peaks[index] for index in kept_peaks)
        ),
    )


def _complete_samples(column: Sequence[int | None], rows: Sequence[int]) -> tuple[int, ...] | None:
    values = tuple(value for index in rows if (value := column[index]) is not None)
    return values if values and len(values) == len(rows) else None


def packed_rows(times: Sequence[tuple[float, float]]) -> list[int]:
    """Return a row for each interval of time, so that no intervals of a row overlap."""
    ends: list[float] = []
    rows = [0] * len(times)
    for index in sorted(range(len(times)), key=lambda interval_index: times[interval_index]):
        start, end = times[index]
        free_row = next((row for row, row_end in enumerate(ends) if row_end <= start), len(ends))
        if free_row == len(ends):
            ends.append(end)
        else:
            ends[free_row] = end
        rows[index] = free_row
    return rows


def _session_start_s(session: ProgramSession) -> float:
    return min((session.created_s, *(time.start_s for time in session.phase_times)))


def _session_end_s(session: ProgramSession, process_end_s: float) -> float:
    created_s = session.created_s + (session.creation_s or 0.0)
    if session.released_s is not None:
        end_s = session.released_s
    else:
        end_s = created_s if session.error is not None else process_end_s
    return max((end_s, created_s, *(time.end_s for time in session.phase_times)))


def _session_bar(
    session: ProgramSession, row: int, process_end_s: float, names: Mapping[str, str]
) -> SessionBar:
    name = shortened(names[session.model_key], _MAX_BAR_NAME)
    peak_phase = (
        session_peak_phase(session)
        if session_rise_bytes(session) >= MIN_MARKED_RISE_BYTES
        else None
    )
    return SessionBar(
        number=session.number,
        label=f"{session.number} {name}",
        row=row,
        start_s=_session_start_s(session),
        end_s=_session_end_s(session, process_end_s),
        segments=tuple(
            PhaseSegment(
                phase=phase_time.phase,
                start_s=phase_time.start_s,
                end_s=phase_time.end_s,
                is_peak=phase_time.phase == peak_phase,
            )
            for phase_time in session.phase_times
        ),
        is_failed=session.error is not None,
        sentences=tuple(_session_sentences(session)),
    )


def _session_sentences(session: ProgramSession) -> list[str]:
    sentences = [f"created at {shortened(created_text(session), _MAX_BAR_NAME)}"]
    if session.error is not None:
        return [*sentences, f"failed: {shortened(plain(session.error), _MAX_HOVER)}"]
    if session.creation_s is not None:
        sentences[0] += f" in {format_duration(session.creation_s)}"
    if session.phases:
        sharing_clause = ", shared with other sessions" if session.shared_with else ""
        sentences.append(f"peak {session_peak_text(session)}{sharing_clause}")
    runs = f"runs: {runs_text([session])}" if has_run(session) else "never run"
    if session.shapes:
        runs += f", most with {shortened(shapes_text(session.shapes[0].shapes), _MAX_HOVER)}"
    sentences.append(runs)
    memory = session.memory
    if memory is not None and memory.weight_bytes is not None:
        sentences.append(f"weight copies in memory {format_size(memory.weight_bytes)}")
    if memory is not None and memory.resident_slack_bytes is not None:
        used_size = format_size(memory.resident_used_bytes or 0)
        sentences.append(
            f"arena {used_size} in use, {format_size(memory.resident_slack_bytes)} slack"
        )
    if session.released_s is not None:
        sentences.append(f"released at {format_duration(session.released_s)}")
    return sentences
