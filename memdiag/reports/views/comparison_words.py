"""The sentences of a comparison: its answer, and what differs."""

from collections.abc import Sequence

from memdiag.comparison.copies import in_words
from memdiag.records.comparison import (
    Change,
    Column,
    ColumnStatus,
    Comparison,
    ComparisonKind,
    CopyChange,
    Latency,
    Metric,
)
from memdiag.reports.views.phase_table import mebibytes
from memdiag.reports.views.sizes import at_sizes
from memdiag.reports.views.text import model_file, plain, shortened
from memdiag.units import MIB, format_duration, format_size

_LONGEST = 320
_MAX_SIZES = 3
"""A title states the sizes of at most this many models that differ in them."""

_FEW_MIB = 200  # below this a digit after the point still matters

_KINDS: dict[ComparisonKind, str] = {
    "onnxruntime": "version{s} of onnxruntime",
    "optimizers": "optimizer{s}",
    "models": "model{s}",
    "profiles": "saved profile{s}",
}
_ENDED: dict[ColumnStatus, str] = {
    "completed": "",
    "failed": "failed",
    "killed": "was killed",
    "timeout": "did not end in time",
    "limit": "exceeded the memory limit",
    "unavailable": "is not available",
}
_METRICS: dict[Metric, str] = {
    "peak": "peak",
    "steady": "steady",
    "kept": "memory kept",
    "load": "load",
    "latency": "latency",
    "disk": "on disk",
    "outputs": "outputs",
}


def title(comparison: Comparison) -> str:
    """Return what is compared: ``model.onnx: 3 versions of onnxruntime``."""
    count = len(comparison.columns)
    if comparison.kind == "optimizers":
        count -= 1  # the original is none
    what = f"{count} {_KINDS[comparison.kind].format(s='' if count == 1 else 's')}"
    sizes = _sizes(comparison)
    what = f"{what}{sizes}"
    if comparison.kind in ("onnxruntime", "optimizers") and comparison.columns:
        return f"{model_file(comparison.columns[0].model)}: {what}"
    return what


def _sizes(comparison: Comparison) -> str:
    """Return the sizes of free dimensions: once, or of each model where the models differ."""
    by_sizes: dict[str, list[str]] = {}
    for column in comparison.columns if comparison.kind == "models" else ():
        if column.profile is not None:
            sizes = at_sizes(column.profile.dimensions) or "with fixed sizes"
            by_sizes.setdefault(sizes, []).append(plain(column.label))
    if len(by_sizes) > 1:
        each = [f"{', '.join(labels)} {sizes}" for sizes, labels in by_sizes.items()]
        if len(each) > _MAX_SIZES:
            each = [*each[: _MAX_SIZES - 1], "the others at other sizes"]
        return f", {', '.join(each)}"
    sizes = at_sizes(comparison.dimensions)
    return f" {sizes}" if sizes else ""


def answer(comparison: Comparison) -> str:
    """Return peak and steady memory where they differ, or that nothing differs.

    Of two columns they are those of the first, then of the second; of more, the smallest and the
    largest.
    """
    usable = [one for one in comparison.columns if one.measured is not None]
    if not usable:
        return "nothing could be measured"
    if len(usable) == 1:
        return f"only {plain(usable[0].label)} was measured"
    if not comparison.changes:
        where = " in what can be compared" if comparison.kind == "profiles" else ""
        return f"no difference beyond the variation between runs{where}"
    parts = [
        part
        for part in (_range("peak", comparison, usable), _range("steady", comparison, usable))
        if part
    ]
    others = dict.fromkeys(
        f"memory kept in {one.phase}" if one.metric == "kept" else _METRICS[one.metric]
        for one in comparison.changes
    )
    return "; ".join(parts) or f"differences in {', '.join(others)}"


def found(comparison: Comparison) -> str:
    """Return what a bisection found; empty where there was none."""
    search = comparison.bisection
    if search is None:
        return ""
    of = f"{len(comparison.columns)} of {search.candidates} versions were tried"
    if search.before is None or search.after is None:
        return f"{search.metric} does not differ between the ends of the range ({of})"
    return f"{search.metric} jumps from {search.before} to {search.after} ({of})"


