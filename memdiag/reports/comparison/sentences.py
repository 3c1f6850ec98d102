"""The sentences of a comparison: its answer, and what differs between the columns."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from memdiag.budgets.figures import DEVICE_FIGURES
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
"""If the sizes of models differ, a title states them for at most this many models."""

MAX_COMPLETE_COLUMNS = 3
"""A short list of at most this many columns has every figure that differs, with more columns one
figure of each."""

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
_MEMORY_METRICS: Sequence[Metric] = (*DEVICE_FIGURES, "peak", "steady")
_SHORT_TABLE_METRICS: Sequence[Metric] = (*_MEMORY_METRICS, "mapped")
"""Metrics of the table that is always printed."""

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
    """Return the sizes of free dimensions, as the end of a subject.

    They are stated for each model if the models differ.
    """
    labels_by_sizes: dict[str, list[str]] = {}
    for column in comparison.columns if comparison.kind == "models" else ():
        if column.profile is not None:
            sizes = sizes_clause(column.profile.dimensions) or "with fixed sizes"
            labels_by_sizes.setdefault(sizes, []).append(plain(column.label))
    if len(labels_by_sizes) > 1:
        parts = [f"{', '.join(labels)} {sizes}" for sizes, labels in labels_by_sizes.items()]
        if len(parts) > MAX_TITLE_SIZES:
            parts = [*parts[: MAX_TITLE_SIZES - 1], "the others at other sizes"]
        return f", {', '.join(parts)}"
    sizes = sizes_clause(comparison.dimensions)
    return f" {sizes}" if sizes else ""


def comparison_answer(comparison: Comparison) -> str:
    """Return the answer of a comparison: peak and steady memory, or that neither differs.

    The figures are those of two columns, or the smallest and the largest of more columns. If memory
    does not differ, other figures that do are named.
    """
    measured_columns = [column for column in comparison.columns if column.measured is not None]
    if not measured_columns:
        return "nothing could be measured"
    if len(measured_columns) == 1:
        return f"only {plain(measured_columns[0].label)} was measured"
    reason_by_label = _no_memory_reasons(comparison, measured_columns)
    compared_columns = [
        column for column in measured_columns if column.label not in reason_by_label
    ]
    if not reason_by_label:
        answer = _memory_answer(comparison, compared_columns)
        remark = "the model does not run with these inputs: the sessions were only created"
        return f"{remark}; {answer}" if _is_never_run(comparison, measured_columns) else answer
    reasons = listed_names([*reason_by_label.values()], limit=1, separator="; ")
    if len(compared_columns) == 1:
        return (
            f"{_metric_range_text('steady', measured_columns)}; no causes are named, as {reasons}"
        )
    steady = _steady_range_text(
        [column for column in measured_columns if column.label in reason_by_label]
    )
    return (
        f"{_memory_answer(comparison, compared_columns)}; memory of"
        f" {listed_names([*reason_by_label], limit=3)}"
        f" ({steady}) is not compared: {reasons}"
    )


def _is_never_run(comparison: Comparison, columns: Sequence[ComparisonColumn]) -> bool:
    """Return whether no column's model was run, although it should have been."""
    sessions = [column.profile.session for column in columns if column.profile is not None]
    return comparison.kind != "profiles" and all(session.runs is None for session in sessions)


def _memory_answer(comparison: Comparison, columns: Sequence[ComparisonColumn]) -> str:
    """Return the answer, after the memory on a GPU if that is in no difference."""
    answer = _compared_memory_answer(comparison, columns)
    if any(change.metric in DEVICE_FIGURES for change in comparison.changes):
        return answer
    return "; ".join(filter(None, (_one_sided_device_text(columns), answer)))


def _joined_device_ranges(texts: list[str]) -> list[str]:
    """Return `texts` with one for the peak and the steady memory on a GPU if they are equal."""
    peak, steady = (_METRIC_WORDS[name] for name in DEVICE_FIGURES)
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


