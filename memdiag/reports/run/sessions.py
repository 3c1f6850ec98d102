"""The tables of a recorded program: processes with their sessions, phases, and input shapes."""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from memdiag.records.run import ProgramProcess, ProgramRun, ProgramSession, SessionMemory
from memdiag.reports.phase_table import (
    SAMPLED_MARK,
    arranged_phase_rows,
    phase_row,
    phase_row_table,
)
from memdiag.reports.run.headline import has_run, is_idle, runs_text
from memdiag.reports.run.names import (
    model_names,
    number_ranges_text,
    process_name,
    session_name,
    shapes_text,
    short_created_text,
)
from memdiag.reports.run.peaks import (
    largest_session,
    program_peak_sentence,
    run_rise_sentence,
    session_peak_bytes,
    session_peak_mark,
    session_peak_phase,
    session_peak_text,
    session_rise_bytes,
    session_rise_text,
)
from memdiag.reports.table import Cell, Column, Row, Table
from memdiag.reports.text import mebibyte_decimals, mebibytes_text, plain, shortened
from memdiag.units import MIB, format_duration, format_size

MAX_SINGLE_SESSIONS = 10
"""If there are more sessions, equal sessions of a process share a line of the summary."""

_NAME_WIDTH = 30
_COMMAND_WIDTH = 50
_MAX_NUMBERS_LETTERS = 11
_MIN_WHOLE_BYTES = 10 * MIB

MIN_OWN_LINE_SHARE = 0.1
ALIKE_PEAKS_RATIO = 1.1
"""Processes without sessions share a line if all have less than this share of the largest peak, or
if their peaks differ at most by about this ratio."""

_SAMPLED_EXPLANATION = f"{SAMPLED_MARK} by the largest sample seen, the true peak may be higher"
_PSS_LEGEND = (
    "PSS: the largest proportional set that was read of a process; it has a part of each page that"
    " several processes share."
)
_COLUMN_LEGENDS = {
    "PSS": f" {_PSS_LEGEND}",
    "arena": " Arena: in use without weights / free.",
}
"""Explanations of columns below the summary's table."""

OPTIONAL_SESSION_COLUMNS = ("created in", "threads", "last run", "weights")
"""Columns of the summary that a narrow terminal omits, the first one first."""


def summary_table(recording: ProgramRun) -> Table:
    """Return a line for each process and, below it, for each of its sessions, for a terminal."""
    table = Table(
        columns=(
            Column("process / session", max_width=_NAME_WIDTH, wraps=True),
            Column("created at", wraps=True),
            Column("threads", "right"),
            Column("created in", "right"),
            Column("peak", "right"),
            Column("PSS", "right"),
            Column("rise", "right"),
            Column("weights", "right"),
            Column("copies", "right"),
            Column("arena", "right"),
            Column("runs", "right"),
            Column("last run", "right"),
        ),
        rows=tuple(_summary_rows(recording)),
        is_dense=True,
    ).without_empty_columns()
    sampled_remark = (
        f" ({_SAMPLED_EXPLANATION})" if any(map(session_peak_mark, recording.sessions)) else ""
    )
    headings = {column.heading for column in table.columns}
    caption = (
        "MiB. In the line of a session, peak and rise are of its creation and first run"
        f"{sampled_remark}."
    )
    caption += "".join(text for heading, text in _COLUMN_LEGENDS.items() if heading in headings)
    return replace(table, caption=caption)


