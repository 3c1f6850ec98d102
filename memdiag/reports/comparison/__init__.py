"""The report of a comparison: the answer, the tables, and what differs and why."""

from __future__ import annotations

from memdiag.detail import Detail
from memdiag.records.comparison import Comparison
from memdiag.reports.blocks import (
    NOT_ON_TERMINALS,
    Block,
    Document,
    Figures,
    Picture,
    Points,
    notes_block,
)
from memdiag.reports.comparison.picture import draw, timeline_of
from memdiag.reports.comparison.sentences import (
    MAX_COMPLETE_COLUMNS,
    answer,
    bisection_result,
    change_sentence,
    copies_sentence,
    finding_sentences,
    problems,
    short_changes,
    title,
)
from memdiag.reports.comparison.tables import comparison_tables
from memdiag.reports.report import ISSUE_FILE, Report, file_names
from memdiag.reports.text import capitalized
from memdiag.units import counted

_MAX_FINDINGS = 2
"""Findings that a terminal prints unless everything is asked for."""


def document(comparison: Comparison) -> Document:
    """Return the report of `comparison`."""
    result = bisection_result(comparison)
    # What limits a comparison of saved profiles is a part of its answer.
    is_of_profiles = comparison.kind == "profiles"
    usual = _usual_tables(comparison)
    differences = f"{capitalized(answer(comparison))}."
    findings = finding_sentences(comparison)
    tables: list[Block] = [
        Figures(
            title=heading,
            table=table,
            detail=Detail.USUAL if heading in usual else Detail.ALL,
            short=heading[0].lower() + heading[1:],
        )
        for heading, table in comparison_tables(comparison)
    ]
    blocks = [each for each in tables if each.detail is Detail.USUAL]
    others = [each for each in tables if each.detail is Detail.ALL]
    if any(timeline_of(column) is not None for column in comparison.columns if column.measured):
        # Below the first table, which has bars.
        blocks.insert(
            1,
            Picture(
                title="Memory by phase and over time",
                alt="Memory above the baseline of each column. The tables contain every figure.",
            ),
        )
    return Document(
        subject=title(comparison),
        kind="comparison",
        answer=f"{capitalized(result)}." if result else differences,
        line=f"{title(comparison)}: {result or answer(comparison)}",
        seconds=(differences,) if result else (),
        blocks=[
            *blocks,
            Points(
                title="What could not be measured, and remarks", texts=tuple(problems(comparison))
            ),
            Points(
                title="What differs",
                texts=[change_sentence(comparison, change) for change in comparison.changes],
                short_texts=short_changes(comparison),
                short="all differences and causes",
                detail=Detail.ANSWER,
            ),
            Points(
                title="Findings that not all have",
                texts=findings,
                short_texts=findings[:_MAX_FINDINGS],
                short=counted(len(findings), "finding"),
                detail=Detail.ANSWER,
            ),
            *others,
            Points(
                title="Copies of weights that differ",
                texts=[*map(copies_sentence, comparison.copies)],
                formats=NOT_ON_TERMINALS,
            ),
            notes_block(comparison.notes, detail=Detail.USUAL if is_of_profiles else Detail.ALL),
        ],
    )


def _usual_tables(comparison: Comparison) -> tuple[str, ...]:
    """Return the titles of the tables that a terminal prints if it is not asked for more."""
    columns = [column for column in comparison.columns if column.measured is not None]
    # Those of saved profiles are not compared.
    has_speed = comparison.kind != "profiles" and len(columns) < MAX_COMPLETE_COLUMNS
    return ("Memory", "Growth over many runs", *(["Speed and outputs"] if has_speed else []))


REPORT: Report[Comparison] = Report(
    "comparison", file_names("comparison") | ISSUE_FILE, document, draw
)
