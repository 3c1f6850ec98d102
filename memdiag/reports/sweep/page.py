"""The page of a sweep: one table of all series, a heat map, a series over time, and the answers."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from memdiag.records import codec
from memdiag.records.sweep import FindingGroup, Sweep, SweepSeries
from memdiag.reports.page import Plotly, page
from memdiag.reports.sweep.data import page_data
from memdiag.reports.sweep.sentences import (
    estimate_errors,
    estimate_line,
    headline,
    model_count,
    noise_line,
)
from memdiag.reports.sweep.tables import (
    budget_table,
    failure_table,
    group_table,
    placement_table,
    step_table,
    steps_by_size,
    variant,
)
from memdiag.reports.table import Cell, Column, Row, Table
from memdiag.reports.text import capitalized, plain
from memdiag.sweeps.store import PAGES
from memdiag.units import counted, format_size, plural

MAX_ROWS = 100
"""Rows of the table of series that are in the page before a script adds others."""

MAX_ANSWER_ROWS = 200
"""Rows of the other tables."""

MAX_RATIO = 1000
"""Peaks of more times the weights are of models that compute their weights."""

MAX_LINKED_MODELS = 20
"""Models that a group of findings lists."""


class ListedModel(NamedTuple):
    """A model of a group of findings.

    Attributes:
        name: its name.
        size: what it wastes.
        page: the file of its page; empty without one.
    """

    name: str
    size: str
    page: str


class ListedGroup(NamedTuple):
    """A group of findings with its models.

    Attributes:
        title: the rule, the number of models and what they waste.
        message, remedy: of the model that wastes most.
        models: those that waste most.
        unlisted: the number of the others, in words; empty without any.
    """

    title: str
    message: str
    remedy: str
    models: tuple[ListedModel, ...]
    unlisted: str


def page_file(key: str) -> str:
    """Return the file of the page of a job, relative to that of the sweep."""
    return f"{PAGES}/{key}.html"


def render(sweep: Sweep, *, pages: Collection[str] = (), plotly: Plotly = "inline") -> bytes:
    """Return the page for `sweep`; `pages` are the keys of the jobs that have a page."""
    answer = headline(sweep)
    steps = steps_by_size(sweep)
    failed = failure_table(sweep)
    exceeded = budget_table(sweep)
    series = _series_table(sweep, pages)
    machines = {each.machine for each in sweep.series}
    is_measured = any(point.peak_bytes is not None for point in sweep.points)
    return page(
        "sweep.html.j2",
        ("sweep.js",),
        {
            "title": f"Memory of {counted(model_count(sweep.series), 'model')}",
            "facts": " · ".join(
                filter(None, (_releases(sweep), *sorted(map(plain, machines))[:3]))
            ),
            "answer": answer,
            # The first sentence is then the regression or the exceeded budget.
            "is_regression": bool(sweep.regressions or sweep.exceeded) and not sweep.placement,
            "exceeded": exceeded.first_rows(MAX_ANSWER_ROWS),
            "unlisted_exceeded": max(0, len(exceeded.rows) - MAX_ANSWER_ROWS),
            "groups": group_table(sweep.findings[:MAX_ANSWER_ROWS]),
            "listed": tuple(_listed(each, pages) for each in sweep.findings[:MAX_ANSWER_ROWS]),
            "series": series,
            "series_count": len(sweep.series),
            "page_count": _page_count(len(pages)),
            "has_timeline": is_measured and any(len(each.points) > 1 for each in sweep.series),
            "has_heat_map": is_measured and len(sweep.releases) > 1,
            "has_estimates": bool(estimate_errors(sweep.points)),
            "estimates": estimate_line(sweep),
            "steps": step_table(steps[:MAX_ANSWER_ROWS]),
            "unlisted_steps": max(0, len(steps) - MAX_ANSWER_ROWS),
            "noise": noise_line(sweep),
            "failures": failed.first_rows(MAX_ANSWER_ROWS),
            "unlisted_failures": max(0, len(failed.rows) - MAX_ANSWER_ROWS),
            "placement": placement_table(sweep.placement),
            "notes": tuple(map(plain, sweep.notes)),
        },
        charts={"sweep": page_data(sweep, pages) | {"max_ratio": MAX_RATIO}},
        record=codec.encode(sweep),
        record_name="sweep",
        record_kind="sweep",
        plotly=plotly,
    )


def _releases(sweep: Sweep) -> str:
    if not sweep.releases:
        return ""
    return f"onnxruntime {', '.join(map(plain, sweep.releases))}"


def _series_table(sweep: Sweep, pages: Collection[str]) -> Table:
    """Return the first rows of the table of all series, which a script continues."""
    columns = (
        Column("model", css="name"),
        Column("weights", "right", css="less"),
        Column("peak", "right", css="strong"),
        Column("× weights", "right", css="less"),
        Column("after the runs", "right", css="less"),
        Column("change", "right", css="" if any(s.steps for s in sweep.series) else "less"),
        Column("avoidable", "right"),
        Column("estimate", "right", css="less"),
        Column("failed", "right", css="less"),
    )
    ordered = sorted(sweep.series, key=lambda each: -(each.newest.peak_bytes or -1))
    return Table(
        columns=columns, rows=tuple(_series_row(each, pages) for each in ordered[:MAX_ROWS])
    )


def _series_row(series: SweepSeries, pages: Collection[str]) -> Row:
    newest, weights = series.newest, series.weight_bytes
    peak, failed = newest.peak_bytes, sum(point.is_failed for point in series.points)
    change = sum(step.bytes for step in series.steps if step.figure == "peak")
    error = next(iter(estimate_errors((newest,))), None)
    return Row(
        Cell(plain(series.model), note=variant(series)),
        _size(weights or None),
        _size(peak),
        _ratio(peak, weights),
        _size(newest.steady_bytes),
        format_size(change, signed=True) if change else "",
        _size(series.avoidable_bytes or None),
        "" if error is None else _percent(error),
        f"{failed:,} of {len(series.points):,}" if failed else "",
    )


def _percent(share: float) -> str:
    """Return a signed percentage; 0 without a sign."""
    return f"{100 * share:+.0f} %" if round(100 * share) else "0 %"


def _ratio(peak: int | None, weights: int | None) -> str:
    """Return the peak as a multiple of the weights; empty where these are next to nothing."""
    if peak is None or not weights or peak > MAX_RATIO * weights:
        return ""
    return f"{peak / weights:.1f}"


def _size(size: int | None) -> str:
    return "" if size is None else format_size(size)


def _listed(group: FindingGroup, pages: Collection[str]) -> ListedGroup:
    size = _size(group.steady_bytes or group.peak_bytes or None)
    when = "after the runs" if group.steady_bytes else "at the peak"
    models = tuple(
        ListedModel(
            plain(each.model),
            _size(each.steady_bytes or each.peak_bytes or None),
            page_file(each.key) if each.key in pages else "",
        )
        for each in group.models[:MAX_LINKED_MODELS]
    )
    more = group.model_count - len(models)
    return ListedGroup(
        title=f"{counted(group.model_count, 'model')}: {plain(group.rule)}"
        + (f", {size} {when}" if size else ""),
        message=capitalized(plain(group.message)),
        remedy=plain(group.remedy),
        models=models,
        unlisted=f"and {counted(more, 'other model')}" if more else "",
    )


def _page_count(count: int) -> str:
    return f"{counted(count, 'job')} {plural(count, 'has', 'have')}" if count else ""
