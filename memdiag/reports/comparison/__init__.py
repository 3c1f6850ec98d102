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
    answer,
    bisection_result,
    change_sentence,
    copies_sentence,
    problems,
    title,
)
from memdiag.reports.comparison.tables import comparison_tables
from memdiag.reports.report import ISSUE_FILE, Report, file_names
from memdiag.reports.text import capitalized


def document(comparison: Comparison) -> Document:
    """Return the report of `comparison`."""
    result = bisection_result(comparison)
    differences = f"{capitalized(answer(comparison))}."
    blocks: list[Block] = [
        Figures(title=heading, table=table) for heading, table in comparison_tables(comparison)
    ]
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
                detail=Detail.ANSWER,
            ),
            Points(
                title="Copies of weights that differ",
                texts=[*map(copies_sentence, comparison.copies)],
                formats=NOT_ON_TERMINALS,
            ),
            notes_block(comparison.notes, detail=Detail.USUAL),
        ],
    )


REPORT: Report[Comparison] = Report(
    "comparison", file_names("comparison") | ISSUE_FILE, document, draw
)