def _summary_rows(recording: ProgramRun) -> Iterator[Row]:
    models = model_names(recording)
    is_grouped = len(recording.sessions) > MAX_SINGLE_SESSIONS
    groups_by_key: dict[
        tuple[bool, Hashable], list[tuple[ProgramProcess, list[_EqualSessions]]]
    ] = {}
    first_session_by_pid: dict[int, int] = {}
    for session in recording.sessions:
        first_session_by_pid.setdefault(session.pid, session.number)
    processes_by_session = sorted(
        recording.processes, key=lambda process: first_session_by_pid.get(process.pid, 0)
    )
    for process in processes_by_session:
        groups = (
            equal_sessions(process, recording)
            if is_grouped
            else single_sessions(process, recording)
        )
        # Workers of a pool share a line, and so do processes without sessions.
        key: Hashable = (process.parent, tuple(group.key for group in groups))
        if not is_grouped and groups:
            key = process.pid, process.started_s
        key = (True, key) if groups else (False, _peak_size_class(process, recording))
        groups_by_key.setdefault(key, []).append((process, groups))
    for _, process_groups in sorted(groups_by_key.items(), key=lambda item: not item[0][0]):
        processes = [process for process, _ in process_groups]
        more_text = f" and {len(processes) - 1} more" if len(processes) > 1 else ""
        largest = max(process.peak_rss_bytes for process in processes)
        first_process = processes[0]
        pid_text = f"{first_process.pid}{more_text}"
        name_width = _NAME_WIDTH - len(f"{pid_text} ")
        command_name = _command_beginning(process_name(first_process, recording), name_width)
        yield Row(
            f"{pid_text} {command_name}",
            *[""] * 3,
            short_mebibytes(largest),
            _largest_pss_text(processes, recording),
            *[""] * 6,
            is_strong=True,
        )
        for equal_groups in zip(*(groups for _, groups in process_groups), strict=True):
            sessions = tuple(session for group in equal_groups for session in group.sessions)
            yield _session_summary_row(_EqualSessions(sessions), models)


def _largest_pss_text(processes: Sequence[ProgramProcess], recording: ProgramRun) -> str:
    """Return the largest proportional set of `processes` in MiB; empty if there is one process."""
    sizes = [process.peak_pss_bytes for process in processes if process.peak_pss_bytes is not None]
    return short_mebibytes(max(sizes)) if sizes and len(recording.processes) > 1 else ""


def _peak_size_class(process: ProgramProcess, recording: ProgramRun) -> int:
    """Return a number that is equal for processes of about the same peak; 0 for small ones."""
    largest_bytes = max(other_process.peak_rss_bytes for other_process in recording.processes)
    if process.peak_rss_bytes < MIN_OWN_LINE_SHARE * largest_bytes:
        return 0
    return round(math.log(max(1, process.peak_rss_bytes), ALIKE_PEAKS_RATIO))


def _command_beginning(command: str, length: int) -> str:
    """Return `command` in at most `length` characters. A longer one loses its end."""
    return command if len(command) <= length else f"{command[: length - 1].rstrip()}…"


@dataclass(frozen=True, slots=True)
class _EqualSessions:
    """Sessions with the same model, place of creation and options.

    Attributes:
        sessions: the sessions, the first created first.
    """

    sessions: tuple[ProgramSession, ...]

    @property
    def key(self) -> Hashable:
        """The key that all these sessions share."""
        first_session = self.sessions[0]
        options = tuple(sorted(first_session.options.items()))
        return (
            first_session.model_key,
            first_session.created_at,
            first_session.called_from,
            options,
            first_session.error,
        )


def single_sessions(process: ProgramProcess, recording: ProgramRun) -> list[_EqualSessions]:
    """Return the sessions of `process`, each as a group."""
    return [
        _EqualSessions((session,)) for session in recording.sessions if session.pid == process.pid
    ]


def equal_sessions(process: ProgramProcess, recording: ProgramRun) -> list[_EqualSessions]:
    """Return the sessions of `process` in groups of equal ones."""
    sessions_by_key: dict[Hashable, list[ProgramSession]] = {}
    for group in single_sessions(process, recording):
        sessions_by_key.setdefault(group.key, []).extend(group.sessions)
    return [_EqualSessions(tuple(sessions)) for sessions in sessions_by_key.values()]


def _session_summary_row(group: _EqualSessions, models: Mapping[str, str]) -> Row:
    sessions = group.sessions
    first_session = sessions[0]
    label = number_ranges_text(session.number for session in sessions)
    if len(label) > _MAX_NUMBERS_LETTERS:
        label = f"{first_session.number}, …, {sessions[-1].number}"
    count_text = f" ×{len(sessions)}" if len(sessions) > 1 else ""
    creation_times_s = [
        session.creation_s for session in sessions if session.creation_s is not None
    ]
    last_run_s = max(
        (end_s for session in sessions if (end_s := session.latest_run_s) is not None), default=None
    )
    runs = runs_text(sessions) if any(map(has_run, sessions)) else "never"
    return Row(
        f"{label}{count_text} {models[first_session.model_key]}",
        short_created_text(first_session),
        str(first_session.intra_op_threads or "auto"),
        format_duration(max(creation_times_s)) if creation_times_s else "",
        *_peak_and_rise(sessions),
        short_mebibytes(first_session.model.weight_bytes)
        if first_session.model.weight_bytes
        else "",
        _copies_text(sessions),
        arena_text(sessions),
        runs if first_session.error is None else "failed",
        "" if last_run_s is None else f"at {format_duration(last_run_s)}",
        level=1,
    )


