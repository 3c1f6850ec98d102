"""The sentences of a comparison: its answer, and what differs between the columns."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from memdiag.comparison.changes import is_mostly_retained, undecided_changes
from memdiag.comparison.comparable import ComparableFigures, comparability_of
from memdiag.comparison.copies import copy_change_text
from memdiag.defaults import PINNED_TEXT
from memdiag.errors import MAX_REASON_LENGTH
from memdiag.growth.growth_sentences import OWNER_LABELS
from memdiag.records.comparison import (
    Bisection,
    ColumnFigures,
    ColumnGrowth,
    ColumnStatus,
    Comparison,
    ComparisonColumn,
    ComparisonKind,
    CopyChange,
    FigureChange,
    Latency,
    MeasuredBytes,
    Metric,
)
from memdiag.records.finding import Finding
from memdiag.reports.text import (
    dim_option,
    listed_names,
    mebibyte_decimals,
    mebibytes_text,
    model_file_name,
    plain,
    shortened,
    sizes_clause,
)
from memdiag.units import MIB, counted, format_duration, format_size, parse_size

MAX_TITLE_SIZES = 3
"""A title states the sizes of at most this many models that differ in them."""

MAX_COMPLETE_COLUMNS = 3
"""A short list has every figure that differs of at most this many columns, and one of each of more
columns."""

_MAX_CAUSES_BY_COLUMNS = {2: 3, 3: 2, 4: 3}
_MAX_CAUSE_LETTERS = 240
_CAUSE_SIZE_PATTERN = re.compile(r"([+-])([\d,.]+ (?:[KMG]i)?B)\b")
_COMPARED_KIND_NOUNS: Mapping[ComparisonKind, str] = {
    "onnxruntime": "version{s} of onnxruntime",
    "optimizers": "optimizer{s}",
    "models": "model{s}",
    "profiles": "saved profile{s}",
}
_COLUMN_STATUS_VERBS: Mapping[ColumnStatus, str] = {
    "completed": "",
    "failed": "failed",
    "killed": "was killed",
    "timeout": "did not end in time",
    "limit": "exceeded the memory limit",
    "unavailable": "is not available",
}
_DEVICE_METRICS: Sequence[Metric] = ("device_peak", "device_steady")
"""Figures that only columns have that ran on a GPU."""

_MEMORY_METRICS: Sequence[Metric] = (*_DEVICE_METRICS, "peak", "steady")
_SHORT_TABLE_METRICS: Sequence[Metric] = (*_MEMORY_METRICS, "mapped")
"""Memory that is in the table which is always printed."""

_UNLISTED_METRICS: Sequence[Metric] = ("kept", "disk")
_SPEED_METRICS: Sequence[Metric] = ("load", "latency")
_STEADY_METRICS: Mapping[Metric, Metric] = {"peak": "steady", "device_peak": "device_steady"}
"""The steady memory of each peak, which may have the same causes."""

_METRIC_WORDS: Mapping[Metric, str] = {
    "peak": "peak",
    "steady": "steady",
    "mapped": "mapped",
    "device_peak": "GPU peak",
    "device_steady": "GPU steady",
    "kept": "memory kept",
    "growth": "growth",
    "load": "load",
    "latency": "latency",
    "disk": "on disk",
    "outputs": "outputs",
}


def comparison_title(comparison: Comparison) -> str:
    """Return the subject of the comparison with the sizes of free dimensions."""
    return comparison_subject(comparison) + comparison_sizes(comparison)


def comparison_subject(comparison: Comparison) -> str:
    """Return the subject of the comparison: ``model.onnx: 3 versions of onnxruntime``."""
    count = len(comparison.columns)
    if comparison.kind == "optimizers":
        count -= 1  # without the original
    kind = _COMPARED_KIND_NOUNS[comparison.kind].format(s="" if count == 1 else "s")
    text = f"{count} {kind}"
    if comparison.kind in ("onnxruntime", "optimizers") and comparison.columns:
        return f"{model_file_name(comparison.columns[0].model)}: {text}"
    return text


def comparison_sizes(comparison: Comparison) -> str:
    """Return the sizes of free dimensions, to follow a subject: once, or of each model if the
    models differ."""
    labels_by_sizes: dict[str, list[str]] = {}
    for column in comparison.columns if comparison.kind == "models" else ():
        if column.profile is not None:
            at = sizes_clause(column.profile.dimensions) or "with fixed sizes"
            labels_by_sizes.setdefault(at, []).append(plain(column.label))
    if len(labels_by_sizes) > 1:
        parts = [f"{', '.join(labels)} {at}" for at, labels in labels_by_sizes.items()]
        if len(parts) > MAX_TITLE_SIZES:
            parts = [*parts[: MAX_TITLE_SIZES - 1], "the others at other sizes"]
        return f", {', '.join(parts)}"
    at = sizes_clause(comparison.dimensions)
    return f" {at}" if at else ""


def comparison_answer(comparison: Comparison) -> str:
    """Return the answer of a comparison: peak and steady memory, or that neither differs.

    The figures are of both columns, or the smallest and the largest of more columns. Other figures
    that differ are named behind it, unless memory differs.
    """
    measured = [column for column in comparison.columns if column.measured is not None]
    if not measured:
        return "nothing could be measured"
    if len(measured) == 1:
        return f"only {plain(measured[0].label)} was measured"
    barred = _no_memory_reasons(comparison, measured)
    compared = [column for column in measured if column.label not in barred]
    if not barred:
        answer = _memory_answer(comparison, compared)
        created = "the model does not run with these inputs: the sessions were only created"
        return f"{created}; {answer}" if _is_never_run(comparison, measured) else answer
    reasons = listed_names([*barred.values()], limit=1, separator="; ")
    if len(compared) == 1:
        return f"{_metric_range_text('steady', measured)}; no causes are named, as {reasons}"
    steady = _steady_range_text([column for column in measured if column.label in barred])
    return (
        f"{_memory_answer(comparison, compared)}; memory of"
        f" {listed_names([*barred], limit=3)}"
        f" ({steady}) is not compared: {reasons}"
    )


def _is_never_run(comparison: Comparison, columns: Sequence[ComparisonColumn]) -> bool:
    """Return whether models were to be run, and no column's model was."""
    sessions = [each.profile.session for each in columns if each.profile is not None]
    return comparison.kind != "profiles" and all(each.runs is None for each in sessions)


