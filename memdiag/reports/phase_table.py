"""The table of phases, the same for a profile and for a session of a recorded program."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

from memdiag.records.phases import PhaseName
from memdiag.records.profile import PeakKind, Phase
from memdiag.reports.table import BarPart, Cell, Column, Row, Table
from memdiag.reports.text import mebibytes_text
from memdiag.units import MIB, format_duration

SAMPLED_MARK = "~"
SAMPLED_CAPTION = f"; {SAMPLED_MARK}: the largest sample, the true peak may be higher"
"""Mark of a peak that is the largest sample, not the kernel's own figure."""

OTHER_STEPS_LABEL = "other steps"
"""Label of the part of a phase that remains without the phases that interrupt it."""

ESTIMATED_HEADING = "estimated"
"""Heading of the peaks that were predicted."""

OPTIONAL_PHASE_COLUMNS = ("at start",)
"""Columns that a narrow terminal does without where there are estimates: a phase starts where the
one before it ends."""

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

    Rows of level 0 follow each other: each starts with the memory that the row before ends with,
    unless time passed between.
    A phase that others interrupt, as constant folding interrupts optimization, is one such row
    together with them; its parts are the rows of level 1 below it.

    Attributes:
        label: the name of the phase, the number of runs of `steady`, or `OTHER_STEPS_LABEL`.
        whole: for a part, the phase of the row that it is a part of; None for level 0.
        duration_s: seconds in this phase.
        median_run_s: seconds of the median run of `steady`.
        start_bytes, end_bytes: resident set; None for a part that consists of several time ranges.
        peak_bytes: None for `OTHER_STEPS_LABEL` if the peak of the whole row may be the peak of
            another part.
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
    rows: Sequence[PhaseRow], times: Sequence[PhaseInterval]
) -> tuple[PhaseRow, ...]:
    """Return `rows`, with phases that take turns together: a row for all, and one for each.

    Args:
        rows: the phases, in the order in which they first occur.
        times: when they took place.
    """
    return tuple(
        row
        for group in _overlapping_phase_groups(rows, times)
        for row in _phase_and_part_rows(group, times)
    )


def _overlapping_phase_groups(
    rows: Sequence[PhaseRow], times: Sequence[PhaseInterval]
) -> list[list[PhaseRow]]:
    """Return the phases in order, in groups whose time ranges overlap."""
    groups: list[list[PhaseRow]] = []
    reached = 0.0
    for row in rows:
        own = [time for time in times if time.phase == row.phase]
        start = min((time.start_s for time in own), default=reached)
        if groups and start < reached:
            groups[-1].append(row)
        else:
            groups.append([row])
        reached = max([reached, *(time.end_s for time in own)])
    return groups


def _phase_and_part_rows(
    group: Sequence[PhaseRow], times: Sequence[PhaseInterval]
) -> Iterator[PhaseRow]:
    """Yield the row of a phase, or of a group of phases followed by a row for each."""
    if len(group) == 1:
        yield group[0]
        return
    by_phase = {row.phase: row for row in group}
    ordered = sorted(
        (time for time in times if time.phase in by_phase),
        key=lambda time: (time.start_s, time.end_s),
    )
    start = by_phase[ordered[0].phase].start_bytes or 0
    end = by_phase[ordered[-1].phase].end_bytes or 0
    highest = max(group, key=lambda row: row.peak_bytes or 0)
    yield replace(
        group[0],
        duration_s=sum(row.duration_s for row in group),
        start_bytes=start,
        peak_bytes=highest.peak_bytes,
        peak_kind=highest.peak_kind,
        end_bytes=end,
        net_bytes=end - start,
        responsible="",
        estimated_bytes=max(
            (row.estimated_bytes for row in group if row.estimated_bytes is not None), default=None
        ),
    )
    whole = group[0].phase
    every = sorted(times, key=lambda time: (time.start_s, time.end_s))
    turns = Counter(phase for phase, _ in groupby(every, key=lambda time: time.phase))
    for row in (*group[1:], group[0]):
        part = replace(row, whole=whole)
        if row.phase == whole:
            part = replace(_other_steps_row(part, group[1:]), is_peak=False, ending="")
        is_whole = turns[row.phase] == 1
        yield part if is_whole else replace(part, start_bytes=None, end_bytes=None)


def _other_steps_row(row: PhaseRow, interrupting: Sequence[PhaseRow]) -> PhaseRow:
    """Return the part that remains of `row`.

    If an interrupting phase is only sampled, a high-water mark may be its own.
    """
    if all(each.peak_kind == "exact" for each in interrupting):
        return replace(row, label=OTHER_STEPS_LABEL)
    is_highest = (row.peak_bytes or 0) >= max(each.peak_bytes or 0 for each in interrupting)
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

    With `explains_samples` they say what a sampled peak is; the heading names it in any case.
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

    def size(size_bytes: int | None) -> str:
        return "" if size_bytes is None else mebibytes_text(size_bytes, decimals)

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
    """Return the memory that the phase adds, as the difference of its printed start and end."""
    if row.level == 0 and row.start_bytes is not None and row.end_bytes is not None:
        # The difference of the printed figures may differ from the rounded difference.
        printed = round(row.end_bytes / MIB, decimals) - round(row.start_bytes / MIB, decimals)
        return mebibytes_text(round(printed * MIB), decimals, signed=True)
    return mebibytes_text(row.net_bytes, decimals, signed=True)


def _phase_bar_cell(row: PhaseRow, scale_bytes: int) -> Cell:
    if row.level:
        return Cell()
    bar = (
        BarPart(css="top", percent=100 * (row.peak_bytes or 0) / (scale_bytes or 1)),
        BarPart(css="end", percent=100 * (row.end_bytes or 0) / (scale_bytes or 1)),
    )
    return Cell(bars=(bar,))
