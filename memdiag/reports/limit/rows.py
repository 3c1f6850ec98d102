"""The trials of a search by limit, for tables and charts."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from memdiag.deploy.limit_bisection import LOAD_SLOWDOWN, usual_times
from memdiag.records.limit import LimitPoint, MemoryLimit
from memdiag.reports.table import Cell, Column, Row, Table
from memdiag.reports.text import plain
from memdiag.session_options import DEVICE_LIMIT_OPTION
from memdiag.units import MIB, format_duration, format_size


class LimitRow(NamedTuple):
    """All trials under one limit.

    Attributes:
        limit_bytes: the limit; None for no limit.
        trials: the number of trials.
        completed: the number of completed trials.
        slow: the number of trials that the limit made slow.
        phases: the phases in which trials ended early.
        outcomes: how these trials ended.
        load_s, latency_s: medians of the slow trials, or of the completed ones if none was slow;
            None if no trial completed.
        refault_bytes: the median of the bytes that slow trials read again, or all if none was slow.
        peak_bytes: the largest counted peak; None if it is not known.
        device_bytes: the median of the memory on a GPU; None if it is not known.
    """

    limit_bytes: int | None
    trials: int
    completed: int
    slow: int
    phases: tuple[str, ...]
    outcomes: tuple[str, ...]
    load_s: float | None
    latency_s: float | None
    refault_bytes: int
    peak_bytes: int | None
    device_bytes: int | None = None

    @property
    def works(self) -> bool:
        """Whether every trial completed."""
        return self.completed == self.trials

    @property
    def result(self) -> str:
        """The result in words: ``works``, ``slow``, ``killed in prepack``."""
        if self.works:
            count_text = f" {self.slow} of {self.trials}" if self.slow < self.trials else ""
            return f"slow{count_text}" if self.slow else "works"
        names = {"timeout": "too slow"}
        endings = " or ".join(names.get(outcome, outcome) for outcome in self.outcomes)
        phases_text = f" in {', '.join(self.phases)}" if self.phases else ""
        working_text = f"works {self.completed} of {self.trials}, else " if self.completed else ""
        return f"{working_text}{endings}{phases_text}"


def limit_rows(limit: MemoryLimit) -> tuple[LimitRow, ...]:
    """Return a row for the trials without a limit, then for each limit, the largest first."""
    sizes = sorted(
        {point.limit_bytes for point in limit.points if point.limit_bytes is not None}, reverse=True
    )
    points_by_limit: list[Sequence[LimitPoint]] = [limit.unlimited] if limit.unlimited else []
    points_by_limit += [
        [point for point in limit.points if point.limit_bytes == size] for size in sizes
    ]
    return tuple(map(_limit_row, points_by_limit))


def _limit_row(points: Sequence[LimitPoint]) -> LimitRow:
    completed_points = [point for point in points if point.is_completed]
    failed_points = [point for point in points if not point.is_completed]
    slow_points = [point for point in completed_points if point.is_slow]
    peaks = [point.peak_bytes for point in points if point.peak_bytes is not None]
    timed_points = slow_points or completed_points
    on_device = _known_median(point.device_bytes for point in points)
    refaults = [point.refault_bytes + point.load_refault_bytes for point in slow_points or points]
    return LimitRow(
        limit_bytes=points[0].limit_bytes,
        trials=len(points),
        completed=len(completed_points),
        slow=len(slow_points),
        phases=tuple(dict.fromkeys(point.phase for point in failed_points if point.phase)),
        outcomes=tuple(dict.fromkeys(point.outcome for point in failed_points)),
        load_s=_known_median(point.load_s for point in timed_points),
        latency_s=_known_median(point.latency_s for point in timed_points),
        refault_bytes=round(statistics.median(refaults)),
        peak_bytes=max(peaks, default=None),
        device_bytes=None if on_device is None else round(on_device),
    )


def _known_median(values: Iterable[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return statistics.median(known_values) if known_values else None


def relative_time(seconds: float | None, usual_seconds: float | None) -> float | None:
    """Return a time divided by the usual one; None if either is not known."""
    return seconds / usual_seconds if seconds is not None and usual_seconds else None


def trial_table(limit: MemoryLimit) -> Table:
    """Return the table of all tried limits, the largest first."""
    rows = limit_rows(limit)
    is_model = limit.kind == "model"
    table = Table(
        columns=(
            Column("limit", align="right"),
            Column("result", wraps=True),
            Column("trials", align="right", css="less", formats=("markdown", "html")),
            Column("load", align="right"),
            Column("latency" if is_model else "duration", align="right"),
            Column("slower", wraps=True),
            Column("read again", align="right"),
            Column("on the GPU", align="right"),
            Column("peak", align="right", css="less", formats=("markdown", "html")),
            Column(),
        ),
        rows=tuple(
            Row(
                Cell(
                    "none" if row.limit_bytes is None else format_size(row.limit_bytes),
                    title="" if row.limit_bytes is None else f"{row.limit_bytes:,} bytes",
                ),
                plain(row.result),
                str(row.trials),
                "" if row.load_s is None else format_duration(row.load_s),
                "" if row.latency_s is None else format_duration(row.latency_s),
                ", ".join(slowdown_texts(limit, row)),
                format_size(row.refault_bytes) if row.refault_bytes >= MIB else "",
                "" if row.device_bytes is None else format_size(row.device_bytes),
                "" if row.peak_bytes is None else format_size(row.peak_bytes),
                _limit_remark(limit, row),
                is_strong=bool(_limit_remark(limit, row)),
            )
            for row in rows
        ),
        caption=_trial_caption(limit, rows) if any(row.limit_bytes for row in rows) else "",
        is_dense=True,
    )
    return table.without_empty_columns()


def slowdown_texts(limit: MemoryLimit, row: LimitRow) -> list[str]:
    """Return how a limit slows the trials: ``latency × 1.50``, ``loading × 3.0``; often nothing.

    If nothing was read again, times differ by other work of the machine, not by the limit.
    """
    if not row.slow:
        return []
    normal_times = usual_times(limit.points)
    parts = []
    ratio = relative_time(row.latency_s, normal_times.latency_s)
    if ratio is not None and ratio > limit.max_slowdown:
        parts.append(f"{'latency' if limit.kind == 'model' else 'duration'} × {ratio:.2f}")
    load_ratio = relative_time(row.load_s, normal_times.load_s)
    if load_ratio is not None and load_ratio > LOAD_SLOWDOWN:
        parts.append(f"loading × {load_ratio:.1f}")
    return parts


def _trial_caption(limit: MemoryLimit, rows: Sequence[LimitRow]) -> str:
    """Return what slow means, and why other times differ."""
    if limit.device is not None:
        return (
            f"limit: {DEVICE_LIMIT_OPTION}, of the arena; on the GPU: all of the process after the"
            " runs; times of different processes differ"
        )
    remark = "where nothing was read again, times differ by what else the machine does"
    if not any(row.slow for row in rows):
        return remark
    name, load_text = "latency", f" (loading: {LOAD_SLOWDOWN:g} ×)"
    if limit.kind == "program":
        name, load_text = "duration", ""
    return (
        f"slow: contents of files were dropped and read again, and the {name} is more than"
        f" {limit.max_slowdown:g} × the shortest{load_text}; {remark}"
    )


def _limit_remark(limit: MemoryLimit, row: LimitRow) -> str:
    if row.limit_bytes is None:
        return ""
    remark_by_limit = {limit.smallest_bytes: "smallest"}
    if limit.comfortable_bytes is not None and limit.device is None:
        is_both = limit.smallest_bytes == limit.comfortable_bytes
        remark_by_limit[limit.comfortable_bytes] = (
            "smallest, no slowdown" if is_both else "no slowdown"
        )
    return remark_by_limit.get(row.limit_bytes, "")