def _memory_answer(comparison: Comparison, measured: Sequence[ComparisonColumn]) -> str:
    """Return the answer, after the memory on a GPU if that is in no difference."""
    answer = _compared_memory_answer(comparison, measured)
    if any(change.metric in _DEVICE_METRICS for change in comparison.changes):
        return answer
    return "; ".join(filter(None, (_one_sided_device_text(measured), answer)))


def _joined_device_ranges(texts: list[str]) -> list[str]:
    """Return `texts` with one for the peak and the steady memory on a GPU if they are equal."""
    peak, steady = (_METRIC_WORDS[name] for name in _DEVICE_METRICS)
    figures = [text.removeprefix(peak).removeprefix(steady) for text in texts[:2]]
    if len(figures) == 2 and texts[0].startswith(peak) and figures[0] == figures[1]:
        return [f"{peak} and steady{figures[0]}", *texts[2:]]
    return texts


def _one_sided_device_text(columns: Sequence[ComparisonColumn]) -> str:
    """Return the memory on a GPU of some columns, if the others ran without one."""
    sizes = [
        f"{format_size(column.measured.device_steady.median)} in {plain(column.label)}"
        for column in columns
        if column.measured is not None and column.measured.device_steady is not None
    ]
    without = [column for column in columns if column.profile and column.profile.device is None]
    return f"on the GPU {', '.join(sizes)}" if sizes and without else ""


