"""The report of a check: findings as a linter prints them, and in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memdiag.records.finding import Check
from memdiag.reports import markdown as md
from memdiag.reports.console import line, plain_output
from memdiag.reports.findings import check_summary, findings_markdown, show_findings
from memdiag.reports.text import plain

if TYPE_CHECKING:
    from rich.console import Console


def show(check: Check, console: Console, *, quiet: bool = False) -> None:
    """Print `check` on `console`; `quiet` prints only the last line."""
    with plain_output(console):
        if not quiet:
            for model in check.models:
                found = [finding for finding in check.findings if finding.model == model.path]
                show_findings(found, console, names_model=True)
                for note in model.notes:
                    line(console, f"{plain(model.path)}: note: {plain(note)}", "dim")
            names = dict.fromkeys(plain(finding.name) for finding in check.findings)
            if names:
                hints = " · ".join(f"memdiag explain {name}" for name in names)
                line(console, f"explanation: {hints}", "dim")
        line(console, check_summary(check))


def markdown(check: Check) -> str:
    """Return Markdown: the result, the findings, and the models that could not be examined."""
    blocks = ["## Memory check", f"**{md.escape(check_summary(check))}**"]
    for model in check.models:
        found = [finding for finding in check.findings if finding.model == model.path]
        if model.error is None and not found and not model.notes:
            continue
        blocks += [
            f"### {md.code(plain(model.path))}",
            md.escape(plain(model.error or "")),
            *findings_markdown(found),
            md.bullets(map(plain, model.notes)),
        ]
    return md.document(blocks)
