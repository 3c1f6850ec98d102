"""The sentences of an estimate: the answer, the process before the session, sizes that fit, and
measured points."""

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
        second: the process before the session, what malloc may add, and the range of several
            points.
        facts: the release, and the time that the estimate took.
    """

    model: str
    first: str
    second: str
    facts: str

    @property
    def line(self) -> str:
        """The first sentence, preceded by the model's name."""
        return f"{self.model} {self.first}"


def estimate_headline(estimate: Estimate) -> EstimateHeadline:
    """Return the answer of `estimate` at its first point."""
    point = estimate.point
    base = estimate.beside_bytes(point)
    peak, steady = format_size(point.peak_bytes + base), format_size(point.steady_bytes + base)
    low, high = point.low_bytes + base, point.high_bytes + base
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
    corrected = bool(estimate.calibration)
    how = "predicted, and corrected by measurements" if corrected else "predicted, not measured"
    if point.unknown_values:
        how = f"{how}; {unknown_text(estimate)}"
    texts = (_process_before_text, _malloc_interval_text, _size_inputs_text, _largest_point_text)
    first = ", ".join(
        part for part in (need, sizes, f"under onnxruntime {plain(estimate.onnxruntime)}") if part
    )
    return EstimateHeadline(
        model=model_file_name(estimate.model),
        first=f"{first}: {how}.",
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
    """Return what a measured run takes for inputs that decide sizes, and how it takes others."""
    inputs = estimate.size_inputs
    if not inputs:
        return ""
    took = "The measurement took" if estimate.calibration else "--measure takes"
    taken = some_of([f"{plain(note)} for {plain(name)}" for name, note in inputs.items()])
    option = f"--input {plain(next(iter(inputs)))}=FILE.npy"
    return (
        f"Sizes depend on values of inputs. {took} {taken}; memdiag profile {option} takes others."
    )


def process_peak_interval(estimate: Estimate, point: EstimatedPoint) -> str:
    """Return the interval of the peak of `point`, with what the process has before the session."""
    base = estimate.beside_bytes(point)
    return interval_text(point.low_bytes + base, point.high_bytes + base)


def interval_text(low: int, high: int) -> str:
    """Return ``331 to 353 MiB``, or both units if they differ."""
    number, unit = format_size(low).rsplit(" ", 1)
    upper = format_size(high)
    return f"{number if upper.endswith(f' {unit}') else f'{number} {unit}'} to {upper}"


def _largest_point_text(estimate: Estimate) -> str:
    if len(estimate.points) == 1:
        return ""
    largest = estimate.largest
    base = estimate.beside_bytes(largest)
    running = sum(map(estimate.may_run, estimate.points))
    return (
        f"The largest of {counted(running, 'point')} is {'at least ' if largest.is_floor else ''}"
        f"{format_size(largest.peak_bytes + base)}, at"
        f" {dimension_sizes_text(estimate, largest.dims)}."
    )


def _process_before_text(estimate: Estimate) -> str:
    if estimate.baseline_bytes is None:
        return f"{BEFORE_SESSION_TEXT} are not included: their size is not known for this release."
    inputs = estimate.point.input_bytes
    included = f"That includes {format_size(estimate.baseline_bytes)} of {BEFORE_SESSION_TEXT}"
    return f"{included}, and {format_size(inputs)} of inputs." if inputs >= MIB else f"{included}."


def _malloc_interval_text(estimate: Estimate) -> str:
    """Return what malloc changes: where the interval ends if it keeps no freed blocks."""
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
    done = "nothing was run ·"
    if estimate.calibration:
        done = "measured in"
    elif estimate.fit is not None and estimate.fit.trial != "not run":
        done = "run at the largest size only ·"
    took = f"{done} {format_duration(estimate.duration_s)}"
    return " · ".join(filter(None, [*options, took, dim_hint(estimate.dimensions)]))


def dimension_sizes_text(estimate: Estimate, sizes: Mapping[str, int]) -> str:
    """Return the sizes of the free dimensions in words, unless they follow from others."""
    typed = typed_names(estimate.dimensions)
    names = [each.name for each in estimate.dimensions if each.role != "sum"]
    listed = [f"{plain(typed[name])} {sizes[name]:,}" for name in names if name in sizes]
    return " × ".join(listed) or plain(dimensions_text(estimate.dimensions))


def fit_text(estimate: Estimate) -> str:
    """Return the answer whether the model fits, or up to which size; empty without a limit."""
    fit = estimate.fit
    if fit is None:
        return ""
    limit = format_limit(fit.limit_bytes)
    if not fit.dims:
        return _point_fits_text(estimate, limit)
    # Several dimensions have one size: `a = b = 8 surely fits`.
    typed = typed_names(estimate.dimensions)
    name = " = ".join(plain(typed.get(each, each)) for each in fit.dims) + (
        " =" if len(fit.dims) > 1 else ""
    )
    at = f" at {dimension_sizes_text(estimate, fit.others)}" if fit.others else ""
    is_asked = fit.dims[0] in estimate.varied
    smallest = min(estimate.points, key=lambda point: point.dims[fit.dims[0]] if is_asked else 0)
    size = smallest.dims[fit.dims[0]] if is_asked else 1
    if fit.probably is None:
        interval = interval_text(fit.low_bytes, fit.high_bytes)
        verb = "does" if fit.too_large is not None and fit.too_large <= size else "may"
        return f"{name} {size:,} {verb} not fit in {limit}{at}: it needs {interval}. (predicted)"
    if fit.trial == "fails":
        return (
            f"What fits in {limit} cannot be said: the model does not run at {name}"
            f" {fit.probably:,} or less{at}. Set other sizes with --dim. ({plain(fit.problem)})"
        )
    is_bounded = estimate.point.is_bounded and not estimate.point.is_measured
    where = f"in {limit}{at}" + (", whatever the data" if is_bounded else "")
    if fit.surely is None:
        text = f"{name} {fit.probably:,} probably fits {where}"
    else:
        text = f"{name} {fit.surely:,} surely fits {where}"
        has_more = fit.probably > fit.surely and not is_bounded
        text += f"; {fit.probably:,} probably does" if has_more else ""
    if fit.fails_at is not None:
        text += f"; the model does not run at {fit.fails_at:,}"
    elif fit.too_large is not None:
        text += f"; {fit.too_large:,} doesn't"
    else:
        text += "; what larger sizes need is not known"
    below, above = fit.usual_bytes - fit.low_bytes, fit.high_bytes - fit.usual_bytes
    share = ceil(100 * max(below, above) / max(1, fit.usual_bytes))
    end = "(predicted)" if is_bounded else f"(predicted; ± {share} %)"
    if is_bounded and fit.probably < size:
        interval = process_peak_interval(estimate, smallest)
        text = f"{name} {size:,} needs {interval}, depending on the data. {text}"
    return (
        f"{text}. {end}"
        if fit.trial == "ran"
        else f"{text}. {end} {_untried_size_reason(fit)}".rstrip()
    )


def _untried_size_reason(fit: Fit) -> str:
    """Return why it is not known whether the model runs at the size; empty without a reason."""
    return f"Whether it runs there was not tried: {plain(fit.problem)}." if fit.problem else ""


def _point_fits_text(estimate: Estimate, limit: str) -> str:
    """Return whether the first point fits, as sizes are fixed, or nothing is known of others."""
    fit, point = estimate.fit, estimate.point
    assert fit is not None
    name = model_file_name(estimate.model)
    measured = [each for each in estimate.points if each.is_measured]
    if fit.problem and measured:
        answers = ", ".join(
            f"{dimension_sizes_text(estimate, each.dims)} "
            + _FIT_VERBS[estimate.fits(each, fit.limit_bytes)].removeprefix("surely ")
            for each in measured
        )
        return (
            f"With generated data, against {limit}: {answers}. Of other data and sizes it cannot be"
            f" said: {plain(fit.problem)}."
        )
    if fit.problem:
        at = f" at {dimension_sizes_text(estimate, point.dims)}" if point.dims else ""
        return (
            f"What fits in {limit} cannot be said: {plain(fit.problem)}. memdiag profile measures"
            f" {name}{at}."
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
    point, base = estimate.point, estimate.beside_bytes(estimate.point)
    typed = typed_names(estimate.dimensions)
    lines = []
    is_smaller = False
    for each in estimate.reductions:
        name, _, size = each.change.rpartition("=")
        is_size = name in typed
        is_smaller |= is_size
        change = f"at {plain(typed[name])} {size}" if is_size else f"with {plain(each.change)}"
        lines.append(
            f"{change} the peak is {format_size(point.peak_bytes - each.peak_bytes)} lower"
            f" ({format_size(each.peak_bytes + base)})"
        )
    if lines and point.unknown_values:
        lines.append("these figures are without the values of unknown size")
    is_known = estimate.generation is None and not point.unknown_values
    can_shrink = is_known and any(each.size > 1 for each in estimate.dimensions)
    if can_shrink and not is_smaller and point.peak_phase not in ("first_run", "steady"):
        lines.append(
            f"no smaller size lowers the peak: it is in {point.peak_phase}, before the runs"
        )
    return lines


def half_precision_text(estimate: Estimate) -> str:
    """Return what fp16 costs and the remedy, in one sentence; empty if it costs nothing."""
    findings = estimate.findings
    if not findings:
        return ""
    causes = "; ".join(finding.message for finding in findings)
    return f"{plain(causes)}. memdiag fix tries {plain(findings[0].remedies[0])}."


def generation_lines(estimate: Estimate) -> list[str]:
    """Return the sentences on the calls of a generation and its KV cache; none without one."""
    generation = estimate.generation
    if generation is None:
        return []
    return [f"{text}." for text in (feed_sentence(generation), *cache_sentences(generation))]


def calibration_lines(estimate: Estimate) -> list[str]:
    """Return a sentence for each measured point, the point outside the correction first."""
    ordered = sorted(estimate.calibration, key=lambda each: not each.is_held_out)
    return [_calibration_line(estimate, each) for each in ordered]


def _calibration_line(estimate: Estimate, point: Calibration) -> str:
    measured, estimated = format_size(point.measured_bytes), format_size(point.estimated_bytes)
    at = f" at {dimension_sizes_text(estimate, point.dims)}" if point.dims else ""
    if not point.is_held_out:
        error = _estimate_error_text(point.estimated_bytes, point.measured_bytes)
        return f"measured{at}: {measured} above the process, predicted {estimated} ({error})"
    error = _estimate_error_text(point.corrected_bytes, point.measured_bytes)
    corrected = format_size(point.corrected_bytes)
    return (
        f"measured{at}: {measured} above the process. The correction by the other points gives"
        f" {corrected} ({error}), the estimate without it {estimated}"
    )


def _estimate_error_text(size: int, measured: int) -> str:
    return f"{100 * (size - measured) / max(1, measured):+.1f} %"