def _compared_memory_answer(comparison: Comparison, measured: Sequence[ComparisonColumn]) -> str:
    changed = {change.metric for change in comparison.changes}
    doubted = {
        name for each in measured[1:] for name in _doubtful_metrics(comparison, measured[0], each)
    }
    doubted -= changed
    ranges = [
        f"{_metric_range_text(name, measured)}{', which may be chance' if name in doubted else ''}"
        for name in _MEMORY_METRICS
        if name in changed | doubted
    ]
    ranges = _joined_device_ranges(ranges)
    first, *others = measured
    if ranges:
        return f"{'; '.join(ranges)}{_retained_change_clause(comparison, first, others)}"
    is_known = all(_column_comparability(comparison, first, each).allows("peak") for each in others)
    what = " in peak and steady memory" if is_known else " in steady memory"
    if not changed and comparison.kind != "profiles":  # of which more was compared
        what = ""
    same = f"no difference{what} beyond the variation between runs ({_steady_range_text(measured)})"
    if "mapped" in changed:
        return f"{same}; {_metric_range_text('mapped', measured)}"
    names = dict.fromkeys(
        f"memory kept in {change.phase}"
        if change.metric == "kept"
        else _METRIC_WORDS[change.metric]
        for change in comparison.changes
    )
    return f"{same}; differences in {', '.join(names)}" if names else same


def _retained_change_clause(
    comparison: Comparison, first: ComparisonColumn, others: Sequence[ComparisonColumn]
) -> str:
    """Return the clause on a change that is mostly what malloc retains; empty for any other."""
    steady = [change.bytes for change in comparison.changes if change.metric == "steady"]
    if len(others) != 1 or len(steady) != 1:
        return ""
    if not is_mostly_retained(first, others[0], steady[0]):
        return ""
    return (
        ", mostly freed memory that malloc keeps: it varies with the order of allocations, and"
        f" {PINNED_TEXT} in the environment leaves it out"
    )


def _no_memory_reasons(
    comparison: Comparison, columns: Sequence[ComparisonColumn]
) -> dict[str, str]:
    """Return why saved profiles are not compared with the first one in memory, by their labels."""
    first, *others = columns
    reasons = {
        each.label: _column_comparability(comparison, first, each).no_memory for each in others
    }
    return {label: reason for label, reason in reasons.items() if reason}


def _doubtful_metrics(
    comparison: Comparison, before: ComparisonColumn, after: ComparisonColumn
) -> Iterator[Metric]:
    """Yield what differs in two columns and may be chance."""
    yield from filter(
        _column_comparability(comparison, before, after).allows, undecided_changes(before, after)
    )


def _column_comparability(
    comparison: Comparison, before: ComparisonColumn, after: ComparisonColumn
) -> ComparableFigures:
    if comparison.kind != "profiles" or before.profile is None or after.profile is None:
        return ComparableFigures()
    return comparability_of(before.profile, after.profile)


def bisection_result(comparison: Comparison) -> str:
    """Return the result of a bisection; empty if there was none."""
    bisection = comparison.bisection
    if bisection is None:
        return ""
    tried = f"{len(comparison.columns)} of {bisection.candidates} versions were tried"
    if bisection.metric == "growth":
        return f"{_growth_result(comparison, bisection)} ({tried})"
    if bisection.before is None or bisection.after is None:
        return f"{bisection.metric} does not differ between the ends of the range ({tried})"
    return f"{bisection.metric} jumps from {bisection.before} to {bisection.after} ({tried})"


def _growth_result(comparison: Comparison, bisection: Bisection) -> str:
    """Return whether growth begins, ends or changes in a version, with the rates."""
    known = {
        column.label: growth_rate(column.growth)
        for column in comparison.columns
        if column.growth is not None and column.growth.is_decided
    }
    before, after = bisection.before, bisection.after
    if before is not None and after is not None:
        old, new = known.get(before, ""), known.get(after, "")
        if old and new:
            return f"growth changes in {after}: {new}, {old} in {before}"
        if new:
            return f"growth begins in {after}: {new}, none in {before}"
        return f"growth ends in {after}: none, {old} in {before}"
    if len(known) < 2:
        return "growth is known of fewer than two versions"
    first, *_, last = known
    if known[first] and known[last]:
        rates = f"{known[first]} in {first}, {known[last]} in {last}"
        return f"growth does not differ between the ends of the range: {rates}"
    return f"memory grows neither in {first} nor in {last}"


