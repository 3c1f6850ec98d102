"""What a fix did, as text: the remedies, and the figures before and after."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isinf

from memdiag.records.fix import Fix, LatencyAt, Remedy, RemedyStatus
from memdiag.reports.views.text import plain, time_limit
from memdiag.units import format_duration, format_size, format_sizes

_MOST_WEIGHTS = 3
_ORDER: tuple[RemedyStatus, ...] = (
    *("applied", "unverified", "possible", "undecided", "rejected", "refused", "untried"),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure before and after.

    `times` is their ratio, empty where it says nothing; `note` the same and how sure it is; `exact`
    are both in bytes or seconds, as texts.
    """

    label: str
    before: str
    after: str
    times: str
    note: str
    exact: tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class RemedyRow:
    """One remedy: what became of it, why, and the weights concerned.

    `is_parted` says that the same remedy ended otherwise for other weights of the rule.
    """

    status: RemedyStatus
    name: str
    rule: str
    reason: str
    weights: str
    is_parted: bool

    @property
    def said(self) -> str:
        """The reason, after the weights where it is not the same for all."""
        return f"{self.weights}: {self.reason}" if self.is_parted and self.weights else self.reason


@dataclass(frozen=True, kw_only=True)
class FixView:
    """A fix in words: the remedies by what became of them, the figures before and after.

    `memory` and `latencies` (by inputs) are empty where before or after is not known.
    """

    answer: str
    remedies: tuple[RemedyRow, ...]
    memory: tuple[Row, ...]
    latencies: tuple[Row, ...]
    outputs: str
    runtimes: str
    notes: tuple[str, ...]


def build(fix: Fix) -> FixView:
    """Return `fix` in words."""
    is_known = fix.before is not None and fix.after is not None
    return FixView(
        answer=_answer(fix),
        remedies=tuple(
            _remedy(one, fix.remedies)
            for one in sorted(fix.remedies, key=lambda one: _ORDER.index(one.status))
        ),
        memory=memory(fix),
        latencies=tuple(map(_latency, fix.latencies)) if is_known else (),
        outputs=f"outputs: {outputs(fix)}" if is_known else "",
        runtimes=f"onnxruntime: {runtimes(fix)}" if fix.output is not None else "",
        notes=tuple(map(plain, fix.notes)),
    )


def _remedy(remedy: Remedy, among: Sequence[Remedy]) -> RemedyRow:
    shown = ", ".join(map(plain, remedy.weights[:_MOST_WEIGHTS]))
    more = len(remedy.weights) - _MOST_WEIGHTS
    key = (remedy.name, remedy.rule)
    return RemedyRow(
        status=remedy.status,
        name=plain(remedy.name),
        rule=plain(remedy.rule),
        reason=plain(remedy.reason),
        weights=f"{shown} and {more} more" if more > 0 else shown,
        is_parted=sum((one.name, one.rule) == key for one in among) > 1,
    )


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
    undecided = [one.name for one in fix.remedies if one.status == "undecided"]
    if undecided:
        names = ", ".join(map(plain, undecided))
        return f"{plain(fix.model)}: undecided about {names}, in {took}; nothing was written"
    if any(one.status == "untried" for one in fix.remedies):
        return (
            f"{plain(fix.model)}: {untried(fix)}; nothing was written; give it more with"
            " --time-limit"
        )
    return f"{plain(fix.model)}: nothing was worth changing, in {took}; nothing was written"


def untried(fix: Fix) -> str:
    """Return how far the search got, for a fix whose time limit left remedies untried."""
    count = sum(one.status == "untried" for one in fix.remedies)
    limit = time_limit(fix.command)
    if not any(one.status == "rejected" for one in fix.remedies):
        return f"no remedy was tried to the end in {limit}"
    were = "1 remedy was" if count == 1 else f"{count} remedies were"
    return f"nothing worth changing was found in {limit}; {were} not tried"


def _kept(fix: Fix) -> str:
    """Say what stays in the original's files, without which the output is worth nothing."""
    if not fix.kept_files:
        return ""
    files = ", ".join(plain(path) for path in fix.kept_files)
    together = "both files" if len(fix.output_files) == 2 else f"all {len(fix.output_files)} files"
    return f"; it keeps {format_size(fix.kept_bytes)} in {files}: keep {together} together"


def runtimes(fix: Fix) -> str:
    """Say which releases of onnxruntime the output was verified on, and which can load it."""
    if fix.output is None:
        return ""
    verified_on = ", ".join(map(plain, fix.verified_on))
    verified = f"verified on {verified_on}" if verified_on else "not verified"
    needed = "no release is known that can load it"
    if fix.oldest_onnxruntime is not None:
        oldest = plain(fix.oldest_onnxruntime)
        needed = f"by what it declares, {oldest} and newer can load it"
    why = f" ({plain(fix.oldest_reason)})" if fix.oldest_reason else ""
    return f"{verified}; {needed}{why}"


def memory(fix: Fix) -> tuple[Row, ...]:
    """Return the memory, the time of loading and the files before and after: peak and steady first.

    Empty where one of both is not known.
    """
    before, after = fix.before, fix.after
    if before is None or after is None:
        return ()
    return (
        _sizes(
            "peak",
            before.peak_bytes,
            after.peak_bytes,
            max(before.peak_spread_bytes, after.peak_spread_bytes),
        ),
        _sizes(
            "steady",
            before.steady_bytes,
            after.steady_bytes,
            max(before.steady_spread_bytes, after.steady_spread_bytes),
        ),
        _sizes("  anonymous", before.anonymous_bytes, after.anonymous_bytes),
        _sizes("  mapped files", before.file_bytes, after.file_bytes),
        _durations("load", before.load_s, after.load_s),
        _sizes("on disk", before.disk_bytes, after.disk_bytes),
    )


def ratio(at: LatencyAt) -> str:
    """Return the ratio of latencies with its interval: ``0.99 × (0.97–1.01)``."""
    return f"{at.ratio:.2f} × ({at.low:.2f}–{at.high:.2f})"


def outputs(fix: Fix) -> str:
    """Return how far the outputs differ from the original's."""
    largest = fix.largest_difference
    if largest is None:
        return "not compared"
    if not largest:
        return "equal, bit by bit"
    if isinf(largest) or fix.bound is None:
        return "differ"
    bound = f"bound {fix.bound:.1e}: {plain(fix.bound_reason)}" if fix.bound else "no bound"
    return f"largest difference {largest:.1e} of the largest value ({bound})"


def _sizes(label: str, before: int, after: int, spread: int = 0) -> Row:
    times = f"{after / before:.2f} ×" if before > 0 and after >= 0 else ""
    aside = f" (± {format_size(spread // 2)})" if spread and times else ""
    texts = format_sizes(before, after)
    return Row(
        label=label,
        before=texts[0],
        after=texts[1],
        times=times,
        note=times + aside,
        exact=(f"{before:,} bytes", f"{after:,} bytes"),
    )


def _latency(at: LatencyAt) -> Row:
    interval = f"{ratio(at).removesuffix(')')}, {at.pairs} pairs)"
    return _durations(plain(at.inputs), at.before_s, at.after_s, f"{at.ratio:.2f} ×", interval)


def _durations(label: str, before: float, after: float, times: str = "", note: str = "") -> Row:
    return Row(
        label=label,
        before=format_duration(before),
        after=format_duration(after),
        times=times,
        note=note,
        exact=(f"{before:.6g} s", f"{after:.6g} s"),
    )
