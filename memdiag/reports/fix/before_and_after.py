"""Memory, latency and outputs before and after a fix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isinf

from memdiag.records.fix import Fix
from memdiag.records.measured_change import LatencyAt
from memdiag.reports.table import Cell, Column, Row, Table
from memdiag.reports.text import listed_names, plain, sizes_clause
from memdiag.units import MIB, format_duration, format_size, format_sizes

_MAX_JOINED_NAMES = 6


@dataclass(frozen=True, kw_only=True)
class BeforeAndAfter:
    """One figure before and after, as text.

    Attributes:
        label: the name of the figure.
        before, after: the figure with its unit.
        ratio: after ÷ before; empty if that has no meaning.
        note: the ratio and its uncertainty.
        exact: both figures in bytes or seconds.
    """

    label: str
    before: str
    after: str
    ratio: str
    note: str
    exact: tuple[str, str]


_FEW_RUN_PAIRS = 8


def measured_sizes_text(fix: Fix) -> str:
    """Return the sizes with which each measured process ran; empty if all sizes are fixed."""
    return sizes_clause(fix.dimensions, fix.further_sizes)


def memory_word(fix: Fix, name: str) -> str:
    """Return the name of a figure of memory, which says whether it is on a GPU."""
    return name if fix.device is None else f"GPU {name}"


def memory_changes(fix: Fix) -> tuple[BeforeAndAfter, ...]:
    """Return memory, load time and files before and after, peak and steady first.

    Empty if the figures before or after are unknown.
    """
    before, after = fix.before, fix.after
    if before is None or after is None:
        return ()
    peak_spread = max(before.peak_spread_bytes, after.peak_spread_bytes)
    steady_spread = max(before.steady_spread_bytes, after.steady_spread_bytes)
    if fix.measured_once:
        # Readers would take the spread of the figures before for the spread of both.
        peak_spread = steady_spread = 0
    parts = (
        _size_change("  anonymous", before.anonymous_bytes, after.anonymous_bytes),
        _size_change("  mapped files", before.file_and_shared_bytes, after.file_and_shared_bytes),
    )
    peak, steady = (memory_word(fix, name) for name in ("peak", "steady"))
    return (
        _size_change(peak, before.peak_bytes, after.peak_bytes, peak_spread),
        _size_change(steady, before.steady_bytes, after.steady_bytes, steady_spread),
        *(parts if fix.device is None else ()),
        _duration_change("load", before.load_s, after.load_s),
        _size_change("on disk", before.disk_bytes, after.disk_bytes),
    )


def latency_changes(fix: Fix) -> tuple[BeforeAndAfter, ...]:
    """Return the latencies before and after, by inputs; empty if there are no figures."""
    if fix.before is None or fix.after is None:
        return ()
    return tuple(map(_latency_change, fix.latencies))


def change_table(changes: Sequence[BeforeAndAfter], heading: str = "") -> Table:
    """Return the table of `changes`; `heading` is the heading of the first column."""
    return Table(
        columns=(
            Column(heading, css="name"),
            Column("before", "right"),
            Column("after", "right", css="strong"),
            Column("after ÷ before", css="shape"),
        ),
        rows=tuple(
            Row(
                change.label,
                Cell(change.before, title=change.exact[0]),
                Cell(change.after, title=change.exact[1]),
                change.note,
            )
            for change in changes
        ),
    )


def outputs_text(fix: Fix) -> str:
    """Return how far the outputs differ from the original's."""
    largest_difference = fix.largest_difference
    if largest_difference is None:
        return "not compared"
    if not largest_difference:
        return "equal, bit by bit"
    if isinf(largest_difference) or fix.bound is None:
        return "differ"
    bound = f"allowed {fix.bound:.1e}: {plain(fix.bound_reason)}" if fix.bound else "no limit"
    return f"differ by at most {largest_difference:.1e} of the largest value ({bound})"


def saving_text(changes: Sequence[BeforeAndAfter]) -> str:
    """Return ``peak 2.0 GiB → 1.0 GiB (0.50 ×)`` for each of `changes`, after commas."""
    return ", ".join(
        f"{change.label} {change.before} → {change.after}"
        f"{f' ({change.ratio})' if change.ratio else ''}"
        for change in changes
    )


def latency_clause(fix: Fix) -> str:
    """Return ``latency 1.02 × (0.99–1.04)``; empty if no latency was compared.

    It is the comparison with the largest ratio. Remarks say if there were several comparisons, if
    it has few pairs of runs, and if it was made at fewer sizes than the memory was measured at.
    """
    latencies = fix.latencies
    if not latencies:
        return ""
    slowest = _slowest_latency(latencies)
    only_text = f" with {plain(slowest.inputs)} only" if is_compared_at_one_size(fix) else ""
    remarks = [
        *([f"{slowest.pairs} pairs of runs"] if slowest.pairs < _FEW_RUN_PAIRS else []),
        *([f"the worst of {len(latencies)} comparisons"] if len(latencies) > 1 else []),
    ]
    ratio = _ratio_and_interval(slowest).removesuffix(")")
    return f"latency {', '.join([ratio, *remarks])}){only_text}"


def is_compared_at_one_size(fix: Fix) -> bool:
    """Return whether latency was compared at one of the sizes at which memory was measured."""
    return bool(fix.further_sizes) and len(fix.latencies) == 1


def is_few_pairs_and_wide(fix: Fix) -> bool:
    """Return whether few pairs of runs were compared, with an interval above the allowed ratio."""
    if not fix.latencies:
        return False
    slowest = _slowest_latency(fix.latencies)
    return slowest.pairs < _FEW_RUN_PAIRS and slowest.high > fix.max_slowdown


def joined_names(names: Sequence[str]) -> str:
    """Return the joined names of remedies or options: ``arena-off + one-thread``."""
    return listed_names(names, limit=_MAX_JOINED_NAMES, separator=" + ")


def mapped_tables_clause(fix: Fix) -> str:
    """Return the clause on the memory after inputs have used all rows of mapped tables.

    Empty if that is not much more.
    """
    before, after = fix.before, fix.after
    if before is None or after is None or after.unread_table_bytes < MIB:
        return ""
    ratio = (
        f" ({after.most_steady_bytes / before.steady_bytes:.2f} ×)" if before.steady_bytes else ""
    )
    most_size = format_size(after.most_steady_bytes)
    subject = "both" if after.most_peak_bytes > after.peak_bytes else "steady"
    return f", {subject} at most {most_size}{ratio} once all rows of its embeddings were used"


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


def _latency_change(latency: LatencyAt) -> BeforeAndAfter:
    clock = ", CPU time" if latency.clock == "cpu" else ""
    interval = f"{_ratio_and_interval(latency).removesuffix(')')}, {latency.pairs} pairs{clock})"
    return _duration_change(
        plain(latency.inputs), latency.before_s, latency.after_s, f"{latency.ratio:.2f} ×", interval
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


def _ratio_and_interval(latency: LatencyAt) -> str:
    """Return the ratio of latencies with its interval: ``0.99 × (0.97–1.01)``."""
    return f"{latency.ratio:.2f} × ({latency.low:.2f}–{latency.high:.2f})"


def _slowest_latency(latencies: Sequence[LatencyAt]) -> LatencyAt:
    return max(latencies, key=lambda latency: latency.ratio)
