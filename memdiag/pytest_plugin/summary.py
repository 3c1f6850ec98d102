"""Figures of tests: as properties of their reports, and as a section of the terminal summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from memdiag.pytest_plugin import BUDGET_MARKER

if TYPE_CHECKING:
    from memdiag.records.budget import Judgement
    from memdiag.records.profile import Profile

_ROWS_STASH_KEY = pytest.StashKey[list[dict[str, Any]]]()
# A worker sends reports to its controller with all their plain attributes.
_ROWS_ATTRIBUTE = "memdiag_rows"


def record_judgement(
    item: pytest.Item, judgement: Judgement, profile: Profile | None = None, *, remark: str = ""
) -> dict[str, Any]:
    """Add `judgement` to the summary, and its figures to the properties of the test (JUnit XML).

    Returns its row of the summary. `profile` is the judged profile; None for a probe.
    """
    from memdiag.budgets.figures import FIGURES_BY_NAME
    from memdiag.defaults import MMAP_THRESHOLD_VARIABLE
    from memdiag.reports.budget import judged_sizes_text, judgement_verdict
    from memdiag.reports.control_group import container_limits

    for name, value in judgement.figures.items():
        item.user_properties.append((f"memdiag.{judgement.model}.{name}", value))
    figures = {
        name: FIGURES_BY_NAME[name].show(judgement.figures[name])
        if name in judgement.figures
        else "–"
        for name in ("peak", "steady")
    }
    result = ", ".join(
        part for part in (judgement_verdict(judgement), judged_sizes_text(judgement)) if part
    )
    settings = [*_session_settings(profile)] if profile is not None else []
    limits = container_limits(profile.environment) if profile is not None else ""
    row = {
        "model": judgement.model,
        "test": "" if item.name == BUDGET_MARKER else item.name,
        "node": item.nodeid,
        **figures,
        "result": result,
        "settings": settings,
        "container": limits,
        "pinned": profile is not None and MMAP_THRESHOLD_VARIABLE in profile.session.environment,
    }
    add_row_remark(row, remark)
    item.stash.setdefault(_ROWS_STASH_KEY, []).append(row)
    return row


def _session_settings(profile: Profile) -> Iterator[str]:
    """Yield each setting of the profiled session. Rows of one model may differ by them."""
    from memdiag.reports.text import plain

    yield from map(plain, profile.session.settings.values())
    if profile.session.runs is None:
        yield "not run"
    if profile.environment.onnxruntime:
        yield plain(f"onnxruntime {profile.environment.onnxruntime}")


def add_row_remark(row: dict[str, Any], remark: str) -> None:
    """Add `remark` to the last column of `row`."""
    row["result"] = "; ".join(part for part in (row["result"], remark) if part)


def attach_summary_rows(item: pytest.Item, report: pytest.TestReport) -> None:
    """Attach the rows of `item` to the report of its call, or of its setup if that failed."""
    if report.when == "call" or (report.when == "setup" and not report.passed):
        rows = item.stash.get(_ROWS_STASH_KEY, None)
        if rows:
            report.__dict__[_ROWS_ATTRIBUTE] = rows


def write_figure_summary(terminal: pytest.TerminalReporter) -> None:
    """Write the figures of all tests as a section of pytest's summary, if there are any."""
    reports = (report for group in terminal.stats.values() for report in group)
    rows = [
        row
        for report in reports
        if isinstance(report, pytest.TestReport)
        for row in getattr(report, _ROWS_ATTRIBUTE, ())
    ]
    if not rows:
        return
    terminal.section("memory above the baseline (memdiag)")
    for line in _summary_lines([*_titled_rows(sorted(rows, key=lambda row: row["model"]))]):
        terminal.write_line(line)
    if any(row["pinned"] for row in rows):
        from memdiag.records.estimate import PINNED_NOTE

        terminal.write_line(PINNED_NOTE)
    for limits in sorted({row["container"] for row in rows if row["container"]}):
        terminal.write_line(f"measured in a container: {limits}")


def _titled_rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """Yield `rows` with titles: the model, and the settings by which its rows differ."""
    for row in rows:
        settings_of_model = [
            other_row["settings"] for other_row in rows if other_row["model"] == row["model"]
        ]
        differing_settings = [
            setting
            for setting in row["settings"]
            if not all(setting in settings for settings in settings_of_model)
        ]
        title = row["model"] + (f" ({', '.join(differing_settings)})" if differing_settings else "")
        nodes_of_test = {
            other_row["node"] for other_row in rows if other_row["test"] == row["test"]
        }
        test = row["test"] if len(nodes_of_test) == 1 else row["node"]
        figures = {name: row[name] for name in ("peak", "steady", "result")}
        yield {"title": title, **figures, "test": test}


def _summary_lines(rows: Sequence[dict[str, str]]) -> list[str]:
    heading = {"title": "", "peak": "peak", "steady": "steady", "test": "", "result": ""}
    all_rows = [heading, *rows]
    widths = {name: max(len(row[name]) for row in all_rows) for name in heading}
    return [
        f"{row['title']:<{widths['title']}}  {row['peak']:>{widths['peak']}}"
        f"  {row['steady']:>{widths['steady']}}  {row['test']:<{widths['test']}}"
        f"  {row['result']}".rstrip()
        for row in all_rows
    ]
