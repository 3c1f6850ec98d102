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
    BulletBlock,
    ChartBlock,
    CodeBlock,
    Document,
    FactsBlock,
    FindingsBlock,
    SentenceBlock,
    TableBlock,
    notes_block,
)
from memdiag.reports.findings import FindingText
from memdiag.reports.report import Report
from memdiag.reports.run import picture
from memdiag.reports.run.headline import run_headline, session_remarks
from memdiag.reports.run.names import model_names, session_name
from memdiag.reports.run.owners import process_owners, program_tiles
from memdiag.reports.run.peaks import largest_session, session_rise_bytes
from memdiag.reports.run.savings import sentences_after_findings
from memdiag.reports.run.sessions import (
    OPTIONAL_SESSION_COLUMNS,
    peak_and_rise_sentences,
    process_peak_table,
    process_table,
    session_phase_table,
    session_table,
    shape_table,
    summary_table,
)
from memdiag.reports.run.timeline import RunTimeline, left_out_texts, run_timeline
from memdiag.reports.run.trace import run_trace
from memdiag.reports.table import ALL_FORMATS
from memdiag.reports.text import plain
from memdiag.reports.xray.charts import tile_columns
from memdiag.reports.xray.memory_owners import largest_owners_text
from memdiag.units import format_duration, format_size

_MAX_USUAL_ROWS = 5
_MAX_OWNER_TABLES = 8
_MAX_OWNERS_LINE = 69  # after its label, in a line of 80 columns
_MAX_PHASE_TABLES = 6


def document(recording: ProgramRun) -> Document:
    """Return the report of `recording`."""
    answer = run_headline(recording)
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
            FindingsBlock(
                title="Findings",
                findings=[*map(_finding_text, recording.findings)],
                summary=" ".join(sentences_after_findings(recording)),
                # The table below tells more than further findings.
                max_rows=1,
                detail=Detail.ANSWER,
            ),
            *_largest_owners_block(recording),
            *_run_timeline_blocks(recording, answer.first),
            *_session_blocks(recording),
            *_peak_blocks(recording),
            *_process_owner_blocks(recording),
            TableBlock(
                title="Input shapes",
                table=shape_table(recording),
                formats=NOT_ON_TERMINALS,
                is_sortable=True,
            ),
            TableBlock(title="Processes", table=process_table(recording), formats=NOT_ON_TERMINALS),
            notes_block(recording.notes),
            FactsBlock(title="Environment", rows=_environment_rows(recording)),
            CodeBlock(
                title="The program",
                text=shlex.join(map(plain, recording.command)),
                language="console",
                formats=PAGE_ONLY,
            ),
        ],
    )


def _finding_text(finding: ProgramFinding) -> FindingText:
    return FindingText(
        rule=plain(finding.name),
        name=plain(finding.name),
        message=plain(finding.message),
        detail=f"→ {plain(finding.remedy)}" if finding.remedy else "",
        cost=f"could save {format_size(finding.bytes)}" if finding.bytes else "",
        size_bytes=finding.bytes or 0,
    )


def _largest_owners_block(recording: ProgramRun) -> list[Block]:
    """Return the largest owners in the largest process, if their table is printed on request."""
    owners_of_processes = process_owners(recording)
    if not owners_of_processes or _owner_table_detail(recording) is Detail.USUAL:
        return []
    owners = owners_of_processes[0]
    subject = f"process {owners.process.pid}: " if len(recording.processes) > 1 else ""
    texts = [f"{subject}{largest_owners_text(owners.rows, count)}" for count in (2, 3)]
    title = {"end": "At end", "peak": "Near peak", "request": "On request"}[owners.xray.reason]
    text = texts[len(texts[1]) <= _MAX_OWNERS_LINE]
    return [SentenceBlock(title=title, text=text, formats=TERMINAL_ONLY)]


def _owner_table_detail(recording: ProgramRun) -> Detail:
    """Return the detail from which on a terminal prints the tables of owners."""
    return Detail.ALL if recording.sessions or len(recording.processes) > 1 else Detail.USUAL


