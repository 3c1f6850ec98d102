"""The sentences of a sweep: what was measured, waste, changes by release, estimates, failures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median, quantiles
from typing import NamedTuple

from memdiag.records.sweep import Sweep, SweepPoint, SweepSeries, SweepStep
from memdiag.reports.text import plain
from memdiag.sweeps.steps import DEFAULT_NOISE_SHARE
from memdiag.units import counted, format_size, plural, some_of

MAX_WASTE_RULES = 4
MAX_LISTED_SIZES = 3
MAX_PLACED_MACHINES = 8
MIN_COMPARED_ESTIMATES = 2


class SweepHeadline(NamedTuple):
    """The answer.

    Attributes:
        first: the first of these that the sweep has: the placement, the jobs that exceed the
            budget, the regressions against a store, the waste, and what was measured.
        lines: the other sentences of the answer.
    """

    first: str
    lines: tuple[str, ...]


class ReleaseChange(NamedTuple):
    """The steps between two releases.

    Attributes:
        before, after: the releases.
        steps: the larger step of `peak` and `steady` for each series, the largest first.
    """

    before: str
    after: str
    steps: tuple[tuple[SweepSeries, SweepStep], ...]


def sweep_headline(sweep: Sweep) -> SweepHeadline:
    """Return the answer of `sweep`."""
    waste, rules = _waste_sentences(sweep)
    sentences = (
        _placement_answer(sweep),
        _exceeded_budget_text(sweep),
        _regressions_text(sweep) if sweep.against else "",
        waste,
        _measured_jobs_text(sweep),
        rules,
        *map(_release_change_line, release_changes(sweep)),
        estimate_line(sweep),
    )
    first, *lines = filter(None, sentences)
    return SweepHeadline(first, tuple(lines))


def model_count(series: Iterable[SweepSeries]) -> int:
    """Return the number of models, each with any number of sizes, options and machines."""
    return len({(model_series.model, model_series.address) for model_series in series})


def _measured_jobs_text(sweep: Sweep) -> str:
    """Return how many jobs completed, on which releases and at which sizes."""
    points = list(sweep.points)
    failed_count = sum(point.is_failed for point in points)
    completed_count = len(points) - failed_count
    place = f"{_releases_clause(sweep)}, {_given_sizes_text(sweep)}" if points else ""
    models = counted(model_count(sweep.series), "model")
    if failed_count and not completed_count:
        text = f"None of {counted(failed_count, 'job')} of {models}{place} completed."
    elif failed_count:
        text = f"{counted(completed_count, 'job')} of {models}{place}; {failed_count:,} failed."
    else:
        text = f"{counted(completed_count, 'job')} of {models}{place}."
    requested_count = sum(point.is_requested for point in points)
    if requested_count < len(points):
        text += (
            f" This sweep names {requested_count:,} of these {len(points):,} jobs; the others are"
            " of earlier sweeps."
        )
    return text


def _releases_clause(sweep: Sweep) -> str:
    """Return the releases, and to which of them the figures belong."""
    if len(sweep.releases) < 2:
        return "".join(f" on onnxruntime {plain(release)}" for release in sweep.releases)
    first, last = plain(sweep.releases[0]), plain(sweep.releases[-1])
    word = "and" if len(sweep.releases) == 2 else "to"
    releases = counted(len(sweep.releases), "release")
    return f" on {releases} of onnxruntime, {first} {word} {last} (figures: the newest)"


def _given_sizes_text(sweep: Sweep) -> str:
    texts = list(dict.fromkeys(plain(series.dims) for series in sweep.series))
    given_texts = [text for text in texts if text]
    if len(given_texts) > MAX_LISTED_SIZES:
        return f"at {len(given_texts):,} combinations of sizes"
    default_texts = () if given_texts == texts else ("default sizes (--dim)",)
    return f"at {' or '.join((*given_texts, *default_texts))}"


def _placement_answer(sweep: Sweep) -> str:
    """Return how many models fit on which machines; empty without a placement."""
    placement = sweep.placement
    if placement is None:
        return ""
    sizes = {machine.memory_bytes for machine in placement.machines}
    placed_texts = [
        f"{some_of([plain(model.model) for model in machine.models])} on machine {number}"
        + (f" ({format_size(machine.memory_bytes)})" if len(sizes) > 1 else "")
        for number, machine in enumerate(placement.machines, start=1)
        if machine.models
    ]
    fitting_count = sum(len(machine.models) for machine in placement.machines)
    model_total = fitting_count + len(placement.unplaced)
    machines = counted(len(placement.machines), "machine")
    if len(sizes) == 1:
        machines += f" of {format_size(placement.machines[0].memory_bytes)}"
    missing_count = model_count(series for series, _ in sweep.requested_jobs) - model_total
    if not placed_texts:
        text = f"None of {counted(model_total, 'model')} fits on {machines}"
    else:
        total_text = f" of {model_total:,}" if model_total > fitting_count else ""
        text = (
            f"{fitting_count:,}{total_text} {plural(model_total, 'model')}"
            f" {plural(fitting_count, 'fits', 'fit')} on {machines}:"
            f" {some_of(placed_texts, MAX_PLACED_MACHINES, '; ')}"
        )
        if placement.unplaced:
            names = some_of([plain(model.model) for model in placement.unplaced])
            text += f"; {names} on none"
    if missing_count > 0:
        text += f"; {counted(missing_count, 'model')} without figures"
    return f"{text}."


def _exceeded_budget_text(sweep: Sweep) -> str:
    """Return how many models exceed the budget; empty if none does."""
    exceeding_jobs = sweep.over_budget
    if not exceeding_jobs:
        return ""
    count = model_count(series for series, _, _ in exceeding_jobs)
    names = some_of(list(dict.fromkeys(plain(series.model) for series, _, _ in exceeding_jobs)))
    verb = plural(count, "exceeds", "exceed")
    jobs = counted(len(exceeding_jobs), "job")
    return f"{counted(count, 'model')} {verb} the budget in {jobs}: {names}."


def _waste_sentences(sweep: Sweep) -> tuple[str, str]:
    """Return how much more than necessary models take, and by which rules; empty for none."""
    waste_by_model: dict[tuple[str, str], int] = {}
    for series in sweep.series:
        if series.avoidable_bytes:
            name = series.model, series.address
            waste_by_model[name] = max(waste_by_model.get(name, 0), series.avoidable_bytes)
    if not waste_by_model:
        return "", ""
    worst_model = max(waste_by_model, key=lambda name: waste_by_model[name])
    largest_size = format_size(waste_by_model[worst_model])
    count, total_count = len(waste_by_model), model_count(sweep.series)
    total_text = f" of {total_count:,}" if total_count > count else ""
    names = (
        f", most {plain(worst_model[0])} ({largest_size})"
        if count > 1
        else f" ({plain(worst_model[0])})"
    )
    rules = [
        f"{counted(group.model_count, 'model')}: {plain(group.rule)}"
        for group in sweep.findings
        if group.steady_bytes
    ]
    return (
        f"{count:,}{total_text} {plural(total_count, 'model')} {plural(count, 'takes', 'take')}"
        f" more memory than necessary: {format_size(sum(waste_by_model.values()))} after the runs"
        f"{names}.",
        f"{some_of(rules, MAX_WASTE_RULES, '; ')}." if rules else "",
    )


def release_changes(sweep: Sweep) -> tuple[ReleaseChange, ...]:
    """Return the steps between releases without a change of the model, the oldest first."""
    steps_by_releases: dict[tuple[str, str], dict[int, SweepStep]] = defaultdict(dict)
    for number, series in enumerate(sweep.series):
        for step in series.steps:
            before, after = (series.point(key).onnxruntime for key in (step.before_key, step.key))
            if before == after or step.is_model_changed:
                continue
            listed_step = steps_by_releases[before, after].get(number)
            if listed_step is None or abs(step.bytes) > abs(listed_step.bytes):
                steps_by_releases[before, after][number] = step
    order = {release: number for number, release in enumerate(sweep.releases)}
    changes = []
    for before, after in sorted(
        steps_by_releases, key=lambda pair: [order.get(release, -1) for release in pair]
    ):
        steps = [
            (sweep.series[number], step)
            for number, step in steps_by_releases[before, after].items()
        ]
        steps.sort(key=lambda series_and_step: -abs(series_and_step[1].bytes))
        changes.append(ReleaseChange(before, after, tuple(steps)))
    return tuple(changes)


def _release_change_line(change: ReleaseChange) -> str:
    parts = []
    for verb, sign in (("grew", 1), ("shrank", -1)):
        steps = [(series, step) for series, step in change.steps if step.bytes * sign > 0]
        if steps:
            count = model_count(series for series, _ in steps)
            largest = f" (most: {step_words(*steps[0])})"
            parts.append(f"{counted(count, 'model')} {verb}{largest}")
    return f"{plain(change.before)} → {plain(change.after)}: {', '.join(parts)}."


def step_words(series: SweepSeries, step: SweepStep) -> str:
    """Return ``albert, +212 MiB at the peak, first in prepack``."""
    figure = "at the peak" if step.figure == "peak" else "after the runs"
    phase_text = f", first in {step.phase}" if step.phase else ""
    return f"{plain(series.model)}, {format_size(step.bytes, signed=True)} {figure}{phase_text}"


def step_place(series: SweepSeries, step: SweepStep) -> str:
    """Return the releases of a step: ``1.24.4 → 1.32.0``, or that both are the same."""
    before, after = series.point(step.before_key), series.point(step.key)
    if before.onnxruntime != after.onnxruntime:
        text = f"{before.onnxruntime} → {after.onnxruntime}"
    else:
        text = "an earlier job → a later job"
    return plain(f"{text} (other content of the model)" if step.is_model_changed else text)


def _regressions_text(sweep: Sweep) -> str:
    """Return the answer of a comparison with a store."""
    store, regressions = plain(sweep.against), sweep.regressions
    compared_count = model_count(series for series in sweep.series if series.is_compared)
    if regressions:
        count = model_count(series for series, _ in regressions)
        worst_regression = max(regressions, key=lambda regression: regression[1].bytes)
        text = (
            f"Regression: {counted(count, 'model')} {plural(count, 'needs', 'need')} more memory"
            f" than in {store} (most: {step_words(*worst_regression)})."
        )
    elif compared_count:
        models = counted(compared_count, "model")
        text = f"Of {models}, none needs more memory than in {store}, beyond the noise."
    elif any(point.is_new for _, point in sweep.requested_jobs):
        text = (
            f"Nothing is compared with {store}: no model was measured both there and now. Models"
            " are the same by name, relative to the folder that is given, with the same sizes,"
            " options and class of machine."
        )
    else:
        text = (
            f"Nothing new was measured: each job is in {store} already, with the same model,"
            " release, sizes and options. Measure them again into another folder (--out)."
        )
    failing_series = [series for series in sweep.series if series.fails_now]
    if failing_series:
        names = some_of(list(dict.fromkeys(plain(series.model) for series in failing_series)))
        count = model_count(failing_series)
        verb = plural(count, "fails", "fail")
        text += f" {counted(count, 'model')} that completed there {verb} now: {names}."
    return text


def noise_line(sweep: Sweep) -> str:
    """Return the noise above which changes are listed."""
    if sweep.noise_share is None:
        return (
            "The store has too few repeated jobs to show its noise:"
            f" {100 * DEFAULT_NOISE_SHARE:.1f} % of a figure is assumed."
        )
    share = f"{100 * sweep.noise_share:.2f} %"
    return f"The noise, from the repeated jobs of the store, is {share} of a figure."


def estimate_errors(points: Iterable[SweepPoint]) -> list[float]:
    """Return the errors of the estimated peaks as shares of the measured peaks."""
    return [
        (point.estimated_peak_bytes - point.peak_bytes) / point.peak_bytes
        for point in points
        if point.peak_bytes and point.estimated_peak_bytes is not None
    ]


def estimate_line(sweep: Sweep) -> str:
    """Return how far estimated peaks are from measured ones; empty for too few of them."""
    errors = sorted(map(abs, estimate_errors(sweep.points)))
    if len(errors) < MIN_COMPARED_ESTIMATES:
        return ""
    largest_error = quantiles(errors, n=20, method="inclusive")[-1]
    return (
        f"Estimated peaks differ from the measured ones by {100 * median(errors):.1f} % (median),"
        f" and 19 of 20 differ by at most {100 * largest_error:.1f} %."
    )


def failed_jobs_by_sentence(
    jobs: Iterable[tuple[SweepSeries, SweepPoint]],
) -> list[tuple[str, list[tuple[SweepSeries, SweepPoint]]]]:
    """Return the failed ones of `jobs` by sentence, the most frequent sentence first."""
    jobs_by_sentence: dict[str, list[tuple[SweepSeries, SweepPoint]]] = defaultdict(list)
    for series, point in jobs:
        if point.is_failed:
            text = plain(point.sentence)
            for name in (series.address, series.model):  # the sentence often starts with one
                text = text.removeprefix(f"{plain(name)}: ")
            jobs_by_sentence[text or plain(point.status)].append((series, point))
    return sorted(jobs_by_sentence.items(), key=lambda item: (-len(item[1]), item[0]))


def point_releases_text(sweep: Sweep, points: Sequence[SweepPoint]) -> str:
    """Return the releases of `points`, or ``all``."""
    releases = {point.onnxruntime for point in points}
    if len(releases) == len(sweep.releases) > 1:
        return "all"
    return some_of([plain(release) for release in sweep.releases if release in releases])
