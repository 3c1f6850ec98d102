"""The sentences of a comparison: its answer, and what differs."""

from memdiag.comparison.copies import in_words
from memdiag.records.comparison import (
    Change,
    Column,
    ColumnStatus,
    Comparison,
    ComparisonKind,
    CopyChange,
    Metric,
)
from memdiag.reporters.views.sizes import at_sizes
from memdiag.reporters.views.text import model_file, plain, shortened
from memdiag.units import format_size

_LONGEST = 200

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
    "limit": "passed the memory limit",
    "unavailable": "is not to be had here",
}
_METRICS: dict[Metric, str] = {
    "peak": "peak",
    "steady": "steady",
    "kept": "",
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
    sizes = at_sizes(comparison.dimensions)
    what = f"{what} {sizes}" if sizes else what
    if comparison.kind in ("onnxruntime", "optimizers") and comparison.columns:
        return f"{model_file(comparison.columns[0].model)}: {what}"
    return what


def answer(comparison: Comparison) -> str:
    """Return the smallest and the largest peak and steady memory, or that nothing differs."""
    usable = [one for one in comparison.columns if one.measured is not None]
    if not usable:
        return "nothing could be measured"
    if len(usable) == 1:
        return f"only {plain(usable[0].label)} was measured"
    if not comparison.changes:
        where = ", in what can be compared" if comparison.kind == "profiles" else ""
        return f"no difference beyond what scatters from run to run{where}"
    parts = [
        part
        for part in (_range("peak", comparison, usable), _range("steady", comparison, usable))
        if part
    ]
    others = dict.fromkeys(_METRICS[one.metric] or one.phase or "" for one in comparison.changes)
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
    """Return one change: ``prepack +500 MiB since 1.31.1: lm_head/MatMul now packs W``."""
    what = _what(one)
    if comparison.kind == "onnxruntime":
        said = f"{what} since {plain(one.to)}"
    else:
        said = f"{plain(one.to)}: {what}"
    return f"{said}: {_cut(one.why)}" if one.why else said


def copies(one: CopyChange) -> str:
    """Return which copies came or went: ``a → b: +61 MiB: w now has a transposed copy``."""
    size = format_size(one.bytes, signed=True)
    return f"{plain(one.from_)} → {plain(one.to)}: {size}: {_cut(in_words(one))}"


def _what(one: Change) -> str:
    name = one.phase if one.metric == "kept" and one.phase else _METRICS[one.metric]
    if one.metric in ("load", "latency"):
        return f"{name} {one.ratio:.2f} ×"
    if one.metric == "outputs":
        return f"{name} differ"
    text = f"{name} {format_size(one.bytes, signed=True)}"
    if one.metric != "kept" and one.ratio is not None:
        text += f" ({one.ratio:.2f} ×)"
    return text


def _range(metric: Metric, comparison: Comparison, columns: list[Column]) -> str:
    if not any(one.metric == metric for one in comparison.changes):
        return ""
    sizes = {
        one.label: (one.measured.peak if metric == "peak" else one.measured.steady).median
        for one in columns
        if one.measured is not None
    }
    least, most = min(sizes, key=lambda label: sizes[label]), max(sizes, key=lambda at: sizes[at])
    return (
        f"{metric} from {format_size(sizes[least])} ({plain(least)})"
        f" to {format_size(sizes[most])} ({plain(most)})"
    )


def _ending(column: Column) -> str:
    ended = _ENDED[column.status]
    return f"{plain(column.label)} {ended}" if ended else plain(column.label)


def _cut(text: str) -> str:
    return shortened(plain(text), _LONGEST)
