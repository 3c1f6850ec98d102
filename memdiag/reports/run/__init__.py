"""The report of a program: its processes, its sessions, and where their memory is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.detail import Detail
from memdiag.records.run import ProgramRun
from memdiag.reports import markdown as md
from memdiag.reports.console import block, files, line
from memdiag.reports.report import Report
from memdiag.reports.run import page, picture
from memdiag.reports.run.headline import finding_texts, remarks, run_headline
from memdiag.reports.run.names import numbers
from memdiag.reports.run.owners import process_owners
from memdiag.reports.run.peaks import largest_session
from memdiag.reports.run.savings import after_findings
from memdiag.reports.run.sessions import (
    peak_sentences,
    peak_table,
    phase_table,
    process_table,
    session_table,
    shape_table,
    summary_table,
)
from memdiag.reports.run.trace import run_trace
from memdiag.reports.table import Table, markdown_table, print_table
from memdiag.reports.text import plain
from memdiag.units import counted

if TYPE_CHECKING:
    from rich.console import Console

_MAX_CONSOLE_FINDINGS = 10
_MAX_USUAL_FINDINGS = 3
_MAX_USUAL_ROWS = 5
_MAX_CONSOLE_OWNERS = 3  # processes
_MAX_MARKDOWN_ROWS = 50


def show(
    run: ProgramRun,
    console: Console,
    *,
    written: Sequence[Path] = (),
    detail: Detail = Detail.USUAL,
) -> None:
    """Print `run`; `written` are the files to name; `detail` is how much."""
    answer = run_headline(run)
    line(console, answer.first, "bold" if answer.is_success else "bold red")
    line(console, answer.second)
    if detail is Detail.ALL:
        show_sessions_and_findings(run, console)
        show_details(run, console)
        files(console, written)
        return
    table = _usual_table(run, console.width)
    # The owners of a process without known sessions say more than further findings.
    shown = _MAX_USUAL_FINDINGS if run.sessions and detail is Detail.USUAL else 1
    _show_findings(run, console, limit=shown)
    if detail is Detail.ANSWER:
        return
    more_rows = 0
    if table is not None:
        console.print()
        print_table(console, table.first_rows(_MAX_USUAL_ROWS))
        more_rows = len(table.rows) - _MAX_USUAL_ROWS
    block(console, [_left_out(run, more_rows)])
    files(console, written)


def _usual_table(run: ProgramRun, width: int) -> Table | None:
    """Return the table of the sessions, of several processes, or of the owners of one."""
    if run.sessions:
        return summary_table(run, width=width)
    if len(run.processes) > 1:
        return peak_table(run)
    owners = process_owners(run)
    return owners[0].table() if owners else None


def _left_out(run: ProgramRun, rows: int) -> str:
    """Return what is printed only on request; `rows` are missing in the table."""
    is_missing = run.sessions or len(run.processes) > 1
    parts = [
        counted(rows, "more row") if rows > 0 else "",
        "the largest rises",
        "owners of the memory" if is_missing and process_owners(run) else "",
        counted(len(run.notes), "note") if run.notes else "",
    ]
    return f"With -v: {', '.join(filter(None, parts))}."


def show_details(run: ProgramRun, console: Console) -> None:
    """Print the peaks, the owners of the memory and the notes."""
    session = largest_session(run)
    block(console, list(peak_sentences(run)))
    if session is not None and session.phases:
        print_table(console, phase_table(session, run))
    found = process_owners(run)
    for owners in found[:_MAX_CONSOLE_OWNERS]:
        console.print()
        print_table(console, owners.table())
        line(console, f"Process {owners.process.pid} {owners.moment}.", "dim")
        for note in owners.notes:
            line(console, f"note: {note}")
    left_out = found[_MAX_CONSOLE_OWNERS:]
    if left_out:
        pids = numbers(each.process.pid for each in left_out)
        plural = "es" if len(left_out) > 1 else ""
        line(console, f"The owners of process{plural} {pids} are in the report.", "dim")
    block(console, [f"note: {plain(note)}" for note in run.notes])


def show_sessions_and_findings(run: ProgramRun, console: Console) -> None:
    """Print the sessions (without any, the processes), remarks on them, and the findings."""
    if run.sessions:
        console.print()
        print_table(console, summary_table(run, width=console.width))
    elif len(run.processes) > 1:
        console.print()
        print_table(console, peak_table(run))
    block(console, remarks(run))
    _show_findings(run, console, limit=_MAX_CONSOLE_FINDINGS)


def _show_findings(run: ProgramRun, console: Console, *, limit: int) -> None:
    if run.findings:
        console.print()
    for finding in run.findings[:limit]:
        message, remedy = finding_texts(finding)
        line(console, f"- {message}", "bold")
        line(console, f"  → {remedy}" if remedy else "")
    more = len(run.findings) - limit
    line(console, f"{counted(more, 'more finding')} in the reports" if more > 0 else "")
    block(console, after_findings(run))


def markdown(run: ProgramRun) -> str:
    """Return the report for a pull request or a bug report."""
    answer = run_headline(run)
    session = largest_session(run)
    peaks = md.bullets(peak_sentences(run))
    if session is not None and session.phases:
        table = phase_table(session, run)
        peaks = "\n\n".join((peaks, markdown_table(table), md.escape(table.caption)))
    owners = [
        "\n\n".join(
            (
                md.escape(f"Process {each.process.pid} {each.moment}:"),
                markdown_table(each.table()),
                md.bullets(each.notes),
            )
        ).strip()
        for each in process_owners(run)
    ]
    findings = "\n".join(
        f"- {md.escape(message)}" + (f" **{md.escape(remedy)}**" if remedy else "")
        for message, remedy in map(finding_texts, run.findings)
    )
    return md.document(
        (
            f"## Memory of {md.code(answer.program)}",
            f"**{md.escape(answer.first)}** {md.escape(answer.second)}".strip(),
            md.escape(answer.facts),
            md.section("Findings", findings),
            md.bullets(after_findings(run)),
            md.section("Sessions", _long(session_table(run, limit=_MAX_MARKDOWN_ROWS), run)),
            md.bullets(remarks(run)),
            md.section("Peak and largest rises", peaks),
            md.section("Who owns it", "\n\n".join(owners)),
            md.folded("Input shapes", markdown_table(shape_table(run, limit=_MAX_MARKDOWN_ROWS))),
            md.folded("Processes", markdown_table(process_table(run, limit=_MAX_MARKDOWN_ROWS))),
            md.section("Notes", md.bullets(map(plain, run.notes))),
        )
    )


def _long(table: Table, run: ProgramRun) -> str:
    """Return the table of sessions, and how many are not in it."""
    if not table.rows:
        return ""
    more = len(run.sessions) - len(table.rows)
    left_out = f"{counted(more, 'more session')} in the record (JSON). " if more > 0 else ""
    return f"{markdown_table(table)}\n\n{md.escape(left_out + table.caption)}"


REPORT = Report[ProgramRun](
    name="run",
    files={
        "html": "report.html",
        "issue": "issue.md",
        "json": "run.json",
        "markdown": "report.md",
        "png": "timeline.png",
        "svg": "timeline.svg",
        "trace": "trace.json",
    },
    show=show,
    page=page.render,
    markdown=markdown,
    draw=picture.draw,
    trace=run_trace,
    outlines_letters=True,
)