def _compared_memory_answer(comparison: Comparison, columns: Sequence[ComparisonColumn]) -> str:
    changed_metrics = {change.metric for change in comparison.changes}
    doubtful_metrics = {
        name for column in columns[1:] for name in _doubtful_metrics(comparison, columns[0], column)
    }
    doubtful_metrics -= changed_metrics
    ranges = [
        _metric_range_text(name, columns)
        + (", which may be chance" if name in doubtful_metrics else "")
        for name in _MEMORY_METRICS
        if name in changed_metrics | doubtful_metrics
    ]
    ranges = _joined_device_ranges(ranges)
    first_column, *other_columns = columns
    if ranges:
        return (
            f"{'; '.join(ranges)}{_retained_change_clause(comparison, first_column, other_columns)}"
        )
    is_known = all(
        _column_comparability(comparison, first_column, column).allows("peak")
        for column in other_columns
    )
    scope = " in peak and steady memory" if is_known else " in steady memory"
    if not changed_metrics and comparison.kind != "profiles":
        scope = ""  # more than memory was compared
    no_difference = (
        f"no difference{scope} beyond the variation between runs ({_steady_range_text(columns)})"
    )
    if "mapped" in changed_metrics:
        return f"{no_difference}; {_metric_range_text('mapped', columns)}"
    names = dict.fromkeys(
        f"memory kept in {change.phase}"
        if change.metric == "kept"
        else _METRIC_WORDS[change.metric]
        for change in comparison.changes
    )
    return f"{no_difference}; differences in {', '.join(names)}" if names else no_difference


def _retained_change_clause(
    comparison: Comparison,
    first_column: ComparisonColumn,
    other_columns: Sequence[ComparisonColumn],
) -> str:
    """Return the clause on a change that is mostly memory that malloc retains; empty for others."""
    steady_changes = [change.bytes for change in comparison.changes if change.metric == "steady"]
    if len(other_columns) != 1 or len(steady_changes) != 1:
        return ""
    if not is_mostly_retained(first_column, other_columns[0], steady_changes[0]):
        return ""
    return (
        ", mostly freed memory that malloc keeps: it varies with the order of allocations, and"
        f" {PINNED_TEXT} in the environment leaves it out"
    )


def _no_memory_reasons(
    comparison: Comparison, columns: Sequence[ComparisonColumn]
) -> dict[str, str]:
    """Return why the memory of saved profiles is not compared with the first one's, by label."""
    first_column, *other_columns = columns
    reasons = {
        column.label: _column_comparability(comparison, first_column, column).no_memory
        for column in other_columns
    }
    return {label: reason for label, reason in reasons.items() if reason}


def _doubtful_metrics(
    comparison: Comparison, before: ComparisonColumn, after: ComparisonColumn
) -> Iterator[Metric]:
    """Yield the metrics that differ between two columns, but perhaps by chance."""
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
    tried_text = f"{len(comparison.columns)} of {bisection.candidates} versions were tried"
    if bisection.metric == "growth":
        return f"{_growth_result(comparison, bisection)} ({tried_text})"
    if bisection.before is None or bisection.after is None:
        return f"{bisection.metric} does not differ between the ends of the range ({tried_text})"
    return f"{bisection.metric} jumps from {bisection.before} to {bisection.after} ({tried_text})"


def _growth_result(comparison: Comparison, bisection: Bisection) -> str:
    """Return whether growth begins, ends or changes in a version, and at which rates."""
    rate_by_version = {
        column.label: growth_rate(column.growth)
        for column in comparison.columns
        if column.growth is not None and column.growth.is_decided
    }
    before, after = bisection.before, bisection.after
    if before is not None and after is not None:
        old_rate, new_rate = rate_by_version.get(before, ""), rate_by_version.get(after, "")
        if old_rate and new_rate:
            return f"growth changes in {after}: {new_rate}, {old_rate} in {before}"
        if new_rate:
            return f"growth begins in {after}: {new_rate}, none in {before}"
        return f"growth ends in {after}: none, {old_rate} in {before}"
    if len(rate_by_version) < 2:
        return "growth is known of fewer than two versions"
    first, *_, last = rate_by_version
    if rate_by_version[first] and rate_by_version[last]:
        rates = f"{rate_by_version[first]} in {first}, {rate_by_version[last]} in {last}"
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
    """Return the changes in few lines: figures of the first tables, with their first causes.

    Every column that differs has a sentence, which is about its memory if that differs.
    """
    column_count = len([column for column in comparison.columns if column.measured is not None])
    changes_by_columns: dict[tuple[str, str], list[FigureChange]] = {}
    for change in comparison.changes:
        changes_by_columns.setdefault((change.from_, change.to), []).append(change)
    short_changes: list[FigureChange] = []
    for changes in changes_by_columns.values():
        has_memory = any(change.metric in _SHORT_TABLE_METRICS for change in changes)
        omitted_metrics = (
            _UNLISTED_METRICS
            if column_count < MAX_COMPLETE_COLUMNS
            else (*_UNLISTED_METRICS, *_SPEED_METRICS)
        )
        listed_changes = [change for change in changes if change.metric not in omitted_metrics]
        shown_changes = listed_changes if has_memory else listed_changes or changes
        short_changes += (
            shown_changes if column_count <= MAX_COMPLETE_COLUMNS else shown_changes[:1]
        )
    return [
        change_sentence(comparison, change, max_causes=_MAX_CAUSES_BY_COLUMNS.get(column_count, 1))
        for change in short_changes
    ]


