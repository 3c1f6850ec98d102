"""Sentences on an estimate: the answer, the memory before the session, sizes that fit, and measured
points."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import NamedTuple

from memdiag.defaults import PINNED_TEXT
from memdiag.records.dimension import dimensions_text, typed_names
from memdiag.records.estimate import Calibration, Estimate, EstimatedPoint, Fit
from memdiag.reports.generation_sentences import (
    cache_sentences,
    feed_sentence,
    generation_calls_text,
)
from memdiag.reports.text import dim_hint, model_file_name, plain, sizes_clause
from memdiag.units import MIB, counted, format_duration, format_limit, format_size, plural, some_of

BEFORE_SESSION_TEXT = "Python, numpy and onnxruntime before the session"


class EstimateHeadline(NamedTuple):
    """The answer.

    Attributes:
        model: the name of the file.
        first: the sentence after the name of the model.
        second: the memory before the session, what malloc may add, and the largest of several
            points.
        facts: the release, and the time that the estimate took.
    """

    model: str
    first: str
    second: str
    facts: str

    @property
    def line(self) -> str:
        """The first sentence, after the name of the model."""
        return f"{self.model} {self.first}"


def estimate_headline(estimate: Estimate) -> EstimateHeadline:
    """Return the answer of `estimate` at its first point."""
    point = estimate.point
    base_bytes = estimate.beside_bytes(point)
    peak = format_size(point.peak_bytes + base_bytes)
    steady = format_size(point.steady_bytes + base_bytes)
    low, high = point.low_bytes + base_bytes, point.high_bytes + base_bytes
    if estimate.is_floor:
        need = f"needs at least {format_size(low)} at its peak"
    elif estimate.is_upper:
        need = f"may need up to {peak} at its peak and {steady} after that"
    elif point.is_bounded and not point.is_measured:
        need = f"needs {interval_text(low, high)} at its peak"
    else:
        need = f"needs {peak} at its peak ({interval_text(low, high)}) and {steady} after that"
    generation = estimate.generation
    if generation is not None:
        sizes = f"with {generation_calls_text(generation)}"
    elif len(estimate.points) > 1:  # as in the table of points
        sizes = f"at {dimension_sizes_text(estimate, point.dims)}"
    else:
        sizes = sizes_clause(estimate.dimensions)
    is_corrected = bool(estimate.calibration)
    source = (
        "predicted, and corrected by measurements" if is_corrected else "predicted, not measured"
    )
    if point.unknown_values:
        source = f"{source}; {unknown_text(estimate)}"
    texts = (_process_before_text, _malloc_interval_text, _size_inputs_text, _largest_point_text)
    first = ", ".join(
        part for part in (need, sizes, f"under onnxruntime {plain(estimate.onnxruntime)}") if part
    )
    return EstimateHeadline(
        model=model_file_name(estimate.model),
        first=f"{first}: {source}.",
        second=" ".join(filter(None, (text(estimate) for text in texts))),
        facts=_estimate_facts(estimate),
    )


def unknown_text(estimate: Estimate) -> str:
    """Return what values of unknown size mean for the answer."""
    count = estimate.point.unknown_values
    values = f"{counted(count, 'value')} whose {plural(count, 'size', 'sizes')} only a run shows"
    if estimate.is_floor:
        return f"{values} {plural(count, 'is', 'are')} missing (--measure completes it)"
    if estimate.point.is_measured:
        return f"other data takes other sizes of {counted(count, 'value')}"
    return f"it depends on {values}"


def _size_inputs_text(estimate: Estimate) -> str:
    """Return the values that a measured run has for inputs that decide sizes."""
    inputs = estimate.size_inputs
    if not inputs:
        return ""
    verb = "The measurement took" if estimate.calibration else "--measure takes"
    input_texts = some_of([f"{plain(note)} for {plain(name)}" for name, note in inputs.items()])
    option = f"--input {plain(next(iter(inputs)))}=FILE.npy"
    return (
        f"Sizes depend on values of inputs. {verb} {input_texts}; memdiag profile {option} takes"
        " others."
    )


def process_peak_interval(estimate: Estimate, point: EstimatedPoint) -> str:
    """Return the interval of the peak of `point`, with the memory before the session."""
    base_bytes = estimate.beside_bytes(point)
    return interval_text(point.low_bytes + base_bytes, point.high_bytes + base_bytes)


def interval_text(low: int, high: int) -> str:
    """Return ``331 to 353 MiB``, or both units if they differ."""
    number, unit = format_size(low).rsplit(" ", 1)
    upper = format_size(high)
    return f"{number if upper.endswith(f' {unit}') else f'{number} {unit}'} to {upper}"


def _largest_point_text(estimate: Estimate) -> str:
    if len(estimate.points) == 1:
        return ""
    largest_point = estimate.largest
    base_bytes = estimate.beside_bytes(largest_point)
    running_count = sum(map(estimate.may_run, estimate.points))
    return (
        f"The largest of {counted(running_count, 'point')} is"
        f" {'at least ' if largest_point.is_floor else ''}"
        f"{format_size(largest_point.peak_bytes + base_bytes)}, at"
        f" {dimension_sizes_text(estimate, largest_point.dims)}."
    )


def _process_before_text(estimate: Estimate) -> str:
    if estimate.baseline_bytes is None:
        return f"{BEFORE_SESSION_TEXT} are not included: their size is not known for this release."
    input_bytes = estimate.point.input_bytes
    sentence = f"That includes {format_size(estimate.baseline_bytes)} of {BEFORE_SESSION_TEXT}"
    return (
        f"{sentence}, and {format_size(input_bytes)} of inputs."
        if input_bytes >= MIB
        else f"{sentence}."
    )


def _malloc_interval_text(estimate: Estimate) -> str:
    """Return where the interval ends if malloc keeps no freed blocks."""
    if estimate.is_upper or estimate.calibration or estimate.is_floor:
        return ""
    high = format_size(estimate.point.pinned_high_bytes + estimate.beside_bytes(estimate.point))
    return (
        "The interval includes freed blocks that glibc's malloc may keep; with"
        f" {PINNED_TEXT} in the environment it ends at {high}."
    )


def _estimate_facts(estimate: Estimate) -> str:
    options = [f"{plain(name)}={plain(value)}" for name, value in estimate.options.items()]
    options += [f"without {plain(name)}" for name in estimate.disabled_optimizers]
    if estimate.load_from == "bytes":
        options.append("loaded from bytes")
    effort = "nothing was run ·"
    if estimate.calibration:
        effort = "measured in"
    elif estimate.fit is not None and estimate.fit.trial != "not run":
        effort = "run at the largest size only ·"
    effort_text = f"{effort} {format_duration(estimate.duration_s)}"
    return " · ".join(filter(None, [*options, effort_text, dim_hint(estimate.dimensions)]))


def dimension_sizes_text(estimate: Estimate, sizes: Mapping[str, int]) -> str:
    """Return the sizes of the free dimensions in words, without sizes that follow from others."""
    typed_name_by_name = typed_names(estimate.dimensions)
    names = [dimension.name for dimension in estimate.dimensions if dimension.role != "sum"]
    size_texts = [
        f"{plain(typed_name_by_name[name])} {sizes[name]:,}" for name in names if name in sizes
    ]
    return " × ".join(size_texts) or plain(dimensions_text(estimate.dimensions))


def fit_text(estimate: Estimate) -> str:
    """Return whether the model fits, or up to which size; empty without a limit."""
    fit = estimate.fit
    if fit is None:
        return ""
    limit = format_limit(fit.limit_bytes)
    if not fit.dims:
        return _point_fits_text(estimate, limit)
    # Several dimensions may share one size: `a = b = 8 surely fits`.
    typed = typed_names(estimate.dimensions)
    names = [plain(typed.get(dimension, dimension)) for dimension in fit.dims]
    name = " = ".join(names) + (" =" if len(fit.dims) > 1 else "")
    sizes_text = f" at {dimension_sizes_text(estimate, fit.others)}" if fit.others else ""
    is_asked = fit.dims[0] in estimate.varied
    smallest_point = min(
        estimate.points, key=lambda point: point.dims[fit.dims[0]] if is_asked else 0
    )
    size = smallest_point.dims[fit.dims[0]] if is_asked else 1
    if fit.probably is None:
        interval = interval_text(fit.low_bytes, fit.high_bytes)
        verb = "does" if fit.too_large is not None and fit.too_large <= size else "may"
        return (
            f"{name} {size:,} {verb} not fit in {limit}{sizes_text}: it needs {interval}."
            " (predicted)"
        )
    if fit.trial == "fails":
        return (
            f"What fits in {limit} cannot be said: the model does not run at {name}"
            f" {fit.probably:,} or less{sizes_text}. Set other sizes with --dim."
            f" ({plain(fit.problem)})"
        )
    is_bounded = estimate.point.is_bounded and not estimate.point.is_measured
    place = f"in {limit}{sizes_text}" + (", whatever the data" if is_bounded else "")
    if fit.surely is None:
        text = f"{name} {fit.probably:,} probably fits {place}"
    else:
        text = f"{name} {fit.surely:,} surely fits {place}"
        has_more = fit.probably > fit.surely and not is_bounded
        text += f"; {fit.probably:,} probably does" if has_more else ""
    if fit.fails_at is not None:
        text += f"; the model does not run at {fit.fails_at:,}"
    elif fit.too_large is not None:
        text += f"; {fit.too_large:,} doesn't"
    else:
        text += "; what larger sizes need is not known"
    below_bytes, above_bytes = fit.usual_bytes - fit.low_bytes, fit.high_bytes - fit.usual_bytes
    share = ceil(100 * max(below_bytes, above_bytes) / max(1, fit.usual_bytes))
    ending = "(predicted)" if is_bounded else f"(predicted; ± {share} %)"
    if is_bounded and fit.probably < size:
        interval = process_peak_interval(estimate, smallest_point)
        text = f"{name} {size:,} needs {interval}, depending on the data. {text}"
    return (
        f"{text}. {ending}"
        if fit.trial == "ran"
        else f"{text}. {ending} {_untried_size_reason(fit)}".rstrip()
    )


def _untried_size_reason(fit: Fit) -> str:
    """Return why it was not tried whether the model runs at the size; empty without a reason."""
    return f"Whether it runs there was not tried: {plain(fit.problem)}." if fit.problem else ""


def _point_fits_text(estimate: Estimate, limit: str) -> str:
    """Return whether the first point fits, if sizes are fixed or other sizes are unknown."""
    fit, point = estimate.fit, estimate.point
    assert fit is not None
    name = model_file_name(estimate.model)
    measured_points = [
        measured_point for measured_point in estimate.points if measured_point.is_measured
    ]
    if fit.problem and measured_points:
        answers = ", ".join(
            f"{dimension_sizes_text(estimate, measured_point.dims)} "
            + _FIT_VERBS[estimate.fits(measured_point, fit.limit_bytes)].removeprefix("surely ")
            for measured_point in measured_points
        )
        return (
            f"With generated data, against {limit}: {answers}. Of other data and sizes it cannot be"
            f" said: {plain(fit.problem)}."
        )
    if fit.problem:
        sizes_text = f" at {dimension_sizes_text(estimate, point.dims)}" if point.dims else ""
        return (
            f"What fits in {limit} cannot be said: {plain(fit.problem)}. memdiag profile measures"
            f" {name}{sizes_text}."
        )
    interval = process_peak_interval(estimate, point)
    verb = _FIT_VERBS[estimate.fits(point, fit.limit_bytes)]
    return f"{name} {verb} in {limit}: it needs {interval}. (predicted)"


_FIT_VERBS = {
    "yes": "surely fits",
    "probably": "probably fits",
    "probably not": "probably doesn't fit",
    "no": "doesn't fit",
}


def reduction_lines(estimate: Estimate) -> list[str]:
    """Return a sentence for each change that lowers the peak of the first point."""
    point, base_bytes = estimate.point, estimate.beside_bytes(estimate.point)
    typed = typed_names(estimate.dimensions)
    lines = []
    is_smaller = False
    for reduction in estimate.reductions:
        name, _, size = reduction.change.rpartition("=")
        is_size = name in typed
        is_smaller |= is_size
        change = f"at {plain(typed[name])} {size}" if is_size else f"with {plain(reduction.change)}"
        lines.append(
            f"{change} the peak is {format_size(point.peak_bytes - reduction.peak_bytes)} lower"
            f" ({format_size(reduction.peak_bytes + base_bytes)})"
        )
    if lines and point.unknown_values:
        lines.append("these figures are without the values of unknown size")
    is_known = estimate.generation is None and not point.unknown_values
    can_shrink = is_known and any(dimension.size > 1 for dimension in estimate.dimensions)
    if can_shrink and not is_smaller and point.peak_phase not in ("first_run", "steady"):
        lines.append(
            f"no smaller size lowers the peak: it is in {point.peak_phase}, before the runs"
        )
    return lines


def half_precision_text(estimate: Estimate) -> str:
    """Return a sentence on what fp16 costs, with the remedy; empty if it costs nothing."""
    findings = estimate.findings
    if not findings:
        return ""
    causes = "; ".join(finding.message for finding in findings)
    return f"{plain(causes)}. memdiag fix tries {plain(findings[0].remedies[0])}."


def generation_lines(estimate: Estimate) -> list[str]:
    """Return sentences on the calls of a generation and on its KV cache; none without one."""
    generation = estimate.generation
    if generation is None:
        return []
    return [f"{text}." for text in (feed_sentence(generation), *cache_sentences(generation))]


def calibration_lines(estimate: Estimate) -> list[str]:
    """Return a sentence for each measured point, the point outside the correction first."""
    ordered_calibrations = sorted(
        estimate.calibration, key=lambda calibration: not calibration.is_held_out
    )
    return [_calibration_line(estimate, calibration) for calibration in ordered_calibrations]


def _calibration_line(estimate: Estimate, point: Calibration) -> str:
    measured_size = format_size(point.measured_bytes)
    estimated_size = format_size(point.estimated_bytes)
    sizes_text = f" at {dimension_sizes_text(estimate, point.dims)}" if point.dims else ""
    if not point.is_held_out:
        error = _estimate_error_text(point.estimated_bytes, point.measured_bytes)
        return (
            f"measured{sizes_text}: {measured_size} above the process,"
            f" predicted {estimated_size} ({error})"
        )
    error = _estimate_error_text(point.corrected_bytes, point.measured_bytes)
    corrected_size = format_size(point.corrected_bytes)
    return (
        f"measured{sizes_text}: {measured_size} above the process. The correction by the other"
        f" points gives {corrected_size} ({error}), the estimate without it {estimated_size}"
    )


def _estimate_error_text(estimated_bytes: int, measured_bytes: int) -> str:
    return f"{100 * (estimated_bytes - measured_bytes) / max(1, measured_bytes):+.1f} %"
