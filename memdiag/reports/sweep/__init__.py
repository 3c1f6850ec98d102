"""The report of a sweep: the answer, and tables of what it is made of."""

from __future__ import annotations

from memdiag.detail import Detail
from memdiag.records.sweep import FindingGroup, Sweep
from memdiag.reports.blocks import BulletBlock, Document, TableBlock, notes_block
from memdiag.reports.report import Report
from memdiag.reports.sweep.sentences import model_count, noise_line, sweep_headline
from memdiag.reports.sweep.tables import (
    OPTIONAL_STEP_COLUMNS,
    budget_table,
    failure_table,
    group_table,
    model_table,
    placement_table,
    step_table,
    steps_by_size,
)
from memdiag.reports.table import Table
from memdiag.reports.text import capitalized, plain
from memdiag.units import counted

_MAX_CONSOLE_ROWS = 8


def document(sweep: Sweep) -> Document:
    """Return the report of `sweep`."""
    answer = sweep_headline(sweep)
    newest = "the newest release"
    if len(sweep.releases) == 1:
        newest = f"onnxruntime {plain(sweep.releases[0])}"
    machines = sorted({plain(series.machine) for series in sweep.series})
    steps = steps_by_size(sweep)
    return Document(
        subject=counted(model_count(sweep.series), "model"),
        kind="sweep",
        answer=answer.first,
        line=answer.first,
        # In this case the first sentence is the regression or the exceeded budget.
        is_bad=bool(sweep.regressions or sweep.exceeded) and not sweep.placement,
        seconds=answer.lines,
        facts=" · ".join(machines[:3]),
        blocks=(
            notes_block(sweep.notes, detail=Detail.USUAL),
            _sortable_table_block("Models that fit together", placement_table(sweep.placement)),
            _sortable_table_block("Jobs that exceed the budget", budget_table(sweep)),
            _sortable_table_block("Waste that several models share", group_table(sweep.findings)),
            BulletBlock(
                title="What to do about it",
                texts=tuple(map(_group_sentence, sweep.findings)),
                prefix="- ",
                detail=Detail.ALL,
                short="what to do about waste",
            ),
            _sortable_table_block(
                "Lasting changes, beyond the noise", step_table(steps, noise_line(sweep))
            ),
            _sortable_table_block(
                f"Models, on {newest}, the largest peak first", model_table(sweep)
            ),
            _sortable_table_block("Jobs that did not complete", failure_table(sweep)),
        ),
    )


def _sortable_table_block(title: str, table: Table) -> TableBlock:
    return TableBlock(
        title=title,
        table=table.without_empty_columns(),
        max_rows=_MAX_CONSOLE_ROWS,
        optional=OPTIONAL_STEP_COLUMNS,
        is_sortable=True,
    )


def _group_sentence(group: FindingGroup) -> str:
    """Return the waste of the model that wastes most, and the remedy."""
    remedy = f" → {plain(group.remedy)}" if group.remedy else ""
    message = capitalized(plain(group.message)).removesuffix(".")
    return f"{plain(group.rule)}, {plain(group.models[0].model)}: {message}.{remedy}"


REPORT = Report[Sweep](
    "sweep", {"html": "index.html", "json": "sweep.json", "markdown": "report.md"}, document
)