def _peak_and_rise(sessions: Sequence[ProgramSession]) -> tuple[str, str, str]:
    """Return the cells for peak, proportional set and rise of the session that rose most.

    The proportional set is empty, because it is known only for processes.
    """
    session = max(sessions, key=session_rise_bytes)
    size = session_rise_bytes(session)
    if not size:
        return "", "", ""
    mark = session_peak_mark(session)
    return (
        f"{mark}{short_mebibytes(session_peak_bytes(session))}",
        "",
        f"{mark}+{short_mebibytes(size)}",
    )


def _copies_text(sessions: Sequence[ProgramSession]) -> str:
    sizes = [
        session.memory.weight_bytes
        for session in sessions
        if session.memory is not None and session.memory.weight_bytes is not None
    ]
    if sizes:
        return short_mebibytes(sum(sizes))
    return "released" if all(session.released_s is not None for session in sessions) else ""


def arena_text(sessions: Sequence[ProgramSession]) -> str:
    """Return ``2/410``: the resident MiB in use and of slack in the arenas of `sessions`.

    Empty if they are not known.
    """
    sizes = [
        (memory.resident_used_bytes or 0, memory.resident_slack_bytes)
        for session in sessions
        if (memory := session.memory)
    ]
    known_sizes = [(used, slack) for used, slack in sizes if slack is not None]
    if not known_sizes:
        return ""
    used, slack = map(sum, zip(*known_sizes, strict=True))
    return f"{short_mebibytes(used)}/{short_mebibytes(slack)}"


def short_mebibytes(size: int) -> str:
    """Return `size` bytes in MiB, with a decimal below 10 MiB."""
    if size <= 0:
        return "0"
    return mebibytes_text(size, 1 if size < _MIN_WHOLE_BYTES else 0)


def session_table(recording: ProgramRun) -> Table:
    """Return a row for each session, with all figures, for Markdown and pages."""
    models = model_names(recording)
    sampled_remark = (
        f" ({_SAMPLED_EXPLANATION})" if any(map(session_peak_mark, recording.sessions)) else ""
    )
    table = Table(
        columns=(
            Column("#", "right"),
            Column("model", css="name"),
            Column("process", "right", css="less"),
            Column("created at", css="name less"),
            Column("called from", formats=("markdown",)),
            Column("options", css="name less"),
            Column("created in", "right", css="less"),
            Column("peak", "right", css="strong less"),
            Column("raised by", "right"),
            Column("weights in model", "right", css="less"),
            Column("weight copies", "right"),
            Column("arena slack", "right", css="less"),
            Column("slack reserved", "right", formats=("markdown",)),
            Column("arena in use", "right", formats=("markdown",)),
            Column("runs", "right"),
            Column("last run", "right", css="less"),
            Column("released", "right", css="less"),
        ),
        rows=tuple(_session_row(session, models) for session in recording.sessions),
        caption=(
            "Peak: the largest resident set of the process while the session was created or run"
            f" for the first time{sampled_remark}; raised by: how much that is above the start of"
            " the creation."
            " Weight copies: resident copies of the weights, in every layout, without those in the"
            " bytes that Python keeps of a model, at the last X-ray of the process; sessions with"
            " the same weights share them evenly. Arena: at the same"
            " X-ray; in use is its resident memory without weights, its slack is free resident"
            " memory that it keeps for later runs, and reserved are addresses of free chunks,"
            " resident or not. Last run and release: time since the start."
        ),
    )
    return table.without_empty_columns()


