"""The report of a check: findings as a linter prints them, and in Markdown."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from memdiag.detail import Detail
from memdiag.records.dimension import ModelInput, typed_names
from memdiag.records.finding import Check, CheckedModel
from memdiag.reports import markdown as md
from memdiag.reports.console import plain_output, print_line, print_separated_lines
from memdiag.reports.findings import (
    FindingText,
    check_summary,
    finding_text,
    findings_markdown,
    print_findings,
)
from memdiag.reports.text import plain
from memdiag.units import counted, some_of

if TYPE_CHECKING:
    from rich.console import Console

_MAX_COSTLIEST_FINDINGS = 5
_MAX_PRINTED_MESSAGE = 200
_MAX_LISTED_IN_CHECK = 4
"""Inputs and dimensions of a model that are listed."""


def print_check_report(check: Check, console: Console, *, detail: Detail = Detail.USUAL) -> None:
    """Print `check` on `console`; `detail` is how much."""
    with plain_output(console):
        print_line(console, check_summary(check), "bold")
        if detail is Detail.ALL:
            _print_all_findings(check, console)
        else:
            _print_costliest_findings(check, console, detail)


def _print_all_findings(check: Check, console: Console) -> None:
    if check.findings or any(model.inputs or model.notes for model in check.models):
        console.print()
    for model in check.models:
        print_findings(_model_finding_texts(check, model), console, names_model=True)
        for text in (
            *_model_input_sentences(model),
            *(f"note: {plain(note)}" for note in model.notes),
        ):
            print_line(console, f"{plain(model.path)}: {text}", "dim")
    names = dict.fromkeys(plain(finding.name) for finding in check.findings)
    if names:
        hints = " · ".join(f"memdiag explain {name}" for name in names)
        print_line(console, f"explanation: {hints}", "dim")


def _print_costliest_findings(check: Check, console: Console, detail: Detail) -> None:
    """Print the costliest findings without details, and how many are left out."""
    findings = sorted(check.findings, key=lambda each: -max(each.bytes, each.peak_bytes))
    limit = _MAX_COSTLIEST_FINDINGS if detail is Detail.USUAL else 1
    for finding in findings[:limit]:
        text = finding_text(finding)
        message = textwrap.shorten(text.message, _MAX_PRINTED_MESSAGE, placeholder=" …")
        console.print()
        print_line(console, f"{text.model}: {message} [{text.name}]")
        remedies = some_of(text.remedies, _MAX_LISTED_IN_CHECK)
        print_line(
            console, f"  {text.cost or text.evidence}{remedies and f' · remedy: {remedies}'}"
        )
    more = len(findings) - limit
    left_out = [f"{counted(more, 'more finding')}"] if more > 0 else []
    notes = sum(len(model.notes) for model in check.models)
    left_out += [counted(notes, "note")] if notes else []
    if detail is Detail.USUAL and len(check.models) == 1:
        print_separated_lines(console, _model_input_sentences(check.models[0]))
    if left_out or findings:
        print_separated_lines(console, [f"With -v: {', '.join([*left_out, 'details'])}."])


def _model_finding_texts(check: Check, model: CheckedModel) -> list[FindingText]:
    return [finding_text(finding) for finding in check.findings if finding.model == model.path]


def check_markdown(check: Check) -> str:
    """Return Markdown: the result, the findings, and the models that could not be examined."""
    blocks = ["## Memory check", f"**{md.escape(check_summary(check))}**"]
    for model in check.models:
        found = _model_finding_texts(check, model)
        blocks += [
            f"### {md.code_span(plain(model.path))}",
            md.escape(plain(model.error or "")),
            findings_markdown(found),
            md.bullet_list([*_model_input_sentences(model), *map(plain, model.notes)]),
        ]
    return md.document(blocks)


def _model_input_sentences(model: CheckedModel) -> list[str]:
    """Return sentences on the inputs and their free dimensions, with the sizes that are assumed."""
    if not model.inputs:
        return []
    texts = ["inputs " + some_of([*map(_input_type_text, model.inputs)], _MAX_LISTED_IN_CHECK)]
    names = typed_names(model.dimensions)
    for source, how in (("given", "given"), ("chosen", "assumed; --dim NAME=N sets others")):
        found = [each for each in model.dimensions if each.source == source]
        sizes = [f"{plain(names[each.name])}={each.size}" for each in found]
        if sizes:
            texts.append(f"free dimensions {some_of(sizes, _MAX_LISTED_IN_CHECK)} ({how})")
    return texts


def _input_type_text(value: ModelInput) -> str:
    if value.shape is None:
        return f"{plain(value.name)}: {plain(value.dtype)} of unknown rank"
    sizes = ", ".join(plain(str(size)) for size in value.shape)
    return f"{plain(value.name)}: {plain(value.dtype)}[{sizes}]"
