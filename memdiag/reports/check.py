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
"""Inputs, dimensions and remedies that are listed."""


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
    """Print the costliest findings without details, and how many more there are."""
    findings = sorted(check.findings, key=lambda finding: -max(finding.bytes, finding.peak_bytes))
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
    omitted_count = len(findings) - limit
    omitted_texts = [f"{counted(omitted_count, 'more finding')}"] if omitted_count > 0 else []
    note_count = sum(len(model.notes) for model in check.models)
    omitted_texts += [counted(note_count, "note")] if note_count else []
    if detail is Detail.USUAL and len(check.models) == 1:
        print_separated_lines(console, _model_input_sentences(check.models[0]))
    if omitted_texts or findings:
        print_separated_lines(console, [f"With -v: {', '.join([*omitted_texts, 'details'])}."])


def _model_finding_texts(check: Check, model: CheckedModel) -> list[FindingText]:
    return [finding_text(finding) for finding in check.findings if finding.model == model.path]


def check_markdown(check: Check) -> str:
    """Return Markdown: the result, the findings, and the models that could not be examined."""
    blocks = ["## Memory check", f"**{md.escape(check_summary(check))}**"]
    for model in check.models:
        texts = _model_finding_texts(check, model)
        blocks += [
            f"### {md.code_span(plain(model.path))}",
            md.escape(plain(model.error or "")),
            findings_markdown(texts),
            md.bullet_list([*_model_input_sentences(model), *map(plain, model.notes)]),
        ]
    return md.document(blocks)


def _model_input_sentences(model: CheckedModel) -> list[str]:
    """Return sentences on the inputs and the sizes of their free dimensions."""
    if not model.inputs:
        return []
    texts = ["inputs " + some_of([*map(_input_type_text, model.inputs)], _MAX_LISTED_IN_CHECK)]
    names = typed_names(model.dimensions)
    explanations = {"given": "given", "chosen": "assumed; --dim NAME=N sets others"}
    for source, explanation in explanations.items():
        dimensions = [dimension for dimension in model.dimensions if dimension.source == source]
        sizes = [f"{plain(names[dimension.name])}={dimension.size}" for dimension in dimensions]
        if sizes:
            texts.append(f"free dimensions {some_of(sizes, _MAX_LISTED_IN_CHECK)} ({explanation})")
    return texts


def _input_type_text(model_input: ModelInput) -> str:
    if model_input.shape is None:
        return f"{plain(model_input.name)}: {plain(model_input.dtype)} of unknown rank"
    sizes = ", ".join(plain(str(size)) for size in model_input.shape)
    return f"{plain(model_input.name)}: {plain(model_input.dtype)}[{sizes}]"
