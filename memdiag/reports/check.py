"""The report of a check: findings as a linter prints them, and in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memdiag.records.dimension import ModelInput
from memdiag.records.finding import Check, CheckedModel
from memdiag.reports import markdown as md
from memdiag.reports.console import line, plain_output
from memdiag.reports.findings import check_summary, findings_markdown, show_findings
from memdiag.reports.text import plain
from memdiag.units import some_of

if TYPE_CHECKING:
    from rich.console import Console

_MAX_NAMED = 4
"""Inputs and dimensions of a model that are listed."""


def show(check: Check, console: Console, *, quiet: bool = False) -> None:
    """Print `check` on `console`; `quiet` prints only the last line."""
    with plain_output(console):
        if not quiet:
            for model in check.models:
                found = [finding for finding in check.findings if finding.model == model.path]
                show_findings(found, console, names_model=True)
                for text in (*_inputs(model), *(f"note: {plain(note)}" for note in model.notes)):
                    line(console, f"{plain(model.path)}: {text}", "dim")
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
        blocks += [
            f"### {md.code(plain(model.path))}",
            md.escape(plain(model.error or "")),
            *findings_markdown(found),
            md.bullets([*_inputs(model), *map(plain, model.notes)]),
        ]
    return md.document(blocks)


def _inputs(model: CheckedModel) -> list[str]:
    """Return sentences on the inputs and their free dimensions, with the sizes that are assumed."""
    if not model.inputs:
        return []
    texts = ["inputs " + some_of([*map(_input, model.inputs)], _MAX_NAMED)]
    for source, how in (("given", "given"), ("chosen", "assumed; --dim NAME=N sets others")):
        sizes = [f"{plain(d.name)}={d.size}" for d in model.dimensions if d.source == source]
        if sizes:
            texts.append(f"free dimensions {some_of(sizes, _MAX_NAMED)} ({how})")
    return texts


def _input(value: ModelInput) -> str:
    if value.shape is None:
        return f"{plain(value.name)}: {plain(value.dtype)} of unknown rank"
    sizes = ", ".join(plain(str(size)) for size in value.shape)
    return f"{plain(value.name)}: {plain(value.dtype)}[{sizes}]"
