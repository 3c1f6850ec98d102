"""What a fix did, as text: the remedies, and the figures before and after."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isinf

from memdiag.records.fix import Figures, Fix, LatencyAt, Remedy, RemedyStatus
from memdiag.reporters.views.text import plain
from memdiag.units import format_duration, format_size

_MOST_WEIGHTS = 3


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
    runtimes: str
    notes: tuple[str, ...]


def build(fix: Fix) -> FixView:
    """Return `fix` in words."""
    rows = []
    if fix.before is not None and fix.after is not None:
        rows = [*_memory(fix.before, fix.after), *map(_latency, fix.latencies)]
    return FixView(
        answer=_answer(fix),
        remedies=tuple(
            RemedyRow(
                status=one.status,
                name=one.name,
                rule=one.rule,
                reason=f"{_where(one, fix.remedies)}{plain(one.reason)}",
            )
            for one in fix.remedies
        ),
        rows=tuple(rows),
        outputs=f"outputs: {_outputs(fix)}" if rows else "",
        runtimes=_runtimes(fix),
        notes=tuple(map(plain, fix.notes)),
    )


def _where(remedy: Remedy, among: Sequence[Remedy]) -> str:
    """Return the weights concerned where a remedy is done for some of a rule's, not for others."""
    key = (remedy.name, remedy.rule)
    if sum((one.name, one.rule) == key for one in among) == 1:
        return ""
    shown = ", ".join(map(plain, remedy.weights[:_MOST_WEIGHTS]))
    more = len(remedy.weights) - _MOST_WEIGHTS
    return f"{shown}{f' and {more} more' if more > 0 else ''}: " if shown else ""


def _answer(fix: Fix) -> str:
    took = format_duration(fix.duration_s)
    if fix.output is not None:
        written = (path for path in fix.output_files if path not in fix.kept_files)
        verified = "" if fix.verified else ", unverified"
        return f"wrote {', '.join(map(plain, written))} in {took}{verified}{_kept(fix)}"
    if not fix.remedies:
        return f"{plain(fix.model)}: nothing to fix was found, in {took}"
    possible = [one.name for one in fix.remedies if one.status == "possible"]
    if possible:
        remedies = "1 remedy" if len(possible) == 1 else f"{len(possible)} remedies"
        return f"{plain(fix.model)}: {remedies} would be tried; nothing was written"
    return f"{plain(fix.model)}: nothing was worth changing, in {took}; nothing was written"


def _kept(fix: Fix) -> str:
    """Say what stays in the original's files, without which the output is worth nothing."""
    if not fix.kept_files:
        return ""
    files = ", ".join(plain(path) for path in fix.kept_files)
    together = "both files" if len(fix.output_files) == 2 else f"all {len(fix.output_files)} files"
    return f"; it keeps {format_size(fix.kept_bytes)} in {files}: keep {together} together"


def _runtimes(fix: Fix) -> str:
    """Say which releases of onnxruntime the output was verified on, and which can load it."""
    if fix.output is None:
        return ""
    verified = f"verified on {', '.join(fix.verified_on)}" if fix.verified_on else "not verified"
    needed = "no release is known that can load it"
    if fix.oldest_onnxruntime is not None:
        needed = f"by what it declares, {fix.oldest_onnxruntime} and newer can load it"
    why = f" ({plain(fix.oldest_reason)})" if fix.oldest_reason else ""
    return f"onnxruntime: {verified}; {needed}{why}"


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