def growth_rate(growth: ColumnGrowth) -> str:
    """Return a growth in words: ``11 KiB a run (Python objects)``; empty if there is none."""
    if growth.slope is None or growth.owner is None:
        return ""
    size = format_size(round(growth.slope.bytes_per_unit))
    return f"{size} a run ({OWNER_LABELS[growth.owner]})"


def column_problems(comparison: Comparison) -> tuple[str, ...]:
    """Return a sentence for each column that was not measured or has a message."""
    return tuple(
        ": ".join(
            part for part in (_column_ending(column), _short_column_message(column.message)) if part
        )
        for column in comparison.columns
        if column.message or column.status != "completed"
    )


def short_change_sentences(comparison: Comparison) -> list[str]:
    """Return the changes in few lines: those of figures in the first tables, with first causes.

    Every column that differs has a sentence: of its memory, if that differs.
    """
    columns = len([column for column in comparison.columns if column.measured is not None])
    pairs: dict[tuple[str, str], list[FigureChange]] = {}
    for change in comparison.changes:
        pairs.setdefault((change.from_, change.to), []).append(change)
    kept: list[FigureChange] = []
    for changes in pairs.values():
        has_memory = any(change.metric in _SHORT_TABLE_METRICS for change in changes)
        left_out = (
            _UNLISTED_METRICS
            if columns < MAX_COMPLETE_COLUMNS
            else (*_UNLISTED_METRICS, *_SPEED_METRICS)
        )
        is_short = [each for each in changes if each.metric not in left_out]
        shown = is_short if has_memory else is_short or changes
        kept += shown if columns <= MAX_COMPLETE_COLUMNS else shown[:1]
    return [
        change_sentence(comparison, change, max_causes=_MAX_CAUSES_BY_COLUMNS.get(columns, 1))
        for change in kept
    ]


def change_sentence(
    comparison: Comparison, change: FigureChange, *, max_causes: int | None = None
) -> str:
    """Return a change as a sentence, with at most `max_causes` causes, or one more.

    For example ``steady from 5 MiB to 9 MiB since 1.31.1: +4 MiB, m now packs W``. Its figures are
    in the tables as well.
    """
    difference = _figure_difference_text(comparison, change)
    if comparison.kind == "onnxruntime":
        text = f"{difference} since {plain(change.to)}"
    else:
        text = f"{plain(change.to)}: {difference}"
    why = _first_causes_text(change.why, max_causes)
    if why and _has_causes_of_steady(comparison, change):
        why = f"the causes of {_METRIC_WORDS[_STEADY_METRICS[change.metric]]}"
    return f"{text}: {why}" if why else text


def _has_causes_of_steady(comparison: Comparison, peak: FigureChange) -> bool:
    """Return whether a peak has the same causes as the steady memory of the same columns."""
    return any(
        change.metric == _STEADY_METRICS.get(peak.metric)
        and (change.from_, change.to, change.why) == (peak.from_, peak.to, peak.why)
        for change in comparison.changes
    )


def finding_sentences(comparison: Comparison) -> list[str]:
    """Return the findings about memory that only some columns have, or at twice the cost of others.

    Each has a command. Empty for different releases, of which not all rules know as much. Only
    models of the user get the command of their remedies: the files that optimizers write are
    temporary.
    """
    columns = [c for c in comparison.columns if c.measured is not None and c.profile is not None]
    if len({column.onnxruntime for column in columns}) > 1:
        return []
    costly = {column.label: _costly_findings(column) for column in columns}
    labels: dict[str, list[str]] = {}
    commands: dict[str, str] = {}
    for column in columns:
        for rule, finding in costly[column.label].items():
            costs = [
                _finding_cost_bytes(findings[rule])
                for findings in costly.values()
                if rule in findings
            ]
            if len(costs) == len(costly) and 2 * min(costs) > max(costs):
                continue
            text = f"{_finding_cost_text(finding)}. memdiag explain {rule} says why"
            labels.setdefault(text, []).append(plain(column.label))
            if finding.rewrites and column.optimizer is None:
                commands.setdefault(text, f"; {_fix_command(column)} --only {rule} tries remedies")
    return [f"{', '.join(labels[text])}: {text}{commands.get(text, '')}" for text in labels]