def change_sentence(
    comparison: Comparison, change: FigureChange, *, max_causes: int | None = None
) -> str:
    """Return a change as a sentence, with at most `max_causes` causes, or one more.

    For example ``steady from 5 MiB to 9 MiB since 1.31.1: +4 MiB, m now packs W``. The tables have
    its figures, too.
    """
    difference = _figure_difference_text(comparison, change)
    if comparison.kind == "onnxruntime":
        text = f"{difference} since {plain(change.to)}"
    else:
        text = f"{plain(change.to)}: {difference}"
    causes = _first_causes_text(change.why, max_causes)
    if causes and _has_causes_of_steady(comparison, change):
        causes = f"the causes of {_METRIC_WORDS[_STEADY_METRICS[change.metric]]}"
    return f"{text}: {causes}" if causes else text


def _has_causes_of_steady(comparison: Comparison, peak: FigureChange) -> bool:
    """Return whether a peak has the same causes as the steady memory of the same columns."""
    return any(
        change.metric == _STEADY_METRICS.get(peak.metric)
        and (change.from_, change.to, change.why) == (peak.from_, peak.to, peak.why)
        for change in comparison.changes
    )


def finding_sentences(comparison: Comparison) -> list[str]:
    """Return the findings about memory that only some columns have, or at twice the cost of others.

    Each has a command. Empty for different releases, because rules know more about some of them.
    Only models of the user have a command for remedies, because the files of optimizers are
    temporary.
    """
    columns = [
        column
        for column in comparison.columns
        if column.measured is not None and column.profile is not None
    ]
    if len({column.onnxruntime for column in columns}) > 1:
        return []
    findings_by_column = {column.label: _costly_findings(column) for column in columns}
    labels_by_text: dict[str, list[str]] = {}
    command_by_text: dict[str, str] = {}
    for column in columns:
        for rule, finding in findings_by_column[column.label].items():
            costs = [
                _finding_cost_bytes(findings[rule])
                for findings in findings_by_column.values()
                if rule in findings
            ]
            if len(costs) == len(findings_by_column) and 2 * min(costs) > max(costs):
                continue
            text = f"{_finding_cost_text(finding)}. memdiag explain {rule} says why"
            labels_by_text.setdefault(text, []).append(plain(column.label))
            if finding.rewrites and column.optimizer is None:
                command_by_text.setdefault(
                    text, f"; {_fix_command(column)} --only {rule} tries remedies"
                )
    return [
        f"{', '.join(labels_by_text[text])}: {text}{command_by_text.get(text, '')}"
        for text in labels_by_text
    ]


def _finding_cost_text(finding: Finding) -> str:
    size, period = finding.bytes, "of private memory" if finding.is_private else "at steady state"
    if not size:
        size, period = finding.peak_bytes, "at the peak"
    evidence = plain(finding.evidence)
    if finding.run_bytes and finding.evidence == "measured":
        evidence = "confirmed by the first run"
    return f"{plain(finding.name)} costs {format_size(size)} {period} ({evidence})"


def _finding_cost_bytes(finding: Finding) -> int:
    return max(finding.bytes, finding.peak_bytes)


def _fix_command(column: ComparisonColumn) -> str:
    assert column.profile is not None
    model = shlex.quote(plain(column.model)) + dim_option(column.profile.dimensions)
    return f"memdiag fix {model}"


def _costly_findings(column: ComparisonColumn) -> dict[str, Finding]:
    """Return the costliest finding of each rule that costs memory and was not refuted."""
    finding_by_rule: dict[str, Finding] = {}
    for finding in column.profile.findings if column.profile else ():
        if finding.evidence != "refuted" and _finding_cost_bytes(finding) >= MIB:
            finding_by_rule.setdefault(plain(finding.name), finding)
    return finding_by_rule


def copies_sentence(change: CopyChange) -> str:
    """Return a difference in copies: ``a → b: +61 MiB, b has a transposed copy of w``."""
    size = format_size(change.bytes, signed=True)
    causes = _first_causes_text(copy_change_text(change))
    return f"{plain(change.from_)} → {plain(change.to)}: {size}, {causes}"


def column_decimals(columns: Sequence[ComparisonColumn]) -> int:
    """Return the decimals of sizes in MiB, for all tables and sentences of `columns`."""
    peaks = (column.measured.peak.median for column in columns if column.measured)
    return mebibyte_decimals(max(peaks, default=0))


def latency_ratio_text(latency: Latency) -> str:
    """Return the ratio of a latency to the latency of the first column."""
    return f"{latency.ratio:.2f} ×"


