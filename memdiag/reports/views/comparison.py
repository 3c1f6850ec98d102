"""A comparison as tables: memory, speed, the models themselves, and the peak of each phase."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from memdiag.records.comparison import Bytes, Column, Comparison, Latency
from memdiag.records.profile import PHASES, PhaseName
from memdiag.reports.views import comparison_words as words
from memdiag.reports.views.phase_table import SAMPLED_MARK, mebibytes
from memdiag.reports.views.text import plain
from memdiag.units import MIB, format_duration, format_size

_SPREAD = 0.02  # a spread of less than this share of the figure is not worth the room


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table: a caption, headings, and rows of as many cells; the first cell is the label."""

    title: str
    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonView:
    """A comparison in words: the answer, what ended badly, tables, and what differs."""

    title: str
    answer: str
    found: str
    problems: tuple[str, ...]
    tables: tuple[Table, ...]
    changes: tuple[str, ...]
    copies: tuple[str, ...]
    notes: tuple[str, ...]


def build(comparison: Comparison) -> ComparisonView:
    """Return `comparison` in words and tables."""
    measured = [column for column in comparison.columns if column.measured is not None]
    tables = (
        _memory(measured),
        _speed(measured),
        _models(comparison),
        _phases(measured),
        _kept(comparison, measured),
    )
    return ComparisonView(
        title=words.title(comparison),
        answer=words.answer(comparison),
        found=words.found(comparison),
        problems=words.problems(comparison),
        tables=tuple(table for table in tables if table is not None and table.rows),
        changes=tuple(words.change(comparison, one) for one in comparison.changes),
        copies=tuple(words.copies(one) for one in comparison.copies),
        notes=tuple(plain(note) for note in comparison.notes),
    )


def _memory(columns: Sequence[Column]) -> Table:
    rows = []
    for column in columns:
        one = column.measured
        assert one is not None
        rows.append(
            (
                plain(column.label),
                ("" if one.peak_kind == "exact" else SAMPLED_MARK) + _size(one.peak),
                one.peak_phase,
                _size(one.steady),
                _size(one.anonymous),
                _size(one.file),
            )
        )
    times = max((column.measured.times for column in columns if column.measured), default=0)
    caption = "above the baseline"
    if times > 1:
        caption += f"; medians of {times} fresh processes, ± half their range if above 2%"
    headings = ("memory", "peak", "in", "steady", "anonymous", "mapped")
    return Table(title="Memory", caption=caption, headings=headings, rows=tuple(rows))


def _speed(columns: Sequence[Column]) -> Table:
    rows = []
    for column in columns:
        assert column.measured is not None
        rows.append(
            (
                plain(column.label),
                format_duration(column.measured.load.median),
                *(_latency(column.latency) if column.latency else ("", "")),
                _outputs(column),
            )
        )
    raced = any(column.latency and column.latency.ratio is not None for column in columns)
    caption = "medians; latency with its 95 % confidence interval"
    if raced:
        caption += "; ×: relative to the first row, from alternating runs"
    headings = ("speed", "load", "latency", "", "outputs")
    return Table(title="Speed and outputs", caption=caption, headings=headings, rows=tuple(rows))


def _models(comparison: Comparison) -> Table | None:
    """Return the sizes of the models, and what the optimizers took; None where all are one."""
    if comparison.kind == "onnxruntime":
        return None
    rows = []
    for column in comparison.columns:
        graph, run = column.graph, column.optimizer
        if graph is None or (column.measured is None and run is None):
            continue
        rows.append(
            (
                plain(column.label),
                _count(graph.nodes),
                _count(graph.initializers),
                _count(graph.parameters),
                format_size(graph.saved_bytes),
                format_duration(run.duration_s) if run else "",
                format_size(run.peak_rss_bytes) if run else "",
            )
        )
    optimizers = comparison.kind == "optimizers"
    headings = ("model", "nodes", "initializers", "parameters", "on disk")
    if not optimizers:
        return Table(
            title="Models",
            caption="",
            headings=headings,
            rows=tuple(row[: len(headings)] for row in rows),
        )
    return Table(
        title="Models, and what the optimizers took",
        caption="took: the optimizer's own time, without imports; its peak: resident set of its"
        " processes",
        headings=(*headings, "took", "its peak"),
        rows=tuple(rows),
    )


def _phases(columns: Sequence[Column]) -> Table:
    names = [
        name
        for name in PHASES
        if any(
            each.phase == name for one in columns if one.measured for each in one.measured.phases
        )
    ]
    return _by_phase("Peak by phase", "MiB above the baseline", columns, names, "peak")


def _kept(comparison: Comparison, columns: Sequence[Column]) -> Table | None:
    """Return what every phase keeps, and the sum; None if steady memory and phases are alike."""
    if not any(one.metric in ("kept", "steady") for one in comparison.changes):
        return None
    least = 10 ** -words.decimals(columns) / 2 * MIB
    kept = {
        each.phase
        for one in columns
        if one.measured
        for each in one.measured.phases
        if abs(each.kept.median) >= least
    }
    names = [name for name in PHASES if name in kept]
    caption = "MiB that a phase adds to resident memory"
    table = _by_phase("Kept by phase", caption, columns, names, "kept")
    steady = [one.measured.steady.median for one in columns if one.measured]
    decimals = words.decimals(columns)
    rows = tuple(
        (*row, mebibytes(size, decimals)) for row, size in zip(table.rows, steady, strict=True)
    )
    sums = [
        sum(each.kept.median for each in one.measured.phases) for one in columns if one.measured
    ]
    off = max(abs(size - total) for size, total in zip(steady, sums, strict=True))
    if off >= MIB:
        caption += f"; every figure is a median, so that sums are off by up to {format_size(off)}"
    return replace(table, caption=caption, headings=(*table.headings, "total (steady)"), rows=rows)


def _by_phase(
    title: str,
    caption: str,
    columns: Sequence[Column],
    names: Sequence[PhaseName],
    figure: Literal["peak", "kept"],
) -> Table:
    decimals = words.decimals(columns)
    rows = []
    for column in columns:
        assert column.measured is not None
        sizes: dict[str, Bytes] = {
            each.phase: getattr(each, figure) for each in column.measured.phases
        }
        cells = (mebibytes(sizes[name].median, decimals) if name in sizes else "" for name in names)
        rows.append((plain(column.label), *cells))
    # Headings in a row of 80 letters: words that wrap where they may.
    headings = tuple(name.replace("_", " ") for name in names)
    return Table(
        title=title, caption=caption, headings=(title.lower(), *headings), rows=tuple(rows)
    )


def _size(value: Bytes | None) -> str:
    if value is None:
        return ""
    half = (value.high - value.low) / 2
    spread = f" ± {mebibytes(round(half), 0)}" if half > max(_SPREAD * value.median, MIB) else ""
    return format_size(value.median) + spread


def _latency(latency: Latency) -> tuple[str, str]:
    """Return the latency and its interval: beside the first column's where it ran in turn."""
    if latency.ratio is not None:
        bounds = f"{latency.ratio_low:.2f} – {latency.ratio_high:.2f}"
        return words.latency_ratio(latency), bounds
    bounds = f"{format_duration(latency.low_s)} – {format_duration(latency.high_s)}"
    return format_duration(latency.median_s), bounds


def _outputs(column: Column) -> str:
    if column.largest_difference:
        return f"{column.largest_difference:.1e}"
    if column.difference:
        return "differ"
    return "" if column.largest_difference is None else "equal"


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
