"""The common parts of the reports of fixes and tunings: memory, latency and outputs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isinf
from textwrap import fill
from typing import TYPE_CHECKING, Any

from memdiag.records.measured_change import LatencyAt, MeasuredChange
from memdiag.reports import markdown as md
from memdiag.reports.console import line
from memdiag.reports.page import SizeBar, size_bar_table
from memdiag.reports.table import Cell, Column, Row, Table, markdown_table, print_table
from memdiag.reports.text import at_sizes, capitalized, listed, model_file, plain
from memdiag.units import MIB, format_duration, format_size, format_sizes

if TYPE_CHECKING:
    from rich.console import Console

MEASURED_ONCE = (
    "Measured in one process only: the search ended before it could be measured in several."
)
_MAX_NAMES = 6
_MAX_INPUTS = 60
_LABEL_WIDTH = 30


@dataclass(frozen=True, kw_only=True)
class BeforeAndAfter:
    """One figure before and after, as text.

    Attributes:
        label: the name of the figure.
        before, after: the figure with its unit.
        ratio: after ÷ before; empty if it is not meaningful.
        note: the ratio and its uncertainty.
        exact: both figures in bytes or seconds.
    """

    label: str
    before: str
    after: str
    ratio: str
    note: str
    exact: tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSummary:
    """A fix or a tuning at a glance.

    Attributes:
        model: the file name of the model.
        facts: sizes of the inputs, release of onnxruntime and duration.
        answer: the result in one sentence.
        changes: peak and steady memory; empty if nothing was changed, or nothing measured.
        sentences: changes, latency, outputs and conditions, each with a label.
    """

    model: str
    facts: str
    answer: str
    changes: tuple[BeforeAndAfter, ...]
    sentences: tuple[tuple[str, str], ...]


_LATENCY_HEADING = BeforeAndAfter(
    label="latency with", before="", after="", ratio="", note="", exact=("", "")
)


_WHY_RATIOS_DIFFER = (
    "a ratio may differ from after ÷ before: it is the median over pairs of runs, which a busy"
    " machine disturbs less than the medians of all runs"
)
_LARGE_DIFFERENCE = 1.2
_FEW_PAIRS = 8


def make_summary(
    record: MeasuredChange,
    answer: str,
    changes: tuple[BeforeAndAfter, ...],
    sentences: Sequence[tuple[str, str]],
) -> ChangeSummary:
    """Return the summary of `record`; sentences without text are left out."""
    facts = (
        measured_sizes(record),
        f"onnxruntime {plain(record.onnxruntime)}",
        f"took {format_duration(record.duration_s)}",
    )
    return ChangeSummary(
        model=model_file(record.model),
        facts=" · ".join(part for part in facts if part),
        answer=answer,
        changes=changes,
        sentences=tuple((label, text) for label, text in sentences if text),
    )


def measured_sizes(record: MeasuredChange) -> str:
    """Return the sizes that each measured process ran with; empty if all sizes are fixed."""
    return at_sizes(record.dimensions, record.further_sizes)


def memory_changes(record: MeasuredChange) -> tuple[BeforeAndAfter, ...]:
    """Return memory, loading time and files before and after: peak and steady first.

    Empty if either is unknown.
    """
    before, after = record.before, record.after
    if before is None or after is None:
        return ()
    peak_spread = max(before.peak_spread_bytes, after.peak_spread_bytes)
    steady_spread = max(before.steady_spread_bytes, after.steady_spread_bytes)
    if record.measured_once:  # the spread of the figures before would be taken for that of both
        peak_spread = steady_spread = 0
    return (
        _size_change("peak", before.peak_bytes, after.peak_bytes, peak_spread),
        _size_change("steady", before.steady_bytes, after.steady_bytes, steady_spread),
        _size_change("  anonymous", before.anonymous_bytes, after.anonymous_bytes),
        _size_change("  mapped files", before.file_bytes, after.file_bytes),
        _duration_change("load", before.load_s, after.load_s),
        _size_change("on disk", before.disk_bytes, after.disk_bytes),
    )


def latency_changes(record: MeasuredChange) -> tuple[BeforeAndAfter, ...]:
    """Return the latencies before and after, by inputs; empty if either is unknown."""
    if record.before is None or record.after is None:
        return ()
    return tuple(map(_latency_change, record.latencies))


def change_table(changes: Sequence[BeforeAndAfter], heading: str = "") -> Table:
    """Return the table of `changes`; `heading` is the heading of the first column."""
    return Table(
        columns=(
            Column(heading, wraps=True, max_width=_MAX_INPUTS, css="name"),
            Column("before", "right"),
            Column("after", "right", css="strong"),
            Column("after ÷ before", css="shape", formats=("markdown", "html")),
            Column(wraps=True, formats=("console",)),
        ),
        rows=tuple(
            Row(
                change.label,
                Cell(change.before, title=change.exact[0]),
                Cell(change.after, title=change.exact[1]),
                change.note,
                change.note,
            )
            for change in changes
        ),
    )


def show_changes(record: MeasuredChange, console: Console) -> None:
    """Print the figures before and after, below a blank line; nothing if there are none."""
    latencies = [
        replace(change, label=_indented(change.label)) for change in latency_changes(record)
    ]
    heading = [_LATENCY_HEADING] if latencies else []
    changes = (*memory_changes(record), *heading, *latencies)
    if changes:
        console.print()
        print_table(console, change_table(changes))
        if any(map(_seems_wrong, record.latencies)):
            line(console, _WHY_RATIOS_DIFFER)
        line(console, f"outputs: {outputs_text(record)}")


def _indented(label: str) -> str:
    """Return `label` in lines that fit beside the figures of a terminal, indented."""
    return fill(label, _LABEL_WIDTH, initial_indent="  ", subsequent_indent="    ")


def outputs_text(record: MeasuredChange) -> str:
    """Return how far the outputs differ from the original's."""
    largest = record.largest_difference
    if largest is None:
        return "not compared"
    if not largest:
        return "equal, bit by bit"
    if isinf(largest) or record.bound is None:
        return "differ"
    bound = (
        f"allowed {record.bound:.1e}: {plain(record.bound_reason)}" if record.bound else "no limit"
    )
    return f"largest difference {largest:.1e} of the largest value ({bound})"


