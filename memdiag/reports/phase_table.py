"""The table of phases, the same for a profile and for a session of a recorded program."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Protocol

from memdiag.records.phases import PhaseName
from memdiag.records.profile import PeakKind, Phase
from memdiag.reports.table import BarPart, Cell, Column, Row, Table
from memdiag.reports.text import known_mebibytes_text, mebibytes_text
from memdiag.units import MIB, format_duration

SAMPLED_MARK = "~"
SAMPLED_CAPTION = f"; {SAMPLED_MARK}: the largest sample, the true peak may be higher"
"""Mark of a peak that is the largest sample, not the kernel's own figure."""

OTHER_STEPS_LABEL = "other steps"
"""Label of the part of a phase that remains without the phases that interrupt it."""

ESTIMATED_HEADING = "estimated"
"""Heading of the peaks that were predicted."""

OPTIONAL_PHASE_COLUMNS = ("at start",)
"""Columns that a narrow terminal omits if there are estimates. A phase starts with the memory that
the phase before it ends with."""

_MAX_RESPONSIBLE = 32


class PhaseInterval(Protocol):
    """An interval of time in a phase: a span of a profile, or a time of a recorded session."""

    @property
    def phase(self) -> PhaseName:
        """The phase."""

    @property
    def start_s(self) -> float:
        """The start, in seconds."""

    @property
    def end_s(self) -> float:
        """The end, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRow:
    """One phase, or a part of one, in figures of the whole process.

    Rows of level 0 follow each other. Each starts with the memory that the row before ends with,
    unless time passed in between. A phase that others interrupt, as constant folding interrupts
    optimization, forms one such row together with them. Its parts are the rows of level 1 below.

    Attributes:
        label: the name of the phase, the number of runs of `steady`, or `OTHER_STEPS_LABEL`.
        whole: the phase of the row that contains this part; None for level 0.
        duration_s: seconds in this phase.
        median_run_s: seconds of the median run of `steady`.
        start_bytes, end_bytes: resident set; None for a part with several time ranges.
        peak_bytes: the peak; None for `OTHER_STEPS_LABEL` if another part may have reached it.
        net_bytes: the memory that the phase adds to the resident set.
        responsible: the span that made the phase grow most.
        is_peak: whether the overall peak is in this phase.
        ending: how the run ended in this phase, if it did not complete.
        estimated_bytes: the peak that was predicted; None without an estimate.
    """

    phase: PhaseName
    label: str
    duration_s: float
    start_bytes: int | None
    peak_bytes: int | None
    peak_kind: PeakKind
    end_bytes: int | None
    net_bytes: int
    median_run_s: float | None = None
    responsible: str = ""
    is_peak: bool = False
    ending: str = ""
    whole: PhaseName | None = None
    estimated_bytes: int | None = None

    @property
    def level(self) -> int:
        """The depth of the row's indentation."""
        return 0 if self.whole is None else 1


def phase_row(phase: Phase) -> PhaseRow:
    """Return the figures of `phase`, as a row of level 0."""
    return PhaseRow(
        phase=phase.name,
        label=phase.name,
        duration_s=phase.duration_s,
        start_bytes=phase.start.rss_bytes,
        peak_bytes=phase.peak_rss_bytes,
        peak_kind=phase.peak_kind,
        end_bytes=phase.end.rss_bytes,
        net_bytes=phase.net_rss_bytes,
    )


def arranged_phase_rows(
    rows: Sequence[PhaseRow], intervals: Sequence[PhaseInterval]
) -> tuple[PhaseRow, ...]:
    """Return `rows`, with one row for phases that take turns, and below it a row for each of them.

    Args:
        rows: the phases, in the order in which they first occur.
        intervals: the times of the phases.
    """
    return tuple(
        row
        for group in _overlapping_phase_groups(rows, intervals)
        for row in _phase_and_part_rows(group, intervals)
    )


def _overlapping_phase_groups(
    rows: Sequence[PhaseRow], intervals: Sequence[PhaseInterval]
) -> list[list[PhaseRow]]:
    """Return the phases in order, in groups whose time ranges overlap."""
    groups: list[list[PhaseRow]] = []
    end_s = 0.0
    for row in rows:
        phase_intervals = [interval for interval in intervals if interval.phase == row.phase]
        start_s = min((interval.start_s for interval in phase_intervals), default=end_s)
        if groups and start_s < end_s:
            groups[-1].append(row)
        else:
            groups.append([row])
        end_s = max([end_s, *(interval.end_s for interval in phase_intervals)])
    return groups


def _phase_and_part_rows(
    group: Sequence[PhaseRow], intervals: Sequence[PhaseInterval]
) -> Iterator[PhaseRow]:
    """Yield the row of a phase, or of a group of phases followed by a row for each."""
    if len(group) == 1:
        yield group[0]
        return
    row_by_phase = {row.phase: row for row in group}
    group_intervals = sorted(
        (interval for interval in intervals if interval.phase in row_by_phase),
        key=lambda interval: (interval.start_s, interval.end_s),
    )
    start_bytes = row_by_phase[group_intervals[0].phase].start_bytes or 0
    end_bytes = row_by_phase[group_intervals[-1].phase].end_bytes or 0
    highest_row = max(group, key=lambda row: row.peak_bytes or 0)
    yield replace(
        group[0],
        duration_s=sum(row.duration_s for row in group),
        start_bytes=start_bytes,
        peak_bytes=highest_row.peak_bytes,
        peak_kind=highest_row.peak_kind,
        end_bytes=end_bytes,
        net_bytes=end_bytes - start_bytes,
        responsible="",
        estimated_bytes=max(
            (row.estimated_bytes for row in group if row.estimated_bytes is not None), default=None
        ),
    )
    whole_phase = group[0].phase
    ordered_intervals = sorted(intervals, key=lambda interval: (interval.start_s, interval.end_s))
    occurrences_by_phase = Counter(
        phase for phase, _ in groupby(ordered_intervals, key=lambda interval: interval.phase)
    )
    for row in (*group[1:], group[0]):
        part = replace(row, whole=whole_phase)
        if row.phase == whole_phase:
            part = replace(_other_steps_row(part, group[1:]), is_peak=False, ending="")
        is_uninterrupted = occurrences_by_phase[row.phase] == 1
        yield part if is_uninterrupted else replace(part, start_bytes=None, end_bytes=None)


