"""Table of the phases: duration, and memory at start, at the peak, at the end, and kept."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from memdiag.records.profile import PeakKind, Phase, PhaseName, Profile, Status
from memdiag.reports.views import runs, span_table, timeline
from memdiag.units import MIB, format_duration

SAMPLED_MARK = "~"
_FEW_MIB = 200  # below this a digit after the point still matters

_ENDED_HERE: dict[Status, str] = {
    "completed": "",
    "failed": "failed here",
    "killed": "killed here",
    "timeout": "timed out here",
    "limit": "limit passed here",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRow:
    """One phase in text, its figures in MiB, and in bytes for what is drawn.

    Rows of level 0 follow each other: each starts with the memory that the one before ends with,
    and keeps the difference of the two figures that it shows. Phases that take turns are one such
    row; its rows of level 1 are its parts, which have no start and end of their own unless they
    are a single stretch of time.

    The time of `steady` is that of one run, the median of all; `ended_here` says how it ended
    in this phase, where it did not complete.
    `peak` carries `SAMPLED_MARK` where it is the largest sample and not the kernel's own figure.
    """

    phase: PhaseName
    label: str
    time: str
    start: str
    peak: str
    end: str
    kept: str
    responsible: str
    level: int
    peak_bytes: int
    end_bytes: int
    peak_kind: PeakKind
    is_peak: bool
    ended_here: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTable:
    """The rows and what must be said about them: the peaks' heading and how to read the marks."""

    rows: tuple[PhaseRow, ...]
    peak_heading: str
    caption: str
    scale_bytes: int


def build(profile: Profile) -> PhaseTable:
    """Return the table of the phases that were reached."""
    kinds = {phase.peak_kind for phase in profile.phases}
    decimals = 1 if profile.peak_rss_bytes < _FEW_MIB * MIB else 0
    caption = "Resident set of the whole process in MiB, baseline included"
    if "sampled" in kinds:
        caption += f"; {SAMPLED_MARK} is the largest sample seen, the true peak may be higher"
    heading = f"peak ({kinds.pop()})" if len(kinds) == 1 else "peak"
    rows = tuple(row for group in _groups(profile) for row in _rows(profile, group, decimals))
    return PhaseTable(
        rows=rows,
        peak_heading=heading,
        caption=f"{caption}.",
        scale_bytes=max((row.peak_bytes for row in rows), default=0),
    )


def mebibytes(size: int, decimals: int, *, signed: bool = False) -> str:
    """Return `size` bytes in MiB without the unit; a signed zero is plain 0."""
    text = f"{size / MIB:{'+' if signed else ''},.{decimals}f}"
    return f"{0:.{decimals}f}" if float(text.replace(",", "")) == 0 else text


def _groups(profile: Profile) -> list[list[Phase]]:
    """Return the phases in order, those together that take turns: whose extents overlap."""
    groups: list[list[Phase]] = []
    reached = 0.0
    for phase in profile.phases:
        spans = [span for span in profile.spans if span.phase == phase.name]
        starts = min((span.start_s for span in spans), default=reached)
        if groups and starts < reached:
            groups[-1].append(phase)
        else:
            groups.append([phase])
        reached = max([reached, *(span.end_s for span in spans)])
    return groups


def _rows(profile: Profile, group: Sequence[Phase], decimals: int) -> Iterator[PhaseRow]:
    """Yield the row of the first phase of `group`, and its parts where there are others in it."""
    rows = [_row(profile, phase, decimals) for phase in group]
    if len(rows) == 1:
        yield rows[0]
        return
    names = {phase.name for phase in group}
    ordered = sorted(
        (span for span in profile.spans if span.phase in names), key=lambda span: span.start_s
    )
    ends = {phase.name: phase.end.rss_bytes for phase in group}
    starts = {phase.name: phase.start.rss_bytes for phase in group}
    first, last = starts[ordered[0].phase], ends[ordered[-1].phase]
    start, end = mebibytes(first, decimals), mebibytes(last, decimals)
    highest = max(rows, key=lambda row: row.peak_bytes)
    yield replace(
        rows[0],
        time=format_duration(sum(phase.duration_s for phase in group)),
        start=start,
        peak=highest.peak,
        end=end,
        kept=_kept(start, end, decimals),
        responsible="",
        peak_bytes=highest.peak_bytes,
        end_bytes=last,
        peak_kind=highest.peak_kind,
    )
    for row, phase in zip([*rows[1:], rows[0]], [*group[1:], group[0]], strict=True):
        bands = [band for band in timeline.bands(profile.spans) if band.phase == phase.name]
        part = replace(row, level=1, kept=mebibytes(phase.net_rss_bytes, decimals, signed=True))
        if phase is group[0]:
            part = replace(part, label="other steps", is_peak=False, ended_here="")
        yield part if len(bands) == 1 else replace(part, start="", end="")


def _kept(start: str, end: str, decimals: int) -> str:
    """Return the difference of two figures as they are shown."""
    difference = float(end.replace(",", "")) - float(start.replace(",", ""))
    return mebibytes(round(difference * MIB), decimals, signed=True)


def _row(profile: Profile, phase: Phase, decimals: int) -> PhaseRow:
    run = runs.build(profile)
    is_steady = phase.name == "steady" and run.median_s is not None
    grown = span_table.responsible(profile, phase.name)
    mark = SAMPLED_MARK if phase.peak_kind == "sampled" else ""
    outcome = profile.outcome
    start, end = (mebibytes(one.rss_bytes, decimals) for one in (phase.start, phase.end))
    return PhaseRow(
        phase=phase.name,
        label=f"steady ×{run.count}" if is_steady else phase.name,
        time=format_duration(run.median_s if is_steady and run.median_s else phase.duration_s),
        start=start,
        peak=mark + mebibytes(phase.peak_rss_bytes, decimals),
        end=end,
        kept=_kept(start, end, decimals),
        responsible=grown.name if grown else "",
        level=0,
        peak_bytes=phase.peak_rss_bytes,
        end_bytes=phase.end.rss_bytes,
        peak_kind=phase.peak_kind,
        is_peak=phase.name == profile.peak_phase,
        ended_here=_ENDED_HERE[outcome.status] if phase.name == outcome.phase else "",
    )