def saving_text(changes: Sequence[BeforeAndAfter]) -> str:
    """Return ``peak 2.0 GiB → 1.0 GiB (0.50 ×)`` for each of `changes`, after commas."""
    return ", ".join(
        f"{change.label} {change.before} → {change.after}"
        f"{f' ({change.ratio})' if change.ratio else ''}"
        for change in changes
    )


def latency_sentence(latencies: Sequence[LatencyAt]) -> str:
    """Return the largest ratio of latencies; empty if none was compared."""
    if not latencies:
        return ""
    slowest = _slowest(latencies)
    if len(latencies) == 1:
        return f"{_ratio(slowest)} that before{_clock_words(slowest)}."
    return (
        f"{_ratio(slowest)} that before{_clock_words(slowest)}, with {plain(slowest.inputs)}: the"
        f" largest ratio of {len(latencies)} comparisons."
    )


def latency_clause(latencies: Sequence[LatencyAt]) -> str:
    """Return ``latency 1.02 × (0.99–1.04)``; empty if none was compared.

    Of several comparisons it is the one with the largest ratio, which is said. So is a small number
    of pairs of runs.
    """
    if not latencies:
        return ""
    slowest = _slowest(latencies)
    further = [
        *([f"{slowest.pairs} pairs of runs"] if slowest.pairs < _FEW_PAIRS else []),
        *([f"the worst of {len(latencies)} comparisons"] if len(latencies) > 1 else []),
    ]
    return f"latency {', '.join([_ratio(slowest).removesuffix(')'), *further])})"


def joined_names(names: Sequence[str]) -> str:
    """Return the names of remedies or options that belong together: ``one + two``."""
    return listed(names, limit=_MAX_NAMES, separator=" + ")


def markdown_document(
    title: str, record: MeasuredChange, summary: ChangeSummary, *further_blocks: str, remedies: str
) -> str:
    """Return the answer, the figures before and after, and the notes, as Markdown.

    Args:
        title: the kind of report.
        record: the fix or tuning.
        summary: the summary of the record.
        further_blocks: blocks after the table of memory.
        remedies: the section of the remedies; empty for none.
    """
    changes = memory_changes(record) if summary.changes else ()
    latencies = latency_changes(record) if changes else ()
    stripped = [replace(change, label=change.label.strip()) for change in changes]
    return md.document(
        (
            f"## {title} of {md.code(summary.model)}",
            f"**{md.escape(summary.answer)}** {md.escape(summary.facts)}",
            "\n".join(f"- {label}: {md.escape(text)}" for label, text in summary.sentences),
            markdown_table(change_table(stripped, "figure")),
            *further_blocks,
            markdown_table(change_table(latencies, "latency with")),
            remedies,
            md.bullets(map(plain, record.notes)),
        )
    )


