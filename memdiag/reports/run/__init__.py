"""The report of a program: its processes, its sessions, and where their memory is."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict

from memdiag.detail import Detail
from memdiag.records.run import ProgramFinding, ProgramRun
from memdiag.reports.blocks import (
    NOT_ON_TERMINALS,
    PAGE_ONLY,
    TERMINAL_ONLY,
    Block,
    Chart,
    Code,
    Document,
    Facts,
    Figures,
    FindingList,
    Points,
    Sentence,
    notes_block,
)
from memdiag.reports.findings import FindingText
from memdiag.reports.report import Report
from memdiag.reports.run import picture
from memdiag.reports.run.headline import remarks, run_headline
from memdiag.reports.run.names import model_names, session_name
from memdiag.reports.run.owners import process_owners, tiles
from memdiag.reports.run.peaks import largest_session, rise_bytes
from memdiag.reports.run.savings import after_findings
from memdiag.reports.run.sessions import (
    OPTIONAL_COLUMNS,
    peak_sentences,
    peak_table,
    phase_table,
    process_table,
    session_table,
    shape_table,
    summary_table,
)
from memdiag.reports.run.timeline import RunTimeline, left_out_texts, run_timeline
from memdiag.reports.run.trace import run_trace
from memdiag.reports.table import ALL_FORMATS
from memdiag.reports.text import plain
from memdiag.reports.xray.charts import tile_columns
from memdiag.reports.xray.owners import largest_owners
from memdiag.units import format_duration, format_size

_MAX_USUAL_ROWS = 5
_MAX_OWNERS = 8
_MAX_OWNERS_LINE = 69  # after its label, in a line of 80 columns
_MAX_PHASE_TABLES = 6


def document(run: ProgramRun) -> Document:
    """Return the report of `run`."""
    answer = run_headline(run)
    return Document(
        subject=answer.program,
        kind="recording of a program",
        answer=answer.first,
        line=answer.first,
        style="bold" if answer.is_success else "bold red",
        is_bad=not answer.is_success,
        rest=answer.second,
        facts=answer.facts,
        blocks=[
            FindingList(
                title="Findings",
                findings=[*map(_finding, run.findings)],
                summary=" ".join(after_findings(run)),
                # The table below says more than further findings.
                max_rows=1,
                detail=Detail.ANSWER,
            ),
            *_largest_owners(run),
            *_timeline(run, answer.first),
            *_sessions(run),
            *_peaks(run),
            *_owners(run),
            Figures(
                title="Input shapes",
                table=shape_table(run),
                formats=NOT_ON_TERMINALS,
                is_sortable=True,
            ),
            Figures(title="Processes", table=process_table(run), formats=NOT_ON_TERMINALS),
            notes_block(run.notes),
            Facts(title="Environment", rows=_environment(run)),
            Code(
                title="The program",
                text=shlex.join(map(plain, run.command)),
                language="console",
                formats=PAGE_ONLY,
            ),
        ],
    )


def _finding(finding: ProgramFinding) -> FindingText:
    return FindingText(
        rule=plain(finding.name),
        name=plain(finding.name),
        message=plain(finding.message),
        detail=f"→ {plain(finding.remedy)}" if finding.remedy else "",
        cost=f"could save {format_size(finding.bytes)}" if finding.bytes else "",
        size_bytes=finding.bytes or 0,
    )


def _largest_owners(run: ProgramRun) -> list[Block]:
    """Return the largest owners in the largest process, where their table has to be asked for."""
    found = process_owners(run)
    if not found or _owners_detail(run) is Detail.USUAL:
        return []
    process, xray, rows = found[0].process, found[0].xray, found[0].rows
    subject = f"process {process.pid}: " if len(run.processes) > 1 else ""
    texts = [f"{subject}{largest_owners(rows, count)}" for count in (2, 3)]
    title = {"end": "At end", "peak": "Near peak", "request": "On request"}[xray.reason]
    text = texts[len(texts[1]) <= _MAX_OWNERS_LINE]
    return [Sentence(title=title, text=text, formats=TERMINAL_ONLY)]


def _owners_detail(run: ProgramRun) -> Detail:
    """Return how much has to be asked for, so that a terminal prints the tables of owners."""
    return Detail.ALL if run.sessions or len(run.processes) > 1 else Detail.USUAL


def _timeline(run: ProgramRun, answer: str) -> list[Block]:
    line = run_timeline(run)
    if not run.samples.t_s and not line.lanes:
        return []
    has_bars = any(lane.bars for lane in line.lanes)
    return [
        Chart(
            title="Timeline",
            name="timeline",
            script="run.js",
            data=lambda: {"run": asdict(line)},
            alt="Resident memory of each process over time"
            f"{', and the lives of its sessions' if has_bars else ''}. {answer}",
            hints=_hints(run, line, has_bars=has_bars),
            has_ranges=True,
        )
    ]


def _hints(run: ProgramRun, line: RunTimeline, *, has_bars: bool) -> Sequence[str]:
    """Return how to read the timeline, and what is not in it."""
    how = (
        "Drag to zoom; double-click for the whole run. With the keyboard: arrows, + and −, 0."
        " trace.json shows the same in ui.perfetto.dev, which reads it in the browser."
    )
    if has_bars:
        how += (
            " Below the memory of a process are its sessions: the phases of the creation (the one"
            " with the peak is orange), the first run (blue), and the life until the release."
            " Diamonds are runs that raised the process's peak."
        )
    if line.end_xrays:
        what = (
            "the X-rays at the end were taken"
            if run.is_watched
            else "processes waited for their X-rays at the end"
        )
        how += f" In the shaded time, {what}."
    gap = (
        "A sample is drawn until the next one: the memory between samples is not known. Two samples"
        f" that differ are at most {format_duration(line.longest_gap_s)} apart."
    )
    return (how, gap if line.longest_gap_s else "", *left_out_texts(line))


def _sessions(run: ProgramRun) -> list[Block]:
    """Return the sessions (on a terminal without any, the processes), and remarks on them."""
    return [
        Figures(
            title="Sessions" if run.sessions else "Processes",
            table=summary_table(run) if run.sessions else peak_table(run),
            max_rows=_MAX_USUAL_ROWS,
            optional=OPTIONAL_COLUMNS,
            formats=TERMINAL_ONLY,
        ),
        Figures(
            title="Sessions",
            table=session_table(run),
            formats=NOT_ON_TERMINALS,
            is_sortable=True,
        ),
        Points(title="Remarks", texts=remarks(run), detail=Detail.ALL, short="remarks"),
    ]


def _peaks(run: ProgramRun) -> list[Block]:
    """Return what was active at the peak, and the phases of the sessions that rose most."""
    largest, models = largest_session(run), model_names(run)
    created = sorted(run.sessions, key=rise_bytes, reverse=True)[:_MAX_PHASE_TABLES]
    return [
        Points(
            title="Peak and largest rises",
            texts=peak_sentences(run),
            detail=Detail.ALL,
            short="the largest rises",
        ),
        *(
            Figures(
                title=f"Phases of {session_name(session, models)}",
                table=phase_table(session, run),
                detail=Detail.ALL,
                formats=ALL_FORMATS if session is largest else PAGE_ONLY,
                is_folded=session is not largest,
            )
            for session in created
        ),
    ]


def _owners(run: ProgramRun) -> list[Block]:
    """Return the owners of the memory of each process that was X-rayed."""
    found, tiled = process_owners(run), tiles(run)
    if not tiled:
        return []
    return [
        Chart(
            title="Who owns it",
            name="treemap",
            script="owners.js",
            data=lambda: {"xrays": [{"tiles": tile_columns(tiled)}]},
            alt="Processes, their sessions and the owners of their memory as tiles; the tables"
            " below contain the same",
            hints=("Click a tile to zoom in, the bar above to zoom out.",),
        ),
        *(
            Figures(
                title=f"Owners in process {each.process.pid} {each.moment}",
                table=each.table(),
                max_rows=_MAX_USUAL_ROWS,
                detail=_owners_detail(run),
                short="owners of the memory" if number == 0 else "",
                is_folded=number > 0,
            )
            for number, each in enumerate(found[:_MAX_OWNERS])
        ),
    ]


def _environment(run: ProgramRun) -> Sequence[tuple[str, str]]:
    machine = run.environment
    return (
        ("onnxruntime", plain(machine.onnxruntime or "not used")),
        ("Python", plain(machine.python or "unknown")),
        ("Platform", plain(machine.platform)),
        ("CPU", f"{plain(machine.cpu)}, {machine.cpu_count} CPUs"),
        ("memdiag", plain(machine.memdiag)),
    )


REPORT = Report[ProgramRun](
    "run",
    {
        "html": "report.html",
        "issue": "issue.md",
        "json": "run.json",
        "markdown": "report.md",
        "png": "timeline.png",
        "svg": "timeline.svg",
        "trace": "trace.json",
    },
    document,
    picture.draw,
    run_trace,
    outlines_letters=True,
)