def _run_timeline_blocks(recording: ProgramRun, answer: str) -> list[Block]:
    timeline = run_timeline(recording)
    if not recording.samples.t_s and not timeline.lanes:
        return []
    has_bars = any(lane.bars for lane in timeline.lanes)
    return [
        ChartBlock(
            title="Timeline",
            name="timeline",
            script="run.js",
            data=lambda: {"run": asdict(timeline)},
            alt="Resident memory of each process over time"
            f"{', and the lives of its sessions' if has_bars else ''}. {answer}",
            hints=_timeline_hints(recording, timeline, has_bars=has_bars),
            has_ranges=True,
        )
    ]


def _timeline_hints(
    recording: ProgramRun, timeline: RunTimeline, *, has_bars: bool
) -> Sequence[str]:
    """Return how to read the timeline, and what it lacks."""
    reading_hint = (
        "Drag to zoom; double-click for the whole run. With the keyboard: arrows, + and −, 0."
        " trace.json shows the same in ui.perfetto.dev, which reads it in the browser."
    )
    if has_bars:
        reading_hint += (
            " Below the memory of a process are its sessions: the phases of the creation (the one"
            " with the peak is orange), the first run (blue), and the life until the release."
            " Diamonds are runs that raised the process's peak."
        )
    if timeline.end_xrays:
        xray_clause = (
            "the X-rays at the end were taken"
            if recording.is_watched
            else "processes waited for their X-rays at the end"
        )
        reading_hint += f" In the shaded time, {xray_clause}."
    gap_hint = (
        "A sample is drawn until the next one: the memory between samples is not known. Two samples"
        f" that differ are at most {format_duration(timeline.longest_gap_s)} apart."
    )
    return (reading_hint, gap_hint if timeline.longest_gap_s else "", *left_out_texts(timeline))


def _session_blocks(recording: ProgramRun) -> list[Block]:
    """Return the sessions and remarks on them. A terminal shows the processes if there are none."""
    return [
        TableBlock(
            title="Sessions" if recording.sessions else "Processes",
            table=summary_table(recording) if recording.sessions else process_peak_table(recording),
            max_rows=_MAX_USUAL_ROWS,
            optional=OPTIONAL_SESSION_COLUMNS,
            formats=TERMINAL_ONLY,
        ),
        TableBlock(
            title="Sessions",
            table=session_table(recording),
            formats=NOT_ON_TERMINALS,
            is_sortable=True,
        ),
        BulletBlock(
            title="Remarks", texts=session_remarks(recording), detail=Detail.ALL, short="remarks"
        ),
    ]


def _peak_blocks(recording: ProgramRun) -> list[Block]:
    """Return what was active at the peak, and the phases of the sessions that rose most."""
    largest, models = largest_session(recording), model_names(recording)
    sessions_by_rise = sorted(recording.sessions, key=session_rise_bytes, reverse=True)
    return [
        BulletBlock(
            title="Peak and largest rises",
            texts=peak_and_rise_sentences(recording),
            detail=Detail.ALL,
            short="the largest rises",
        ),
        *(
            TableBlock(
                title=f"Phases of {session_name(session, models)}",
                table=session_phase_table(session, recording),
                detail=Detail.ALL,
                formats=ALL_FORMATS if session is largest else PAGE_ONLY,
                is_folded=session is not largest,
            )
            for session in sessions_by_rise[:_MAX_PHASE_TABLES]
        ),
    ]


def _process_owner_blocks(recording: ProgramRun) -> list[Block]:
    """Return the owners of the memory of each process that was X-rayed."""
    owners_of_processes, tiles = process_owners(recording), program_tiles(recording)
    if not tiles:
        return []
    return [
        ChartBlock(
            title="Who owns it",
            name="treemap",
            script="owners.js",
            data=lambda: {"xrays": [{"tiles": tile_columns(tiles)}]},
            alt="Processes, their sessions and the owners of their memory as tiles; the tables"
            " below contain the same",
            hints=("Click a tile to zoom in, the bar above to zoom out.",),
        ),
        *(
            TableBlock(
                title=f"Owners in process {owners.process.pid} {owners.moment}",
                table=owners.table(),
                max_rows=_MAX_USUAL_ROWS,
                detail=_owner_table_detail(recording),
                short="owners of the memory" if number == 0 else "",
                is_folded=number > 0,
            )
            for number, owners in enumerate(owners_of_processes[:_MAX_OWNER_TABLES])
        ),
    ]


def _environment_rows(recording: ProgramRun) -> Sequence[tuple[str, str]]:
    machine = recording.environment
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
