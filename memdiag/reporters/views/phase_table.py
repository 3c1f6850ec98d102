"""The phases as a table: how long, from where, how high, to where, and what stayed."""

from dataclasses import dataclass

from memdiag.records.profile import PeakKind, Phase, PhaseName, Profile, Status
from memdiag.reporters.views import runs, span_table
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
    start_bytes: int
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
    rows = tuple(_row(profile, phase, decimals) for phase in profile.phases)
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


def _row(profile: Profile, phase: Phase, decimals: int) -> PhaseRow:
    run = runs.build(profile)
    is_steady = phase.name == "steady" and run.median_s is not None
    grown = span_table.responsible(profile, phase.name)
    mark = SAMPLED_MARK if phase.peak_kind == "sampled" else ""
    outcome = profile.outcome
    return PhaseRow(
        phase=phase.name,
        label=f"steady ×{run.count}" if is_steady else phase.name,
        time=format_duration(run.median_s if is_steady and run.median_s else phase.duration_s),
        start=mebibytes(phase.start.rss_bytes, decimals),
        peak=mark + mebibytes(phase.peak_rss_bytes, decimals),
        end=mebibytes(phase.end.rss_bytes, decimals),
        kept=mebibytes(phase.net_rss_bytes, decimals, signed=True),
        responsible=grown.name if grown else "",
        start_bytes=phase.start.rss_bytes,
        peak_bytes=phase.peak_rss_bytes,
        end_bytes=phase.end.rss_bytes,
        peak_kind=phase.peak_kind,
        is_peak=phase.name == profile.peak_phase,
        ended_here=_ENDED_HERE[outcome.status] if phase.name == outcome.phase else "",
    )
