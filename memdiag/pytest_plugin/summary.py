"""Figures of tests: as properties of their reports, and as a section of the terminal summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from memdiag.records.budget import Judgement

_ROWS = pytest.StashKey[list[dict[str, str]]]()
# Reports cross from worker to controller with all plain attributes that they have.
_ATTRIBUTE = "memdiag_rows"


def record(item: pytest.Item, judgement: Judgement, *, remark: str = "") -> dict[str, str]:
    """Add `judgement` to the summary, and its figures to the properties of the test (JUnit XML).

    Return its row of the summary.
    """
    from memdiag.budgets.figures import FIGURES
    from memdiag.reports.budget import measured_sizes, verdict

    for name, value in judgement.figures.items():
        item.user_properties.append((f"memdiag.{judgement.model}.{name}", value))
    figures = {
        name: FIGURES[name].show(judgement.figures[name]) if name in judgement.figures else "–"
        for name in ("peak", "steady")
    }
    result = ", ".join(part for part in (verdict(judgement), measured_sizes(judgement)) if part)
    row = {"model": judgement.model, **figures, "result": result}
    add_remark(row, remark)
    item.stash.setdefault(_ROWS, []).append(row)
    return row


def add_remark(row: dict[str, str], remark: str) -> None:
    """Add `remark` to the last column of `row`."""
    row["result"] = "; ".join(part for part in (row["result"], remark) if part)


def attach(item: pytest.Item, report: pytest.TestReport) -> None:
    """Attach the rows of `item` to the report of its last step that ran."""
    if report.when == "call" or (report.when == "setup" and not report.passed):
        rows = item.stash.get(_ROWS, None)
        if rows:
            report.__dict__[_ATTRIBUTE] = rows


def write_summary(terminal: pytest.TerminalReporter) -> None:
    """Write the section; none if nothing was measured."""
    reports = (report for group in terminal.stats.values() for report in group)
    rows = [
        row
        for report in reports
        if isinstance(report, pytest.TestReport)
        for row in getattr(report, _ATTRIBUTE, ())
    ]
    if not rows:
        return
    terminal.section("memory above the baseline (memdiag)")
    for line in _table(sorted(rows, key=lambda row: row["model"])):
        terminal.write_line(line)


def _table(rows: Sequence[dict[str, str]]) -> list[str]:
    heading = {"model": "", "peak": "peak", "steady": "steady", "result": ""}
    all_rows = [heading, *rows]
    widths = {name: max(len(row[name]) for row in all_rows) for name in heading}
    return [
        f"{row['model']:<{widths['model']}}  {row['peak']:>{widths['peak']}}"
        f"  {row['steady']:>{widths['steady']}}  {row['result']}".rstrip()
        for row in all_rows
    ]