def _figure_difference_text(comparison: Comparison, change: FigureChange) -> str:
    name = _METRIC_WORDS[change.metric]
    if change.metric == "outputs":
        return f"{name} differ"
    column_by_label = {column.label: column for column in comparison.columns}
    before, after = column_by_label[change.from_], column_by_label[change.to]
    if change.metric == "latency" and after.latency and after.latency.ratio is not None:
        first_label = next(
            column.label for column in comparison.columns if column.measured is not None
        )
        ratio_text = f"{latency_ratio_text(after.latency)} that of {plain(first_label)}"
        if before.latency is None or before.latency.ratio is None:
            return f"{name} {ratio_text}"
        return f"{name} from {latency_ratio_text(before.latency)} to {ratio_text}"
    if change.metric == "kept":
        name = f"memory kept in {change.phase}"
    figures = (_changed_figure_text(comparison, column, change) for column in (before, after))
    text = f"{name} from {' to '.join(figures)}"
    anonymous = [column.measured.anonymous for column in (before, after) if column.measured]
    sizes = [
        format_size(measured_bytes.median)
        for measured_bytes in anonymous
        if measured_bytes is not None
    ]
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
        (kept_bytes,) = (
            phase.kept.median for phase in measured.phases if phase.phase == change.phase
        )
        return f"{mebibytes_text(kept_bytes, column_decimals(comparison.columns))} MiB"
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
    prefix = "at least " if metric == "peak" and measured.peak_kind == "sampled" else ""
    return f"{prefix}{format_size(_metric_median_bytes(metric, measured))}"


def _metric_range_text(metric: Metric, columns: Sequence[ComparisonColumn]) -> str:
    figures_by_label = {
        column.label: column.measured
        for column in columns
        if column.measured is not None
        if metric not in DEVICE_FIGURES or _metric_median_bytes(metric, column.measured)
    }
    end_labels, words = [*figures_by_label], ("from", "to")
    if len(figures_by_label) != 2:
        labels_by_size = sorted(
            figures_by_label,
            key=lambda label: _metric_median_bytes(metric, figures_by_label[label]),
        )
        end_labels, words = [labels_by_size[0], labels_by_size[-1]], ("between", "and")
    parts = (
        f"{word} {_metric_size_text(metric, figures_by_label[end])} in {plain(end)}"
        for word, end in zip(words, end_labels, strict=True)
    )
    return f"{_METRIC_WORDS[metric]} {' '.join(parts)}"


def _steady_range_text(columns: Sequence[ComparisonColumn]) -> str:
    sizes = sorted(column.measured.steady.median for column in columns if column.measured)
    end_sizes = dict.fromkeys(format_size(size) for size in (sizes[0], sizes[-1]))
    return f"steady {' to '.join(end_sizes)}"


def _column_ending(column: ComparisonColumn) -> str:
    return f"{plain(column.label)} {_COLUMN_STATUS_VERBS[column.status]}".rstrip()


def _first_causes_text(text: str, max_causes: int | None = None) -> str:
    """Return the first causes, and how many more there are. A long cause loses its middle."""
    causes = plain(text).split("; ")
    # One more cause takes no more room than the words that there is one more.
    first_causes = (
        causes if max_causes is None or len(causes) <= max_causes + 1 else causes[:max_causes]
    )
    omitted_causes = causes[len(first_causes) :]
    # Of two causes that cancel each other, one alone would mislead.
    if omitted_causes and _is_cancelled_by(first_causes[-1], omitted_causes[0]):
        first_causes = first_causes[:-1]
    return "; ".join(
        [
            *(shortened(cause, _MAX_CAUSE_LETTERS) for cause in first_causes),
            *_left_out_causes(causes[len(first_causes) :]),
        ]
    )


def _is_cancelled_by(cause: str, next_cause: str) -> bool:
    sizes = [_cause_bytes(cause), _cause_bytes(next_cause)]
    return None not in sizes and sum(size or 0 for size in sizes) == 0


def _cause_bytes(cause: str) -> int | None:
    """Return the size in bytes with which a cause begins; None if it begins without one."""
    match = _CAUSE_SIZE_PATTERN.match(cause)
    return parse_size(match[2].replace(",", "")) * int(f"{match[1]}1") if match else None


def _left_out_causes(causes: Sequence[str]) -> Iterator[str]:
    """Yield how many causes are left out, and their sum if each begins with its size."""
    if not causes:
        return
    sizes = [size for size in map(_cause_bytes, causes) if size is not None]
    is_known = len(sizes) == len(causes)
    total_text = f", together {format_size(sum(sizes), signed=True)}" if is_known else ""
    yield f"and {counted(len(causes), 'more cause')}{total_text}"


def _short_column_message(text: str) -> str:
    return shortened(plain(text), MAX_REASON_LENGTH)
