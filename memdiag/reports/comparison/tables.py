"""The tables of a comparison: memory, speed, the models themselves, and memory by phase."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from memdiag.growth.growth_sentences import OWNER_LABELS
from memdiag.records import comparison as records
from memdiag.records.comparison import Comparison, Latency, MeasuredBytes
from memdiag.records.profile import PHASES, PhaseName
from memdiag.reports.comparison.picture import column_color
from memdiag.reports.comparison.sentences import column_decimals, latency_ratio_text
from memdiag.reports.page import SIZE_BAR_LEGEND, SizeBar, size_bar_cells
from memdiag.reports.palette import LIGHT_PALETTE
from memdiag.reports.phase_table import SAMPLED_CAPTION, SAMPLED_MARK
from memdiag.reports.table import Cell, Column, Row, Table
from memdiag.reports.text import mebibytes_text, plain
from memdiag.units import MIB, format_duration, format_size

MAX_SINGLE_LINE_HEADINGS = 6
"""Tables with more columns have headings of several lines on a terminal."""

_MIN_SPREAD_SHARE = 0.02
_MAX_ROW_LABEL = 24


class TitledTable(NamedTuple):
    """A table with its title."""

    title: str
    table: Table


def comparison_tables(comparison: Comparison) -> tuple[TitledTable, ...]:
    """Return the tables of `comparison` that have rows."""
    columns = [column for column in comparison.columns if column.measured is not None]
    has_optimizers = comparison.kind == "optimizers"
    models_title = "Models and runs of optimizers" if has_optimizers else "Models"
    titled_tables = (
        TitledTable("Memory", _memory_table(columns)),
        TitledTable("Memory on the GPU", _device_table(columns)),
        TitledTable("Growth over many runs", _growth_table(columns)),
        TitledTable("Speed and outputs", _speed_table(columns)),
        TitledTable(models_title, _model_size_table(comparison)),
        TitledTable("Peak by phase", _phase_peak_table(columns)),
        TitledTable("Kept by phase", _phase_kept_table(comparison, columns)),
    )
    return tuple(titled_table for titled_table in titled_tables if titled_table.table.rows)


def _compared_columns_table(
    heading: str, columns: Sequence[Column], rows: Sequence[Row], caption: str = ""
) -> Table:
    first_column = Column(heading, max_width=_MAX_ROW_LABEL, css="name")
    table = Table(
        columns=(first_column, *columns), rows=tuple(rows), caption=caption, is_dense=True
    )
    table = table.without_empty_columns()
    if len(table.columns) <= MAX_SINGLE_LINE_HEADINGS:
        return table
    split_columns = (
        replace(column, heading=column.heading.replace(" ", "\n")) for column in table.columns[1:]
    )
    return replace(table, columns=(first_column, *split_columns))


def _figure_columns(*headings: str) -> list[Column]:
    return [Column(heading, "right", wraps=True) for heading in headings]


def _column_label_cell(column: records.ComparisonColumn) -> Cell:
    return Cell(plain(column.label), is_code=True)


def _memory_table(columns: Sequence[records.ComparisonColumn]) -> Table:
    bars = size_bar_cells(
        [
            SizeBar(
                label=column.label,
                peak=column.measured.peak.median,
                steady=column.measured.steady.median,
                mapped=column.measured.file.median if column.measured.file else 0,
            )
            for column in columns
            if column.measured
        ]
    )
    rows = []
    for index, (column, bar) in enumerate(zip(columns, bars, strict=True)):
        measured = column.measured
        assert measured is not None
        mark = "" if measured.peak_kind == "exact" else SAMPLED_MARK
        peak_bytes, steady_bytes = measured.peak.median, measured.steady.median
        rows.append(
            Row(
                replace(_column_label_cell(column), color=_column_css_color(index)),
                Cell(mark + _median_size_text(measured.peak), title=f"{peak_bytes:,} bytes"),
                measured.peak_phase,
                Cell(_median_size_text(measured.steady), title=f"{steady_bytes:,} bytes"),
                _median_size_text(measured.anonymous),
                _median_size_text(measured.file),
                bar,
            )
        )
    repeat_counts = sorted({column.measured.times for column in columns if column.measured})
    caption = "above the baseline"
    if repeat_counts and repeat_counts[-1] > 1:
        count = (
            f"{repeat_counts[-1]}"
            if len(repeat_counts) == 1
            else f"{repeat_counts[0]} to {repeat_counts[-1]}"
        )
        caption += f"; medians of {count} fresh processes, ± half their range if above 2%"
    if any(column.measured.peak_kind == "sampled" for column in columns if column.measured):
        caption += SAMPLED_CAPTION
    peak_column, *other_columns = _figure_columns("peak", "steady", "anonymous", "mapped")
    bar_column = Column(css="wide", legend=SIZE_BAR_LEGEND, formats=("html",))
    return _compared_columns_table(
        "memory", (peak_column, Column("in", wraps=True), *other_columns, bar_column), rows, caption
    )


def _device_table(columns: Sequence[records.ComparisonColumn]) -> Table:
    """Return the memory on a GPU of the columns that ran on one; no rows if none did."""
    rows = [
        Row(
            _column_label_cell(column),
            _median_size_text(column.measured.device_peak),
            _median_size_text(column.measured.device_steady),
            plain(column.profile.device.device.name) if column.profile.device else "",
        )
        for column in columns
        if column.measured and column.measured.device_steady and column.profile
    ]
    return _compared_columns_table(
        "on the GPU",
        (*_figure_columns("peak", "steady"), Column("GPU", wraps=True)),
        rows,
        "of the process, with the context and code",
    )


def _growth_table(columns: Sequence[records.ComparisonColumn]) -> Table:
    """Return the growth of the columns over many runs; no rows if it was not measured."""
    rows = []
    for column in columns:
        growth = column.growth
        if growth is None:
            continue
        slope = growth.slope
        rows.append(
            Row(
                _column_label_cell(column),
                growth.verdict,
                OWNER_LABELS[growth.owner] if growth.owner else "",
                f"{slope.bytes_per_unit:,.0f} B" if slope else "",
                f"{slope.low:,.0f} to {slope.high:,.0f} B" if slope else "",
                f"{growth.runs:,}",
            )
        )
    headings = _figure_columns("a run", "95 % interval", "runs")
    return _compared_columns_table(
        "growth", (Column("verdict"), Column("owner", wraps=True), *headings), rows
    )


def _column_css_color(index: int) -> str:
    """Return the colour of a column. Its nearly black colour would be invisible on a dark page."""
    color = column_color(index)
    return "var(--ink)" if color == LIGHT_PALETTE.ink else color


def _speed_table(columns: Sequence[records.ComparisonColumn]) -> Table:
    rows = []
    for column in columns:
        assert column.measured is not None
        latency = _latency_and_interval(column.latency) if column.latency else ("", "")
        load = format_duration(column.measured.load.median)
        rows.append(
            Row(_column_label_cell(column), load, *latency, _output_difference_text(column))
        )
    caption = "medians; latency with its 95 % confidence interval"
    if any(column.latency and column.latency.ratio is not None for column in columns):
        caption += "; ×: relative to the first row, from alternating runs"
    return _compared_columns_table(
        "speed", _figure_columns("load", "latency", "", "outputs"), rows, caption
    )


def _model_size_table(comparison: Comparison) -> Table:
    """Return the sizes of the models, and the cost of running optimizers; no rows for one model."""
    is_optimizers = comparison.kind == "optimizers"
    rows = []
    for column in comparison.columns if comparison.kind != "onnxruntime" else ():
        graph, run = column.graph, column.optimizer
        if graph is None or (column.measured is None and run is None):
            continue
        sizes = (
            _optional_count_text(graph.nodes),
            _optional_count_text(graph.initializers),
            _optional_count_text(graph.parameters),
            format_size(graph.saved_bytes),
        )
        effort = (
            format_duration(run.duration_s) if run else "",
            format_size(run.peak_rss_bytes) if run else "",
        )
        rows.append(Row(_column_label_cell(column), *sizes, *(effort if is_optimizers else ())))
    headings = ["nodes", "initializers", "parameters", "on disk"]
    if not is_optimizers:
        return _compared_columns_table("model", _figure_columns(*headings), rows)
    caption = (
        "took: the optimizer's own time, without imports; its peak: resident set of its processes"
    )
    return _compared_columns_table(
        "model", _figure_columns(*headings, "took", "its peak"), rows, caption
    )


def _phase_peak_table(columns: Sequence[records.ComparisonColumn]) -> Table:
    reached_phases = {
        phase.phase for column in columns if column.measured for phase in column.measured.phases
    }
    names = [name for name in PHASES if name in reached_phases]
    rows = [
        _phase_figure_row(column, names, "peak", column_decimals(columns)) for column in columns
    ]
    return _compared_columns_table(
        "peak by phase", _phase_figure_columns(names), rows, "MiB above the baseline"
    )


def _phase_kept_table(comparison: Comparison, columns: Sequence[records.ComparisonColumn]) -> Table:
    """Return the memory that each phase keeps, and the sum; no rows if no figure differs."""
    if not any(change.metric in ("kept", "steady") for change in comparison.changes):
        return Table(columns=(), rows=())
    decimals = column_decimals(columns)
    min_bytes = 10**-decimals / 2 * MIB
    kept_phases = {
        phase.phase
        for column in columns
        if column.measured
        for phase in column.measured.phases
        if abs(phase.kept.median) >= min_bytes
    }
    names = [name for name in PHASES if name in kept_phases]
    rows = []
    largest_error = 0
    for column in columns:
        assert column.measured is not None
        steady = column.measured.steady.median
        kept_bytes = sum(phase.kept.median for phase in column.measured.phases)
        largest_error = max(largest_error, abs(steady - kept_bytes))
        row = _phase_figure_row(column, names, "kept", decimals)
        rows.append(Row(*row.cells, mebibytes_text(steady, decimals)))
    caption = "MiB that a phase adds to resident memory"
    if largest_error >= MIB:
        size = format_size(largest_error)
        caption += f"; every figure is a median, so that sums are off by up to {size}"
    total_column = _figure_columns("total (steady)")
    return _compared_columns_table(
        "kept by phase", (*_phase_figure_columns(names), *total_column), rows, caption
    )


def _phase_figure_columns(names: Sequence[PhaseName]) -> list[Column]:
    return _figure_columns(*(name.replace("_", " ") for name in names))


def _phase_figure_row(
    column: records.ComparisonColumn,
    names: Sequence[PhaseName],
    figure: Literal["peak", "kept"],
    decimals: int,
) -> Row:
    assert column.measured is not None
    size_by_phase: dict[str, MeasuredBytes] = {
        phase.phase: getattr(phase, figure) for phase in column.measured.phases
    }
    cells = (
        mebibytes_text(size_by_phase[name].median, decimals) if name in size_by_phase else ""
        for name in names
    )
    return Row(_column_label_cell(column), *cells)


def _median_size_text(value: MeasuredBytes | None) -> str:
    if value is None:
        return ""
    half_range = (value.high - value.low) / 2
    has_spread = half_range > max(_MIN_SPREAD_SHARE * value.median, MIB)
    spread_text = f" ± {mebibytes_text(round(half_range), 0)}" if has_spread else ""
    return format_size(value.median) + spread_text


def _latency_and_interval(latency: Latency) -> tuple[str, str]:
    """Return the latency and its interval, relative to the first column if runs alternated."""
    if latency.ratio is not None:
        interval = f"{latency.ratio_low:.2f} – {latency.ratio_high:.2f}"
        return latency_ratio_text(latency), interval
    interval = f"{format_duration(latency.low_s)} – {format_duration(latency.high_s)}"
    return format_duration(latency.median_s), interval


def _output_difference_text(column: records.ComparisonColumn) -> str:
    if column.largest_difference:
        return f"{column.largest_difference:.1e}"
    if column.difference:
        return "differ"
    return "" if column.largest_difference is None else "equal"


def _optional_count_text(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