def page_values(record: MeasuredChange, summary: ChangeSummary) -> dict[str, Any]:
    """Return the values that the pages of fixes and tunings share."""
    figures_by_label = {"before": record.before, "after": record.after}
    bars = [
        SizeBar(label=label, peak=f.peak_bytes, steady=f.steady_bytes, mapped=f.file_bytes)
        for label, f in figures_by_label.items()
        if f is not None
    ]
    return {
        "summary": summary,
        "bars": size_bar_table(bars) if summary.changes else None,
        "memory": change_table(memory_changes(record)),
        "latencies": change_table(latency_changes(record), "inputs"),
        "outputs": f"{outputs_text(record)}.",
        "measured_once": record.measured_once,
        "notes": tuple(map(plain, record.notes)),
        "command": shlex.join(map(plain, record.command)),
    }


def page_charts(record: MeasuredChange) -> dict[str, Any]:
    """Return the values that the charts of fixes and tunings share."""
    return {
        "latencies": [
            {
                "inputs": plain(at.inputs),
                "ratio": at.ratio,
                "low": at.low,
                "high": at.high,
                "before": change.before,
                "after": change.after,
            }
            for at, change in zip(record.latencies, latency_changes(record), strict=False)
        ]
    }


def answer_sentence(record: MeasuredChange, changes: Sequence[BeforeAndAfter]) -> str:
    """Return `saving_text` as a sentence, with the mapped tables that other inputs would read."""
    return capitalized(f"{saving_text(changes)}{added_by_inputs(record)}.")


def added_by_inputs(record: MeasuredChange) -> str:
    """Return the clause on the memory once inputs have used all rows of mapped tables.

    Empty if it is not much more.
    """
    before, after = record.before, record.after
    if before is None or after is None or after.unread_table_bytes < MIB:
        return ""
    ratio = (
        f" ({after.most_steady_bytes / before.steady_bytes:.2f} ×)" if before.steady_bytes else ""
    )
    most = format_size(after.most_steady_bytes)
    which = "both" if after.most_peak_bytes > after.peak_bytes else "steady"
    return f", {which} at most {most}{ratio} once all rows of its embeddings were used"


def _size_change(label: str, before: int, after: int, spread: int = 0) -> BeforeAndAfter:
    ratio = f"{after / before:.2f} ×" if before > 0 and after >= 0 else ""
    uncertainty = f" (± {format_size(spread // 2)})" if spread and ratio else ""
    texts = format_sizes(before, after)
    return BeforeAndAfter(
        label=label,
        before=texts[0],
        after=texts[1],
        ratio=ratio,
        note=ratio + uncertainty,
        exact=(f"{before:,} bytes", f"{after:,} bytes"),
    )


def _latency_change(at: LatencyAt) -> BeforeAndAfter:
    clock = ", CPU time" if at.clock == "cpu" else ""
    interval = f"{_ratio(at).removesuffix(')')}, {at.pairs} pairs{clock})"
    return _duration_change(
        plain(at.inputs), at.before_s, at.after_s, f"{at.ratio:.2f} ×", interval
    )


def _duration_change(
    label: str, before: float, after: float, ratio: str = "", note: str = ""
) -> BeforeAndAfter:
    return BeforeAndAfter(
        label=label,
        before=format_duration(before),
        after=format_duration(after),
        ratio=ratio,
        note=note,
        exact=(f"{before:.6g} s", f"{after:.6g} s"),
    )


def _ratio(at: LatencyAt) -> str:
    """Return the ratio of latencies with its interval: ``0.99 × (0.97–1.01)``."""
    return f"{at.ratio:.2f} × ({at.low:.2f}–{at.high:.2f})"


def _clock_words(at: LatencyAt) -> str:
    return ", by CPU time" if at.clock == "cpu" else ""


def _seems_wrong(at: LatencyAt) -> bool:
    """Return whether the ratio of the latencies is far from the ratio of pairs."""
    if not at.before_s or not at.ratio:
        return False
    difference = at.after_s / at.before_s / at.ratio
    return not 1 / _LARGE_DIFFERENCE < difference < _LARGE_DIFFERENCE


def _slowest(latencies: Sequence[LatencyAt]) -> LatencyAt:
    return max(latencies, key=lambda at: at.ratio)