def problems(comparison: Comparison) -> tuple[str, ...]:
    """Return a sentence for each column that was not measured, and what is to know of others."""
    return tuple(
        ": ".join(part for part in (_ending(column), _cut(column.message)) if part)
        for column in comparison.columns
        if column.message or column.status != "completed"
    )


def change(comparison: Comparison, one: Change) -> str:
    """Return one change: ``steady from 5 MiB to 9 MiB since 1.31.1: +4 MiB, m now packs W``.

    Its figures are written as in the tables.
    """
    what = _what(comparison, one)
    if comparison.kind == "onnxruntime":
        said = f"{what} since {plain(one.to)}"
    else:
        said = f"{plain(one.to)}: {what}"
    return f"{said}: {_cut(one.why)}" if one.why else said


def copies(one: CopyChange) -> str:
    """Return which copies differ: ``a → b: +61 MiB, w now has a transposed copy``."""
    size = format_size(one.bytes, signed=True)
    return f"{plain(one.from_)} → {plain(one.to)}: {size}, {_cut(in_words(one))}"


def decimals(columns: Sequence[Column]) -> int:
    """Return the decimals of sizes in MiB, the same in all tables and sentences of `columns`."""
    largest = max((one.measured.peak.median for one in columns if one.measured), default=0)
    return 1 if largest < _FEW_MIB * MIB else 0


def latency_ratio(latency: Latency) -> str:
    """Return the ratio of a latency to the first column's, which it has."""
    return f"{latency.ratio:.2f} ×"


def _what(comparison: Comparison, one: Change) -> str:
    name = _METRICS[one.metric]
    if one.metric == "outputs":
        return f"{name} differ"
    columns = {each.label: each for each in comparison.columns}
    before, after = columns[one.from_], columns[one.to]
    if one.metric == "latency" and after.latency is not None and after.latency.ratio is not None:
        first = next(each.label for each in comparison.columns if each.measured is not None)
        now = f"{latency_ratio(after.latency)} that of {plain(first)}"
        if before.latency is None or before.latency.ratio is None:
            return f"{name} {now}"
        return f"{name} from {latency_ratio(before.latency)} to {now}"
    if one.metric == "kept":
        name = f"memory kept in {one.phase}"
    then, now = (_figure(comparison, column, one) for column in (before, after))
    return f"{name} from {then} to {now}"


def _figure(comparison: Comparison, column: Column, one: Change) -> str:
    """Return the figure of `column` that `one` is about: a median, but for sizes on disk."""
    if one.metric == "disk":
        return format_size(column.graph.saved_bytes) if column.graph else "?"
    if one.metric == "latency":
        return format_duration(column.latency.median_s) if column.latency else "?"
    measured = column.measured
    if measured is None:
        return "?"
    if one.metric == "load":
        return format_duration(measured.load.median)
    if one.metric == "kept":
        (kept,) = (each.kept.median for each in measured.phases if each.phase == one.phase)
        return f"{mebibytes(kept, decimals(comparison.columns))} MiB"
    return format_size((measured.peak if one.metric == "peak" else measured.steady).median)


def _range(metric: Metric, comparison: Comparison, columns: list[Column]) -> str:
    if not any(one.metric == metric for one in comparison.changes):
        return ""
    sizes = {
        one.label: (one.measured.peak if metric == "peak" else one.measured.steady).median
        for one in columns
        if one.measured is not None
    }
    if len(sizes) == 2:
        ends, words = [*sizes], ("from", "to")
    else:
        ends, words = (
            [min(sizes, key=lambda at: sizes[at]), max(sizes, key=lambda at: sizes[at])],
            (
                "between",
                "and",
            ),
        )
    said = (
        f"{word} {format_size(sizes[end])} in {plain(end)}"
        for word, end in zip(words, ends, strict=True)
    )
    return f"{metric} {' '.join(said)}"


def _ending(column: Column) -> str:
    ended = _ENDED[column.status]
    return f"{plain(column.label)} {ended}" if ended else plain(column.label)


def _cut(text: str) -> str:
    return shortened(plain(text), _LONGEST)
