"""The sessions of a program in a table, and the answer in a sentence."""

from pathlib import PurePath

from memdiag.records.run import ProgramRun, ProgramSession
from memdiag.reports.table import Cell, Column, Row, Table
from memdiag.reports.text import counted, plain
from memdiag.units import format_duration, format_size


def headline(run: ProgramRun) -> str:
    """Return how many processes and sessions there were, and the peak of their memory."""
    models = {session.model.path or session.model.digest for session in run.sessions}
    parts = [
        counted(len(run.processes), "process", "processes"),
        counted(len(run.sessions), "session"),
        counted(len(models), "model"),
        format_duration(run.duration_s),
    ]
    peak = f"peak of all processes {format_size(run.peak_rss_bytes)} RSS"
    if run.peak_pss_bytes is not None and len(run.processes) > 1:
        peak += f", {format_size(run.peak_pss_bytes)} PSS"
    return f"{', '.join(parts)}; {peak}"


def session_table(run: ProgramRun) -> Table:
    """Return a row for each session."""
    return Table(
        columns=(
            Column("pid", align="right"),
            Column("#", align="right"),
            Column("model", max_width=28),
            Column("created at", max_width=34),
            Column("threads", align="right"),
            Column("weights", align="right"),
            Column("arena used/slack", align="right"),
            Column("runs", align="right"),
            Column("last run", align="right"),
        ),
        rows=tuple(_row(run, session) for session in run.sessions),
    )


def _row(run: ProgramRun, session: ProgramSession) -> Row:
    memory = session.memory
    arena = ""
    if memory and memory.arena_used_bytes is not None and memory.arena_slack_bytes is not None:
        arena = f"{format_size(memory.arena_used_bytes)} / {format_size(memory.arena_slack_bytes)}"
    weights = memory.weight_bytes if memory else None
    return Row(
        str(session.pid),
        str(session.number),
        Cell(model_name(session), is_code=True),
        plain(session.created_at),
        str(session.intra_op_threads or "auto"),
        "" if weights is None else format_size(weights),
        arena,
        str(session.run_count),
        "never" if session.last_run_s is None else f"at {format_duration(session.last_run_s)}",
    )


def model_name(session: ProgramSession) -> str:
    """Return the file name of the model, or its size if it was created from bytes."""
    if session.model.path is not None:
        return plain(PurePath(session.model.path).name)
    return f"{format_size(session.model.bytes or 0)} of bytes"
