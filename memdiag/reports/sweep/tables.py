"""The tables of a sweep: groups of findings, steps, failures, placement, and the series."""

from __future__ import annotations

from collections.abc import Sequence

from memdiag.records.sweep import (
    FindingGroup,
    Placement,
    PlacementMachine,
    Sweep,
    SweepSeries,
    SweepStep,
)
from memdiag.reports.sweep.sentences import (
    estimate_errors,
    failed_jobs_by_sentence,
    model_count,
    point_releases_text,
    step_place,
)
from memdiag.reports.table import ALL_FORMATS, Cell, Column, OutputFormat, Row, Table
from memdiag.reports.text import plain, shortened
from memdiag.units import counted, format_size, plural, some_of

OPTIONAL_STEP_COLUMNS = ("before", "after", "first changed phase")
"""Headings of the columns that a narrow terminal omits, in this order."""

MAX_SWEEP_NAME = 24
MAX_FAILURE_SENTENCE = 300


def group_table(groups: Sequence[FindingGroup]) -> Table:
    """Return a row for each group of findings."""
    columns = (
        Column("waste", wraps=True, css="name"),
        Column("models", "right"),
        Column("steady", "right"),
        Column("peak", "right"),
        Column("most in", wraps=True, max_width=MAX_SWEEP_NAME, css="name less"),
    )
    return Table(columns=columns, rows=tuple(map(_group_row, groups)))


def _group_row(group: FindingGroup) -> Row:
    return Row(
        plain(group.rule),
        Cell(f"{group.model_count:,}", sort_key=group.model_count),
        _sweep_size_cell(group.steady_bytes) if group.steady_bytes else "",
        _sweep_size_cell(group.peak_bytes) if group.peak_bytes else "",
        plain(group.models[0].model),
    )


def step_table(steps: Sequence[tuple[SweepSeries, SweepStep]], noise: str) -> Table:
    """Return a row for each step, with a sentence about the noise below."""
    columns = (
        _name_column("model", [series.model for series, _ in steps], css="name"),
        _name_column(
            "sizes",
            [series_variant(series) for series, _ in steps],
            formats=("console", "markdown"),
        ),
        # The column is never cut, because labels of a sweep often differ only in their ends.
        Column("where", wraps=True, css="name"),
        Column("figure"),
        Column("before", "right", css="less"),
        Column("after", "right", css="less"),
        Column("change", "right", css="strong"),
        Column("first changed phase", css="less"),
    )
    rows = tuple(_step_row(series, step) for series, step in steps)
    return Table(columns=columns, rows=rows, caption=noise, is_dense=True)


def _step_row(series: SweepSeries, step: SweepStep) -> Row:
    return Row(
        Cell(plain(series.model), title=plain(series.address), note=series_variant(series)),
        series_variant(series),
        Cell(step_place(series, step), tags=("new",) if step.is_new else ()),
        step.figure,
        _sweep_size_cell(step.before_bytes),
        _sweep_size_cell(step.after_bytes),
        Cell(format_size(step.bytes, signed=True), sort_key=step.bytes),
        step.phase,
    )


def budget_table(sweep: Sweep) -> Table:
    """Return a row for each job that exceeds the budget."""
    exceeding_series = [series for series, _, _ in sweep.over_budget]
    columns = (
        _name_column("model", [series.model for series in exceeding_series], css="name"),
        _name_column(
            "sizes", list(map(series_variant, exceeding_series)), formats=("console", "markdown")
        ),
        Column("onnxruntime"),
        Column("exceeded", wraps=True, css="prose"),
    )
    rows = tuple(
        Row(
            Cell(plain(series.model), title=plain(series.address), note=series_variant(series)),
            series_variant(series),
            plain(point.onnxruntime),
            plain("; ".join(sentences)),
        )
        for series, point, sentences in sweep.over_budget
    )
    return Table(columns=columns, rows=rows)


def steps_by_size(sweep: Sweep) -> list[tuple[SweepSeries, SweepStep]]:
    """Return the steps: new ones first, then growth before decline, the largest first.

    If both figures have a step at the same point, the larger one stands for both.
    """
    step_by_point: dict[tuple[int, str], tuple[SweepSeries, SweepStep]] = {}
    for number, series in enumerate(sweep.series):
        for step in series.steps:
            listed_step = step_by_point.get((number, step.key))
            if listed_step is None or abs(step.bytes) > abs(listed_step[1].bytes):
                step_by_point[number, step.key] = series, step
    return sorted(step_by_point.values(), key=lambda pair: (not pair[1].is_new, -pair[1].bytes))


def model_table(sweep: Sweep) -> Table:
    """Return a row for each series that was measured, the largest peak first."""
    measured_series = [series for series in sweep.series if series.newest.peak_bytes is not None]
    measured_series.sort(key=lambda series: -(series.newest.peak_bytes or 0))
    columns = (
        _name_column("model", [series.model for series in measured_series]),
        _name_column("sizes", list(map(series_variant, measured_series))),
        Column("weights", "right"),
        Column("peak", "right", css="strong"),
        Column("after the runs", "right"),
        Column("avoidable", "right"),
        Column("change of the peak", "right", formats=("html", "markdown")),
        Column("error of the estimate", "right", formats=("html", "markdown")),
    )
    return Table(columns=columns, rows=tuple(map(_model_row, measured_series)))