def _other_steps_row(row: PhaseRow, interrupting_rows: Sequence[PhaseRow]) -> PhaseRow:
    """Return the part of `row` that remains without `interrupting_rows`.

    If an interrupting phase is only sampled, the high-water mark may be of that phase.
    """
    if all(interrupting_row.peak_kind == "exact" for interrupting_row in interrupting_rows):
        return replace(row, label=OTHER_STEPS_LABEL)
    is_highest = (row.peak_bytes or 0) >= max(
        interrupting_row.peak_bytes or 0 for interrupting_row in interrupting_rows
    )
    is_printed_once = row.peak_kind == "exact" and is_highest
    return replace(
        row,
        label=OTHER_STEPS_LABEL,
        peak_bytes=None if is_printed_once else row.peak_bytes,
        peak_kind="sampled",
    )


def phase_row_table(
    rows: Sequence[PhaseRow],
    *,
    decimals: int,
    caption: str,
    heading: str = "phase",
    explains_samples: bool = True,
) -> Table:
    """Return the table of `rows`, with `caption` completed to sentences.

    With `explains_samples`, the caption says what a sampled peak is. The heading always names it.
    """
    scale_bytes = max((row.peak_bytes or 0 for row in rows), default=0)
    kinds = {row.peak_kind for row in rows if row.peak_bytes is not None}
    if explains_samples and "sampled" in kinds:
        caption += SAMPLED_CAPTION
    kind = kinds.pop() if len(kinds) == 1 else f"{SAMPLED_MARK} sampled" if kinds else ""
    peak_heading = f"peak ({kind})" if kind else "peak"
    # On a terminal the phase where a run ended is marked in the last column.
    has_last = any(row.responsible for row in rows)
    has_estimate = any(row.estimated_bytes is not None for row in rows)

    size = partial(known_mebibytes_text, decimals=decimals)
    columns: list[tuple[Column, Callable[[PhaseRow], Cell | str]]] = [
        (Column(heading), _phase_label_cell),
        (
            Column("time", "right"),
            lambda row: format_duration(row.median_run_s or row.duration_s),
        ),
        (Column("at start", "right", css="less"), lambda row: size(row.start_bytes)),
        (
            Column(peak_heading, "right", css="strong"),
            lambda row: Cell(_sampled_peak_mark(row) + size(row.peak_bytes), is_strong=row.is_peak),
        ),
        (Column(ESTIMATED_HEADING, "right", css="less"), lambda row: size(row.estimated_bytes)),
        (Column("at end", "right"), lambda row: size(row.end_bytes)),
        (Column("kept", "right"), lambda row: _kept_memory_text(row, decimals)),
        (
            Column(
                css="wide",
                legend=(("end", "at end"), ("top", "up to the peak")),
                formats=("html",),
            ),
            lambda row: _phase_bar_cell(row, scale_bytes),
        ),
        (
            Column("grown by", css="name less", formats=("markdown", "html")),
            lambda row: Cell(row.responsible, is_code=True),
        ),
        (
            Column(
                "grown by" if has_last else "",
                wraps=True,
                max_width=_MAX_RESPONSIBLE,
                formats=("console",),
            ),
            lambda row: row.ending or row.responsible,
        ),
    ]
    if not has_estimate:
        columns = [
            (column, cell) for column, cell in columns if column.heading != ESTIMATED_HEADING
        ]
    return Table(
        columns=tuple(column for column, _ in columns),
        rows=tuple(
            Row(*(cell(row) for _, cell in columns), is_strong=row.is_peak, level=row.level)
            for row in rows
        ),
        caption=f"{caption}.",
    )


def _phase_label_cell(row: PhaseRow) -> Cell:
    tags = ("peak" if row.is_peak else "", row.ending)
    return Cell(
        row.label,
        is_strong=row.is_peak and row.label == row.phase,
        tags=tuple(tag for tag in tags if tag),
    )


def _sampled_peak_mark(row: PhaseRow) -> str:
    """Return the mark of the row's peak, if it needs one."""
    is_sample = row.peak_bytes is not None and row.peak_kind == "sampled"
    return SAMPLED_MARK if is_sample else ""


def _kept_memory_text(row: PhaseRow, decimals: int) -> str:
    """Return the memory that the phase adds: the difference of its printed start and end."""
    if row.level == 0 and row.start_bytes is not None and row.end_bytes is not None:
        # The difference of the printed figures may differ from the rounded difference.
        printed_mebibytes = round(row.end_bytes / MIB, decimals) - round(
            row.start_bytes / MIB, decimals
        )
        return mebibytes_text(round(printed_mebibytes * MIB), decimals, signed=True)
    return mebibytes_text(row.net_bytes, decimals, signed=True)


def _phase_bar_cell(row: PhaseRow, scale_bytes: int) -> Cell:
    if row.level:
        return Cell()
    bar = (
        BarPart(css="top", percent=100 * (row.peak_bytes or 0) / (scale_bytes or 1)),
        BarPart(css="end", percent=100 * (row.end_bytes or 0) / (scale_bytes or 1)),
    )
    return Cell(bars=(bar,))
