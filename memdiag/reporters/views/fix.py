"""What a fix did, as text: the remedies, and the figures before and after."""

from dataclasses import dataclass
from math import isinf

from memdiag.records.fix import Figures, Fix, LatencyAt, RemedyStatus
from memdiag.reporters.views.text import plain
from memdiag.units import format_duration, format_size


@dataclass(frozen=True, kw_only=True)
class RemedyRow:
    """One remedy: what became of it, and why."""

    status: RemedyStatus
    name: str
    rule: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class FixView:
    """A fix in words; `rows` are label, before, after, and what is to be said of the two."""

    answer: str
    remedies: tuple[RemedyRow, ...]
    rows: tuple[tuple[str, str, str, str], ...]
    outputs: str
    notes: tuple[str, ...]


def build(fix: Fix) -> FixView:
    """Return `fix` in words."""
    rows = []
    if fix.before is not None and fix.after is not None:
        rows = [*_memory(fix.before, fix.after), *map(_latency, fix.latencies)]
    return FixView(
        answer=_answer(fix),
        remedies=tuple(
            RemedyRow(status=one.status, name=one.name, rule=one.rule, reason=plain(one.reason))
            for one in fix.remedies
        ),
        rows=tuple(rows),
        outputs=f"outputs: {_outputs(fix)}" if rows else "",
        notes=tuple(map(plain, fix.notes)),
    )


def _answer(fix: Fix) -> str:
    took = format_duration(fix.duration_s)
    if fix.output is not None:
        files = ", ".join(plain(path) for path in fix.output_files)
        verified = "" if fix.verified else ", unverified"
        return f"wrote {files} in {took}{verified}"
    if not fix.remedies:
        return f"{plain(fix.model)}: nothing to fix was found, in {took}"
    possible = [one.name for one in fix.remedies if one.status == "possible"]
    if possible:
        return f"{plain(fix.model)}: {len(possible)} remedies would be tried; nothing was written"
    return f"{plain(fix.model)}: nothing was worth changing, in {took}; nothing was written"


def _memory(before: Figures, after: Figures) -> list[tuple[str, str, str, str]]:
    return [
        _sizes("peak", before.peak_bytes, after.peak_bytes, after.peak_spread_bytes),
        _sizes("steady", before.steady_bytes, after.steady_bytes, after.steady_spread_bytes),
        _sizes("  anonymous", before.anonymous_bytes, after.anonymous_bytes),
        _sizes("  mapped files", before.file_bytes, after.file_bytes),
        ("load", format_duration(before.load_s), format_duration(after.load_s), ""),
        _sizes("on disk", before.disk_bytes, after.disk_bytes),
    ]


def _sizes(label: str, before: int, after: int, spread: int = 0) -> tuple[str, str, str, str]:
    ratio = f"{after / before:.2f} ×" if before > 0 and after >= 0 else ""
    aside = f" (± {format_size(spread // 2)})" if spread and ratio else ""
    return label, format_size(before), format_size(after), ratio + aside


def _latency(at: LatencyAt) -> tuple[str, str, str, str]:
    return (
        f"latency, {plain(at.inputs)}",
        format_duration(at.before_s),
        format_duration(at.after_s),
        f"{at.ratio:.2f} × ({at.low:.2f}–{at.high:.2f}, {at.pairs} pairs)",
    )


def _outputs(fix: Fix) -> str:
    largest = fix.largest_difference
    if largest is None:
        return "not compared"
    if not largest:
        return "equal, bit by bit"
    if isinf(largest) or fix.bound is None:
        return "differ"
    bound = f"bound {fix.bound:.1e}: {plain(fix.bound_reason)}" if fix.bound else "no bound"
    return f"largest difference {largest:.1e} of the largest value ({bound})"