def _model_row(series: SweepSeries) -> Row:
    newest = series.newest
    sizes = (series.weight_bytes, newest.peak_bytes, newest.steady_bytes)
    change = sum(step.bytes for step in series.steps if step.figure == "peak")
    error = next(iter(estimate_errors((newest,))), None)
    return Row(
        Cell(plain(series.model), title=plain(series.address)),
        series_variant(series),
        *("" if size is None else _sweep_size_cell(size) for size in sizes),
        _sweep_size_cell(series.avoidable_bytes) if series.avoidable_bytes else "",
        Cell(format_size(change, signed=True), sort_key=change) if change else "",
        "" if error is None else Cell(_signed_percent(error), sort_key=error),
    )


def _signed_percent(share: float) -> str:
    """Return a signed percentage; 0 without a sign."""
    return f"{100 * share:+.0f} %" if round(100 * share) else "0 %"


def _name_column(
    heading: str,
    texts: Sequence[str],
    *,
    css: str = "",
    formats: Sequence[OutputFormat] = ALL_FORMATS,
) -> Column:
    """Return a column of `texts`, which a terminal cuts only if they stay distinct."""
    is_distinct = len({shortened(plain(text), MAX_SWEEP_NAME) for text in texts}) == len(set(texts))
    return Column(
        heading,
        wraps=True,
        max_width=MAX_SWEEP_NAME if is_distinct else None,
        css=css,
        formats=formats,
    )


def series_variant(series: SweepSeries) -> str:
    """Return the sizes and options that distinguish a series from others of its model."""
    return plain(" · ".join(filter(None, (series.dims, series.options))))


def failure_table(sweep: Sweep) -> Table:
    """Return a row for each sentence on jobs that did not complete."""
    columns = (
        Column("models", "right"),
        Column("on", wraps=True, max_width=MAX_SWEEP_NAME),
        Column("what happened", wraps=True, css="prose"),
        Column("to", wraps=True, max_width=MAX_SWEEP_NAME, css="name less"),
    )
    rows = []
    for sentence, jobs in failed_jobs_by_sentence(
        (series, point) for series in sweep.series for point in series.points
    ):
        failed_series = [series for series, _ in jobs]
        names = list(dict.fromkeys(plain(series.model) for series in failed_series))
        rows.append(
            Row(
                Cell(f"{model_count(failed_series):,}", sort_key=model_count(failed_series)),
                point_releases_text(sweep, [point for _, point in jobs]),
                sentence
                if len(sentence) <= MAX_FAILURE_SENTENCE
                else f"{sentence[:MAX_FAILURE_SENTENCE]}…",
                some_of(names),
            )
        )
    return Table(columns=columns, rows=tuple(rows))


def placement_table(placement: Placement | None) -> Table:
    """Return a row for each machine; no rows without a placement."""
    columns = (
        Column("machine"),
        Column("memory", "right", css="less"),
        Column("needed", "right"),
        Column("models", wraps=True, css="name"),
    )
    machines = placement.machines if placement else ()
    rows = tuple(_machine_row(number, machine) for number, machine in enumerate(machines, start=1))
    return Table(columns=columns, rows=rows, caption=placement_sentence(placement))


def _machine_row(number: int, machine: PlacementMachine) -> Row:
    return Row(
        str(number),
        _sweep_size_cell(machine.memory_bytes),
        _sweep_size_cell(machine.needed_bytes),
        some_of([plain(model.model) for model in machine.models], limit=12) or "none",
    )


def placement_sentence(placement: Placement | None) -> str:
    """Return the models that fit on no machine, and which memory a placement counts."""
    if placement is None:
        return ""
    text = (
        "A machine has room for the memory of all its models after their runs, and for the"
        f" highest peak above it; {100 * placement.margin:.0f} % of it is left free."
    )
    if not placement.unplaced:
        return text
    largest_bytes = max((machine.memory_bytes for machine in placement.machines), default=0)
    room_bytes = (1 - placement.margin) * largest_bytes
    large_models = [model for model in placement.unplaced if model.peak_bytes > room_bytes]
    other_models = [model for model in placement.unplaced if model.peak_bytes <= room_bytes]
    sentences = []
    for models, place in (
        (large_models, "no machine, even alone"),
        (other_models, "no machine with others"),
    ):
        if models:
            names = some_of(
                [f"{plain(model.model)} ({format_size(model.peak_bytes)})" for model in models]
            )
            verb = plural(len(models), "fits", "fit")
            sentences.append(f"{counted(len(models), 'model')} {verb} on {place}: {names}.")
    return " ".join((*sentences, text))


def _sweep_size_cell(size: int) -> Cell:
    return Cell(format_size(size), title=f"{size:,} bytes", sort_key=size)