def _finding_cost_text(finding: Finding) -> str:
    size, when = finding.bytes, "of private memory" if finding.is_private else "at steady state"
    if not size:
        size, when = finding.peak_bytes, "at the peak"
    evidence = plain(finding.evidence)
    if finding.run_bytes and finding.evidence == "measured":
        evidence = "confirmed by the first run"
    return f"{plain(finding.name)} costs {format_size(size)} {when} ({evidence})"


def _finding_cost_bytes(finding: Finding) -> int:
    return max(finding.bytes, finding.peak_bytes)


def _fix_command(column: ComparisonColumn) -> str:
    assert column.profile is not None
    model = shlex.quote(plain(column.model)) + dim_option(column.profile.dimensions)
    return f"memdiag fix {model}"


def _costly_findings(column: ComparisonColumn) -> dict[str, Finding]:
    """Return the costliest finding of each rule that costs memory and was not refuted."""
    found: dict[str, Finding] = {}
    for finding in column.profile.findings if column.profile else ():
        if finding.evidence != "refuted" and _finding_cost_bytes(finding) >= MIB:
            found.setdefault(plain(finding.name), finding)
    return found


def copies_sentence(change: CopyChange) -> str:
    """Return a difference in copies: ``a → b: +61 MiB, b has a transposed copy of w``."""
    size = format_size(change.bytes, signed=True)
    causes = _first_causes_text(copy_change_text(change))
    return f"{plain(change.from_)} → {plain(change.to)}: {size}, {causes}"


def column_decimals(columns: Sequence[ComparisonColumn]) -> int:
    """Return the decimals of sizes in MiB, the same in all tables and sentences of `columns`."""
    peaks = (column.measured.peak.median for column in columns if column.measured)
    return mebibyte_decimals(max(peaks, default=0))


def latency_ratio_text(latency: Latency) -> str:
    """Return the ratio of a latency to the latency of the first column."""
    return f"{latency.ratio:.2f} ×"


def _figure_difference_text(comparison: Comparison, change: FigureChange) -> str:
    name = _METRIC_WORDS[change.metric]
    if change.metric == "outputs":
        return f"{name} differ"
    columns = {column.label: column for column in comparison.columns}
    before, after = columns[change.from_], columns[change.to]
    if change.metric == "latency" and after.latency and after.latency.ratio is not None:
        first = next(c.label for c in comparison.columns if c.measured is not None)
        now = f"{latency_ratio_text(after.latency)} that of {plain(first)}"
        if before.latency is None or before.latency.ratio is None:
            return f"{name} {now}"
        return f"{name} from {latency_ratio_text(before.latency)} to {now}"
    if change.metric == "kept":
        name = f"memory kept in {change.phase}"
    figures = (_changed_figure_text(comparison, column, change) for column in (before, after))
    text = f"{name} from {' to '.join(figures)}"
    anonymous = [c.measured.anonymous for c in (before, after) if c.measured]
    sizes = [format_size(each.median) for each in anonymous if each is not None]
    if change.metric == "mapped" and len({*sizes}) > 1:
        return f"{text}, anonymous from {' to '.join(sizes)}"
    return text


def _changed_figure_text(
    comparison: Comparison, column: ComparisonColumn, change: FigureChange
) -> str:
    if change.metric == "disk":
        return format_size(column.graph.saved_bytes) if column.graph else "?"
    if change.metric == "latency":
        return format_duration(column.latency.median_s) if column.latency else "?"
    if change.metric == "growth":
        return (growth_rate(column.growth) or "none") if column.growth else "?"
    measured = column.measured
    if measured is None:
        return "?"
    if change.metric == "load":
        return format_duration(measured.load.median)
    if change.metric == "kept":
        (kept,) = (p.kept.median for p in measured.phases if p.phase == change.phase)
        return f"{mebibytes_text(kept, column_decimals(comparison.columns))} MiB"
    return _metric_size_text(change.metric, measured)


