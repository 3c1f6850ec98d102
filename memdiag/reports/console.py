"""The summary on a terminal: the answer, why and what to do, the tables, then the details."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.records.profile import Profile
from memdiag.reports import attribution_console
from memdiag.reports.checks.console import show_findings
from memdiag.reports.terminal import block, draw, encodable, files, labelled, line
from memdiag.reports.views import (
    copies_by_phase,
    facts,
    findings,
    glance,
    headline,
    phase_table,
    runs,
    span_table,
)
from memdiag.reports.views.text import shortened

if TYPE_CHECKING:
    from rich.console import Console

_MOST_INPUTS = 6


def show(
    profile: Profile, console: Console, *, written: Sequence[Path] = (), quiet: bool = False
) -> None:
    """Print `profile` on `console`; `written` are the files to name, `quiet` the answer only.

    Names are printed as they are, never as markup, and nothing is told by colour alone.
    """
    draw(console, lambda: _show(profile, console, written, quiet))


def _show(profile: Profile, console: Console, written: Sequence[Path], quiet: bool) -> None:
    answer = headline.build(profile)
    line(
        console,
        f"{answer.model}: {_lowered(answer.first)}",
        "bold" if answer.completed else "bold red",
    )
    line(console, answer.second)
    if quiet:
        return
    line(console, answer.facts, "dim")
    console.print()
    shown = glance.build(profile)
    labelled(console, "Result", shown.wrong)
    labelled(console, "Why", shown.why)
    for number, step in enumerate(shown.steps):
        labelled(console, "" if number else "What to do", step.text)
        if step.command:
            labelled(console, "", step.command, "bold")
    if profile.phases:
        console.print()
        _phases(console, profile)
    if profile.attribution is not None:
        attribution_console.section(
            profile.attribution,
            console,
            heading="owner (steady)",
            trimmed_bytes=profile.allocator_retained_bytes or 0,
        )
    if profile.findings:
        console.print()
        show_findings(profile.findings, console, told=shown.why)
        line(console, f"{findings.profile_summary(profile)}.")
    block(console, [f"{row.title}: {row.sentence}" for row in span_table.notable(profile)])
    block(console, [_lowered(runs.build(profile).sentence, upper=True)])
    block(console, [row.sentence for row in copies_by_phase.build(profile)])
    block(console, _inputs(profile))
    block(console, [f"note: {note}" for note in facts.notes(profile)])
    files(console, written)


def _phases(console: Console, profile: Profile) -> None:
    from rich.table import Table
    from rich.text import Text

    view = phase_table.build(profile)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("phase", no_wrap=True)
    for heading in ("time", "at start", view.peak_heading, "at end", "kept"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(
        "grown by" if any(row.responsible for row in view.rows) else "", overflow="fold"
    )
    for row in view.rows:
        here = row.ended_here or shortened(row.responsible, 32)
        label = "  " * row.level + row.label
        cells = (label, row.time, row.start, row.peak, row.end, row.kept, here)
        style = "bold" if row.is_peak else ""
        table.add_row(*(Text(encodable(console, cell)) for cell in cells), style=style)
    console.print(table)
    line(console, view.caption, "dim")


def _inputs(profile: Profile) -> list[str]:
    rows = facts.inputs(profile)
    lines = [f"input {row.sentence}" for row in rows[:_MOST_INPUTS]]
    if len(rows) > _MOST_INPUTS:
        lines.append(f"and {len(rows) - _MOST_INPUTS} inputs more, listed in the reports")
    return lines


def _lowered(sentence: str, *, upper: bool = False) -> str:
    first = sentence[:1]
    return (first.upper() if upper else first.lower()) + sentence[1:]
