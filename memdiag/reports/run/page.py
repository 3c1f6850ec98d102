"""The page of a recorded program: timeline, sessions, findings, owners, input shapes."""

from __future__ import annotations

import shlex
from dataclasses import asdict

from memdiag.records import codec
from memdiag.records.run import ProgramRun
from memdiag.reports.page import page
from memdiag.reports.run.headline import finding_texts, remarks, run_headline
from memdiag.reports.run.names import model_names, session_name
from memdiag.reports.run.owners import process_owners, tiles
from memdiag.reports.run.peaks import largest_session, rise_bytes
from memdiag.reports.run.savings import after_findings
from memdiag.reports.run.sessions import (
    peak_sentences,
    phase_table,
    process_table,
    session_table,
    shape_table,
)
from memdiag.reports.run.timeline import left_out_texts, run_timeline
from memdiag.reports.text import plain
from memdiag.reports.xray.charts import tile_columns
from memdiag.units import format_duration

_MAX_SESSIONS = 300
_MAX_SHAPES = 300
_MAX_PROCESSES = 100
_MAX_FINDINGS = 100
_MAX_PHASE_TABLES = 6
_MAX_OWNERS = 8


def render(run: ProgramRun) -> bytes:
    """Return the page for `run`."""
    answer = run_headline(run)
    line = run_timeline(run)
    models = model_names(run)
    largest = largest_session(run)
    created = sorted(run.sessions, key=rise_bytes, reverse=True)
    sessions_with_phases = [session for session in created[:_MAX_PHASE_TABLES] if session.phases]
    version = run.environment.memdiag
    owned = tiles(run)
    values = {
        "answer": answer,
        "has_timeline": bool(run.samples.t_s or line.lanes),
        "has_bars": any(lane.bars for lane in line.lanes),
        "is_watched": run.is_watched,
        "longest_gap": format_duration(line.longest_gap_s) if line.longest_gap_s else "",
        "has_end_xrays": bool(line.end_xrays),
        "left_out": left_out_texts(line),
        "findings": [finding_texts(finding) for finding in run.findings[:_MAX_FINDINGS]],
        "unlisted_findings": max(0, len(run.findings) - _MAX_FINDINGS),
        "after_findings": after_findings(run),
        "remarks": remarks(run),
        "peaks": peak_sentences(run),
        "sessions": session_table(run, limit=_MAX_SESSIONS),
        "unlisted_sessions": max(0, len(run.sessions) - _MAX_SESSIONS),
        "phases": [
            (session_name(session, models), session is largest, phase_table(session, run))
            for session in sessions_with_phases
        ],
        "owned": bool(owned),
        "owners": [(each, each.table()) for each in process_owners(run)[:_MAX_OWNERS]],
        "shapes": shape_table(run, limit=_MAX_SHAPES),
        "processes": process_table(run, limit=_MAX_PROCESSES),
        "notes": tuple(map(plain, run.notes)),
        "facts": (
            ("onnxruntime", plain(run.environment.onnxruntime or "not used")),
            ("Python", plain(run.environment.python or "unknown")),
            ("Platform", plain(run.environment.platform)),
            ("CPU", f"{plain(run.environment.cpu)}, {run.environment.cpu_count} CPUs"),
            ("memdiag", plain(version)),
        ),
        "command": shlex.join(map(plain, run.command)),
    }
    return page(
        "run.html.j2",
        ("run.js", "owners.js"),
        values,
        charts={"run": asdict(line), "xrays": [{"tiles": tile_columns(owned)}]},
        record=codec.encode(run),
        record_name="run",
        record_kind="run",
    )
