"""The report of a profile: the answer, why and what to do, the tables, then the details."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.detail import Detail
from memdiag.records.profile import Profile
from memdiag.reports import markdown as md
from memdiag.reports.console import block, files, labelled, line
from memdiag.reports.estimate.tables import MAX_LIVE
from memdiag.reports.findings import findings_markdown, profile_summary, show_findings
from memdiag.reports.phase_table import OPTIONAL_COLUMNS
from memdiag.reports.profile import page, picture
from memdiag.reports.profile.advice import profile_advice
from memdiag.reports.profile.facts import (
    environment_facts,
    facts_table,
    input_sentences,
    input_table,
    model_facts,
    sampling_facts,
    session_facts,
)
from memdiag.reports.profile.generation import (
    GENERATION_HEADING,
    generation_sentences,
    generation_table,
)
from memdiag.reports.profile.headline import profile_headline
from memdiag.reports.profile.phases import (
    copies_by_phase,
    notable_spans,
    phase_table,
    runs_summary,
)
from memdiag.reports.profile.run_peak import (
    no_run_peak,
    run_peak_sentences,
    run_peak_table,
)
from memdiag.reports.profile.trace import profile_trace
from memdiag.reports.report import Report
from memdiag.reports.table import Table, markdown_table, print_table
from memdiag.reports.text import capitalized, dim_hint, lowered, plain
from memdiag.reports.xray import show_xray, xray_markdown, xray_text
from memdiag.reports.xray.owners import owner_rows
from memdiag.units import counted, format_duration, format_size, some_of

if TYPE_CHECKING:
    from rich.console import Console

_MAX_CONSOLE_INPUTS = 6
_MAX_NAMED_FILES = 2
_MAX_NAMED_OWNERS = 2
_MAX_MARKDOWN_SPANS = 12
LIVE_HEADING = "In memory at the peak of a run, as estimated:"


def show(
    profile: Profile,
    console: Console,
    *,
    written: Sequence[Path] = (),
    detail: Detail = Detail.USUAL,
) -> None:
    """Print `profile`; `written` are the files to name; `detail` is how much."""
    answer = profile_headline(profile)
    style = "bold" if answer.completed else "bold red"
    line(console, f"{answer.model}: {lowered(answer.first)}", style)
    line(console, answer.second)
    facts = filter(None, (answer.facts, dim_hint(profile.dimensions)))
    line(console, " · ".join(facts), "dim")
    show_advice(profile, console)
    if detail is Detail.ANSWER:
        return
    if profile.phases:
        console.print()
        print_table(console, _phases(profile, console.width, detail))
    if detail is Detail.ALL:
        show_details(profile, console)
        files(console, written)
        return
    line(console, _steady_sentence(profile))
    block(console, run_peak_sentences(profile)[:1] or no_run_peak(profile))
    line(console, _left_out(profile))
    if written:
        folder = plain(str(written[0].parent))
        names = some_of([plain(path.name) for path in written], _MAX_NAMED_FILES)
        line(console, f"Written to {folder}: {names}.")


def show_advice(profile: Profile, console: Console) -> None:
    """Print the result, why, and what to do, below a blank line."""
    found = profile_advice(profile)
    console.print()
    labelled(console, "Result", found.result)
    labelled(console, "Why", found.reason)
    for number, step in enumerate(found.steps):
        labelled(console, "" if number else "What to do", step.text)
        labelled(console, "", step.command, "bold")


def _phases(profile: Profile, width: int, detail: Detail) -> Table:
    table = phase_table(profile, is_compared=detail is Detail.ALL)
    return table if profile.estimate is None else table.fitted(width, OPTIONAL_COLUMNS)


def _steady_sentence(profile: Profile) -> str:
    """Return the largest owners at steady state in one sentence; empty without an X-ray."""
    if profile.attribution is None:
        return ""
    trimmed = profile.allocator_retained_bytes or 0
    owners = owner_rows(profile.attribution, trimmed_bytes=trimmed)
    parts = [f"{row.label} {format_size(row.size_bytes)}" for row in owners]
    return f"At steady state: {some_of(parts, _MAX_NAMED_OWNERS, ' · ')}."


def _left_out(profile: Profile) -> str:
    """Return what is printed only on request."""
    parts = [
        counted(len(profile.findings), "finding") if profile.findings else "",
        "copies of weights" if profile.attribution is not None else "",
        "the inputs" if profile.inputs else "",
        counted(len(profile.notes), "note") if profile.notes else "",
    ]
    named = ", ".join(filter(None, parts))
    return f"With -v: {named}." if named else ""


def show_details(profile: Profile, console: Console) -> None:
    """Print what follows the answer and the table of phases."""
    grown = generation_table(profile)
    if grown.rows:
        block(console, generation_sentences(profile))
        console.print()
        line(console, GENERATION_HEADING)
        print_table(console, grown)
    block(console, run_peak_sentences(profile))
    live = run_peak_table(profile, max_tensors=MAX_LIVE)
    if live.rows:
        console.print()
        line(console, LIVE_HEADING)
        print_table(console, live)
    if profile.attribution is not None:
        trimmed = profile.allocator_retained_bytes or 0
        owned = xray_text(profile.attribution, trimmed_bytes=trimmed)
        show_xray(owned, console, heading=_owner_heading(profile))
    if profile.findings:
        console.print()
        show_findings(profile.findings, console)
        line(console, f"{profile_summary(profile)}.")
    block(console, [f"{row.title}: {row.sentence}" for row in notable_spans(profile)])
    block(console, [capitalized(runs_summary(profile).sentence)])
    block(console, copies_by_phase(profile))
    block(console, _input_lines(profile))
    block(console, [f"note: {plain(note)}" for note in profile.notes])


def _owner_heading(profile: Profile) -> str:
    return "owner (steady)" if profile.generation is None else "owner (last step)"


def _input_lines(profile: Profile) -> list[str]:
    sentences = input_sentences(profile)
    lines = [f"input {sentence}" for sentence in sentences[:_MAX_CONSOLE_INPUTS]]
    more = len(sentences) - _MAX_CONSOLE_INPUTS
    return (
        [*lines, f"and {counted(more, 'more input')}, listed in the reports"] if more > 0 else lines
    )


def markdown(profile: Profile) -> str:
    """Return the report for a pull request or a bug report."""
    answer = profile_headline(profile)
    phases = phase_table(profile)
    runs = runs_summary(profile).sentence
    spans = "\n".join(
        f"- {md.code(row.title)} ({row.phase}): {row.sentence}, in"
        f" {format_duration(row.duration_s)}"
        for row in notable_spans(profile, limit=_MAX_MARKDOWN_SPANS)
    )
    return md.document(
        (
            f"## Memory profile of {md.code(answer.model)}",
            f"**{md.escape(answer.first)}** {md.escape(answer.second)}",
            md.escape(answer.facts),
            _advice_markdown(profile),
            markdown_table(phases),
            md.escape(phases.caption) if phases.rows else "",
            *_generation_markdown(profile),
            *_run_peak_markdown(profile),
            *_owners_markdown(profile),
            *_findings_markdown(profile),
            md.section("What moved memory", spans),
            f"Runs: {md.escape(runs)}." if runs else "",
            md.section("Notes", md.bullets(map(plain, profile.notes))),
            md.folded("Model", markdown_table(facts_table(model_facts(profile)))),
            md.folded("Session", markdown_table(facts_table(session_facts(profile)))),
            md.folded("Inputs", markdown_table(input_table(profile))),
            md.folded("Environment", markdown_table(facts_table(environment_facts(profile)))),
            md.folded("Sampling", markdown_table(facts_table(sampling_facts(profile)))),
        )
    )


def _advice_markdown(profile: Profile) -> str:
    found = profile_advice(profile)
    steps = (
        md.escape(step.text) + (f" {md.code(step.command)}" if step.command else "")
        for step in found.steps
    )
    rows = (
        ("Result", md.escape(found.result)),
        ("Why", md.escape(found.reason)),
        *(("What to do", step) for step in steps),
    )
    return "\n".join(f"- **{label}:** {text}" for label, text in rows if text)


def _generation_markdown(profile: Profile) -> tuple[str, ...]:
    grown = generation_table(profile)
    if not grown.rows:
        return ()
    return (
        "### Generation",
        md.bullets(generation_sentences(profile)),
        GENERATION_HEADING,
        markdown_table(grown),
    )


def _run_peak_markdown(profile: Profile) -> tuple[str, ...]:
    if profile.run_peak is None:
        return ()
    live = run_peak_table(profile, max_tensors=MAX_LIVE)
    return (
        "### Peak of a run",
        md.escape(" ".join(run_peak_sentences(profile))),
        LIVE_HEADING if live.rows else "",
        markdown_table(live),
    )


def _owners_markdown(profile: Profile) -> tuple[str, ...]:
    if profile.attribution is None:
        return ()
    trimmed = profile.allocator_retained_bytes or 0
    owned = xray_text(profile.attribution, trimmed_bytes=trimmed)
    return xray_markdown(owned, *copies_by_phase(profile), heading=_owner_heading(profile))


def _findings_markdown(profile: Profile) -> tuple[str, ...]:
    if not profile.findings:
        return ()
    summary = f"**{md.escape(profile_summary(profile))}.**"
    return ("### Findings", summary, *findings_markdown(profile.findings))


REPORT = Report[Profile](
    name="profile",
    files={
        "html": "report.html",
        "issue": "issue.md",
        "json": "profile.json",
        "markdown": "report.md",
        "png": "timeline.png",
        "svg": "timeline.svg",
        "trace": "trace.json",
    },
    show=show,
    page=page.render,
    markdown=markdown,
    draw=picture.draw,
    trace=profile_trace,
    outlines_letters=True,
)