def _session_row(session: ProgramSession, models: Mapping[str, str]) -> Row:
    memory = session.memory
    options = [f"{plain(name)}={plain(value)}" for name, value in session.options.items()]
    shared_note = "shared" if session.shared_with else ""
    caller_note = f"called from {plain(session.called_from)}" if session.called_from else ""
    return Row(
        Cell(str(session.number), sort_key=session.number),
        Cell(models[session.model_key], is_code=True, title=plain(session.model.path or "")),
        Cell(str(session.pid), sort_key=session.pid),
        Cell(
            plain(session.created_at),
            is_code=True,
            note=caller_note,
            title=" ← ".join(
                f"{plain(caller.file)}:{caller.line} {plain(caller.function)}"
                for caller in session.callers[:6]
            ),
        ),
        Cell(plain(session.called_from or ""), is_code=True),
        Cell(", ".join(options), is_code=True),
        _duration_cell(session.creation_s),
        _marked_peak_cell(
            _recorded_size_cell(session_peak_bytes(session) or None, note=shared_note), session
        ),
        _marked_peak_cell(
            _recorded_size_cell(session_rise_bytes(session) if session.phases else None), session
        ),
        _recorded_size_cell(session.model.weight_bytes),
        _recorded_size_cell(memory.weight_bytes if memory else None),
        _arena_slack_cell(memory),
        _recorded_size_cell(memory.reserved_slack_bytes if memory else None),
        _recorded_size_cell(memory.resident_used_bytes if memory else None),
        Cell(
            "failed" if session.error is not None else runs_text([session]),
            sort_key=-1 if session.error is not None else session.run_count,
        ),
        Cell("never", sort_key=-1) if is_idle(session) else _duration_cell(session.latest_run_s),
        _duration_cell(session.released_s),
    )


def _arena_slack_cell(memory: SessionMemory | None) -> Cell:
    cell = _recorded_size_cell(memory.resident_slack_bytes if memory else None)
    if memory is None or memory.resident_used_bytes is None:
        return cell
    title = f"{cell.title}; {memory.resident_used_bytes:,} bytes in use"
    if memory.reserved_slack_bytes is not None:
        title += f"; {memory.reserved_slack_bytes:,} free bytes are reserved"
    return replace(cell, title=title)


def _duration_cell(seconds: float | None) -> Cell:
    if seconds is None:
        return Cell(sort_key=-1)
    return Cell(format_duration(seconds), sort_key=seconds)


def _recorded_size_cell(size: int | None, note: str = "") -> Cell:
    if size is None:
        return Cell(sort_key=-1)
    return Cell(format_size(size), title=f"{size:,} bytes", sort_key=size, note=note)


def _marked_peak_cell(cell: Cell, session: ProgramSession) -> Cell:
    """Return the `cell` of a peak, marked if it is sampled."""
    return replace(cell, text=f"{session_peak_mark(session)}{cell.text}") if cell.text else cell


def _peak_pss_cell(process: ProgramProcess) -> Cell:
    """Return the largest proportional set that was read, and its time."""
    cell = _recorded_size_cell(process.peak_pss_bytes)
    if process.peak_pss_bytes is None or process.peak_pss_s is None:
        return cell
    return replace(cell, text=f"{cell.text} at {format_duration(process.peak_pss_s)}")


def _earlier_peak_cell(process: ProgramProcess) -> Cell:
    """Return the high-water mark before the recording if it is above the peak during it."""
    earlier_peak_bytes = process.earlier_peak_rss_bytes
    return _recorded_size_cell(
        earlier_peak_bytes
        if earlier_peak_bytes and earlier_peak_bytes > process.peak_rss_bytes
        else None
    )


def process_peak_table(recording: ProgramRun) -> Table:
    """Return the table of the processes, the largest first; no rows if there is only one."""
    processes = sorted(recording.processes, key=lambda process: -process.peak_rss_bytes)
    caption = (
        "Peak: the largest resident set while it was recorded, by the kernel's high-water mark if"
        " that rose during it, otherwise by samples."
    )
    if any(_earlier_peak_cell(process).text for process in processes):
        caption += " Before: that mark when the recording began, where it is higher."
    if any(process.peak_pss_bytes is not None for process in processes):
        caption += f" {_PSS_LEGEND}"
    return Table(
        columns=(
            Column("process", "right"),
            Column("command", max_width=_COMMAND_WIDTH, wraps=True),
            Column("peak", "right"),
            Column("before", "right"),
            Column("PSS", "right"),
        ),
        rows=tuple(
            Row(
                str(process.pid),
                shortened(process_name(process, recording), _COMMAND_WIDTH),
                format_size(process.peak_rss_bytes),
                _earlier_peak_cell(process),
                _recorded_size_cell(process.peak_pss_bytes),
            )
            for process in processes
            if processes[1:]
        ),
        caption=caption,
        is_dense=True,
    ).without_empty_columns()


