"""The report of a comparison: the answer, the tables, and what differs and why."""

from __future__ import annotations

from memdiag.detail import Detail
from memdiag.records.comparison import Comparison
from memdiag.reports.blocks import (
    NOT_ON_TERMINALS,
    Block,
    BulletBlock,
    Document,
    PictureBlock,
    TableBlock,
    notes_block,
)
from memdiag.reports.comparison.picture import column_timeline, draw
from memdiag.reports.comparison.sentences import (
    MAX_COMPLETE_COLUMNS,
    bisection_result,
    change_sentence,
    column_problems,
    comparison_answer,
    comparison_title,
    copies_sentence,
    finding_sentences,
    short_change_sentences,
)
from memdiag.reports.comparison.tables import comparison_tables
from memdiag.reports.report import ISSUE_FILE, Report, file_names
from memdiag.reports.text import capitalized
from memdiag.units import counted

_MAX_USUAL_FINDINGS = 2
"""Findings that a terminal prints unless the user asks for everything."""


def document(comparison: Comparison) -> Document:
    """Return the report of `comparison`."""
    result = bisection_result(comparison)
    # The limits of a comparison of saved profiles are a part of its answer.
    is_of_profiles = comparison.kind == "profiles"
    usual_titles = _usual_table_titles(comparison)
    differences = f"{capitalized(comparison_answer(comparison))}."
    findings = finding_sentences(comparison)
    table_blocks: list[Block] = [
        TableBlock(
            title=heading,
            table=table,
            detail=Detail.USUAL if heading in usual_titles else Detail.ALL,
            short=heading[0].lower() + heading[1:],
        )
        for heading, table in comparison_tables(comparison)
    ]
    usual_blocks = [block for block in table_blocks if block.detail is Detail.USUAL]
    further_blocks = [block for block in table_blocks if block.detail is Detail.ALL]
    if any(column_timeline(column) is not None for column in comparison.columns if column.measured):
        # Below the first table, which has bars.
        usual_blocks.insert(
            1,
            PictureBlock(
                title="Memory by phase and over time",
                alt="Memory above the baseline of each column. The tables contain every figure.",
            ),
        )
    return Document(
        subject=comparison_title(comparison),
        kind="comparison",
        answer=f"{capitalized(result)}." if result else differences,
        line=f"{comparison_title(comparison)}: {result or comparison_answer(comparison)}",
        seconds=(differences,) if result else (),
        blocks=[
            *usual_blocks,
            BulletBlock(
                title="What could not be measured, and remarks",
                texts=tuple(column_problems(comparison)),
            ),
            BulletBlock(
                title="What differs",
                texts=[change_sentence(comparison, change) for change in comparison.changes],
                short_texts=short_change_sentences(comparison),
                short="all differences and causes",
                detail=Detail.ANSWER,
            ),
            BulletBlock(
                title="Findings that not all have",
                texts=findings,
                short_texts=findings[:_MAX_USUAL_FINDINGS],
                short=counted(len(findings), "finding"),
                detail=Detail.ANSWER,
            ),
            *further_blocks,
            BulletBlock(
                title="Copies of weights that differ",
                texts=[*map(copies_sentence, comparison.copies)],
                formats=NOT_ON_TERMINALS,
            ),
            notes_block(comparison.notes, detail=Detail.USUAL if is_of_profiles else Detail.ALL),
        ],
    )


def _usual_table_titles(comparison: Comparison) -> tuple[str, ...]:
    """Return the titles of the tables that a terminal prints unless the user asks for more."""
    columns = [column for column in comparison.columns if column.measured is not None]
    # Speed and outputs of saved profiles are not compared.
    has_speed = comparison.kind != "profiles" and len(columns) < MAX_COMPLETE_COLUMNS
    memory = ("Memory", "Memory on the GPU", "Growth over many runs")
    return (*memory, *(["Speed and outputs"] if has_speed else []))


REPORT: Report[Comparison] = Report(
    "comparison", file_names("comparison") | ISSUE_FILE, document, draw
)