def _metric_median_bytes(metric: Metric, measured: ColumnFigures) -> int:
    """Return the median of a part of memory; 0 for one that was not measured."""
    figures: dict[Metric, MeasuredBytes | None] = {
        "peak": measured.peak,
        "steady": measured.steady,
        "mapped": measured.file,
        "device_peak": measured.device_peak,
        "device_steady": measured.device_steady,
    }
    figure = figures[metric]
    return 0 if figure is None else figure.median


def _metric_size_text(metric: Metric, measured: ColumnFigures) -> str:
    least = "at least " if metric == "peak" and measured.peak_kind == "sampled" else ""
    return f"{least}{format_size(_metric_median_bytes(metric, measured))}"


def _metric_range_text(metric: Metric, columns: Sequence[ComparisonColumn]) -> str:
    figures = {
        column.label: column.measured
        for column in columns
        if column.measured is not None
        if metric not in _DEVICE_METRICS or _metric_median_bytes(metric, column.measured)
    }
    ends, words = [*figures], ("from", "to")
    if len(figures) != 2:
        by_size = sorted(figures, key=lambda label: _metric_median_bytes(metric, figures[label]))
        ends, words = [by_size[0], by_size[-1]], ("between", "and")
    parts = (
        f"{word} {_metric_size_text(metric, figures[end])} in {plain(end)}"
        for word, end in zip(words, ends, strict=True)
    )
    return f"{_METRIC_WORDS[metric]} {' '.join(parts)}"


def _steady_range_text(columns: Sequence[ComparisonColumn]) -> str:
    sizes = sorted(each.measured.steady.median for each in columns if each.measured)
    ends = dict.fromkeys(format_size(size) for size in (sizes[0], sizes[-1]))
    return f"steady {' to '.join(ends)}"


def _column_ending(column: ComparisonColumn) -> str:
    return f"{plain(column.label)} {_COLUMN_STATUS_VERBS[column.status]}".rstrip()


def _first_causes_text(text: str, max_causes: int | None = None) -> str:
    """Return the first causes, each of which loses its middle only if it is long itself."""
    causes = plain(text).split("; ")
    # One more takes no more room than the words that there is one.
    kept = causes if max_causes is None or len(causes) <= max_causes + 1 else causes[:max_causes]
    rest = causes[len(kept) :]
    if rest and _is_cancelled_by(kept[-1], rest[0]):  # one alone would mislead
        kept = kept[:-1]
    return "; ".join(
        [
            *(shortened(cause, _MAX_CAUSE_LETTERS) for cause in kept),
            *_left_out_causes(causes[len(kept) :]),
        ]
    )


def _is_cancelled_by(one: str, other: str) -> bool:
    sizes = [_cause_bytes(cause) for cause in (one, other)]
    return None not in sizes and sum(size or 0 for size in sizes) == 0


def _cause_bytes(cause: str) -> int | None:
    """Return the bytes with which a cause begins; None if it begins otherwise."""
    found = _CAUSE_SIZE_PATTERN.match(cause)
    return parse_size(found[2].replace(",", "")) * int(f"{found[1]}1") if found else None


def _left_out_causes(causes: Sequence[str]) -> Iterator[str]:
    """Yield how many causes are left out, if any, and their sum if each begins with its size."""
    if not causes:
        return
    sizes = [size for size in map(_cause_bytes, causes) if size is not None]
    is_known = len(sizes) == len(causes)
    total = f", together {format_size(sum(sizes), signed=True)}" if is_known else ""
    yield f"and {counted(len(causes), 'more cause')}{total}"


def _short_column_message(text: str) -> str:
    return shortened(plain(text), MAX_REASON_LENGTH)