def process_table(recording: ProgramRun) -> Table:
    """Return a row for each process, for Markdown and pages."""
    rows = []
    for process in recording.processes:
        count = sum(session.pid == process.pid for session in recording.sessions)
        end = "" if process.ended_s is None else format_duration(process.ended_s)
        code = "" if process.exit_code is None else str(process.exit_code)
        rows.append(
            Row(
                str(process.pid),
                Cell(process_name(process, recording), is_code=True),
                str(process.parent),
                Cell(str(count), sort_key=count),
                _recorded_size_cell(process.peak_rss_bytes),
                _earlier_peak_cell(process),
                _peak_pss_cell(process),
                f"{format_duration(process.started_s)} to {end}" if end else "",
                code,
                plain(process.onnxruntime or ""),
            )
        )
    table = Table(
        columns=(
            Column("process", "right"),
            Column("command", css="name"),
            Column("parent", "right", css="less"),
            Column("sessions", "right"),
            Column("peak RSS", "right", css="strong"),
            Column("peak before", "right", css="less"),
            Column("largest PSS read", "right"),
            Column("life", css="less"),
            Column("exit code", "right", css="less"),
            Column("onnxruntime", css="less"),
        ),
        rows=tuple(rows),
    )
    return table.without_empty_columns()


def peak_and_rise_sentences(recording: ProgramRun) -> tuple[str, ...]:
    """Return sentences on the activities at the peak, and on the largest rises of memory."""
    return tuple(
        filter(
            None,
            (
                program_peak_sentence(recording),
                run_rise_sentence(recording),
                _creation_rise_sentence(recording),
            ),
        )
    )


def _creation_rise_sentence(recording: ProgramRun) -> str:
    session = largest_session(recording)
    if session is None or not session.phases:
        return ""
    return (
        "Largest rise in a creation and first run:"
        f" {session_name(session, model_names(recording))} in process {session.pid},"
        f" {session_rise_text(session)} to {session_peak_text(session)}."
    )


def session_phase_table(session: ProgramSession, recording: ProgramRun) -> Table:
    """Return the phases of the creation and the first run of `session`."""
    peak = session_peak_phase(session)
    rows = [replace(phase_row(phase), is_peak=phase.name == peak) for phase in session.phases]
    table = phase_row_table(
        arranged_phase_rows(rows, session.phase_times),
        decimals=mebibyte_decimals(session_peak_bytes(session)),
        caption=f"Resident set of process {session.pid} in MiB",
        heading=session_name(session, model_names(recording)).partition(" (")[0],
    ).without_empty_columns()
    caption = table.caption
    if session.shared_with:
        plural = "s" if len(session.shared_with) > 1 else ""
        caption += (
            f" Session{plural} {number_ranges_text(session.shared_with)} in the same process"
            " changed it at the same time."
        )
    return replace(table, caption=caption)


def shape_table(recording: ProgramRun) -> Table:
    """Return a row for each combination of input shapes of each session."""
    models = model_names(recording)
    peak_by_shapes: dict[tuple[int, str], int] = {}
    for peak in recording.peaks:
        key = peak.session, shapes_text(peak.shapes)
        peak_by_shapes[key] = max(peak_by_shapes.get(key, 0), peak.peak_rss_bytes)
    rows = []
    sessions_and_shapes = (
        (session, shapes) for session in recording.sessions for shapes in session.shapes
    )
    for session, shapes in sessions_and_shapes:
        text = shapes_text(shapes.shapes)
        mean_s = shapes.total_s / shapes.runs if shapes.runs else 0.0
        rows.append(
            Row(
                Cell(str(session.number), sort_key=session.number),
                Cell(models[session.model_key], is_code=True),
                Cell(
                    text,
                    is_code=True,
                    tags=("raised the peak",) if (session.number, text) in peak_by_shapes else (),
                ),
                _recorded_size_cell(peak_by_shapes.get((session.number, text))),
                Cell(f"{shapes.runs:,}", sort_key=shapes.runs),
                _duration_cell(mean_s),
                _duration_cell(shapes.min_s),
                _duration_cell(shapes.max_s),
            )
        )
    table = Table(
        columns=(
            Column("#", "right"),
            Column("model", css="name less"),
            Column("input shapes", css="name"),
            Column("raised process to", "right", css="less"),
            Column("runs", "right"),
            Column("mean latency", "right", css="strong"),
            Column("shortest", "right", css="less"),
            Column("longest", "right"),
        ),
        rows=tuple(rows),
    )
    return table.without_empty_columns()
