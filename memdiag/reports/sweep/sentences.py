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
        first: the placement, if it was asked for; else the jobs that exceed the budget; else the
            regressions, if the sweep is compared with a store; else the waste; else what was
            measured.
        lines: the other sentences of the answer.
    """

    first: str
    lines: tuple[str, ...]


class ReleaseChange(NamedTuple):
    """The steps between two releases.

    Attributes:
        before, after: the releases.
        steps: a step for each series: of `peak` or `steady`, the larger one; the largest first.
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
    return len({(each.model, each.address) for each in series})


def _measured_jobs_text(sweep: Sweep) -> str:
    """Return how many jobs completed, on which releases and at which sizes."""
    points = list(sweep.points)
    failed = sum(point.is_failed for point in points)
    done = len(points) - failed
    where = f"{_releases_clause(sweep)}, {_given_sizes_text(sweep)}" if points else ""
    models = counted(model_count(sweep.series), "model")
    if failed and not done:
        text = f"None of {counted(failed, 'job')} of {models}{where} completed."
    elif failed:
        text = f"{counted(done, 'job')} of {models}{where}; {failed:,} failed."
    else:
        text = f"{counted(done, 'job')} of {models}{where}."
    requested = sum(point.is_requested for point in points)
    if requested < len(points):
        text += (
            f" This sweep names {requested:,} of these {len(points):,} jobs; the others are of"
            " earlier sweeps."
        )
    return text


def _releases_clause(sweep: Sweep) -> str:
    """Return the releases, and which of them the figures are of."""
    if len(sweep.releases) < 2:
        return "".join(f" on onnxruntime {plain(each)}" for each in sweep.releases)
    first, last = plain(sweep.releases[0]), plain(sweep.releases[-1])
    word = "and" if len(sweep.releases) == 2 else "to"
    releases = counted(len(sweep.releases), "release")
    return f" on {releases} of onnxruntime, {first} {word} {last} (figures: the newest)"


def _given_sizes_text(sweep: Sweep) -> str:
    texts = list(dict.fromkeys(plain(series.dims) for series in sweep.series))
    given = [text for text in texts if text]
    if len(given) > MAX_LISTED_SIZES:
        return f"at {len(given):,} combinations of sizes"
    default = () if given == texts else ("default sizes (--dim)",)
    return f"at {' or '.join((*given, *default))}"


def _placement_answer(sweep: Sweep) -> str:
    """Return how many models fit on which machines; empty without a placement."""
    placement = sweep.placement
    if placement is None:
        return ""
    sizes = {machine.memory_bytes for machine in placement.machines}
    placed = [
        f"{some_of([plain(each.model) for each in machine.models])} on machine {number}"
        + (f" ({format_size(machine.memory_bytes)})" if len(sizes) > 1 else "")
        for number, machine in enumerate(placement.machines, start=1)
        if machine.models
    ]
    fitting = sum(len(machine.models) for machine in placement.machines)
    models = fitting + len(placement.unplaced)
    machines = counted(len(placement.machines), "machine")
    if len(sizes) == 1:
        machines += f" of {format_size(placement.machines[0].memory_bytes)}"
    missing = model_count(series for series, _ in sweep.requested_jobs) - models
    if not placed:
        text = f"None of {counted(models, 'model')} fits on {machines}"
    else:
        of = f" of {models:,}" if models > fitting else ""
        text = (
            f"{fitting:,}{of} {plural(models, 'model')} {plural(fitting, 'fits', 'fit')} on"
            f" {machines}: {some_of(placed, MAX_PLACED_MACHINES, '; ')}"
        )
        if placement.unplaced:
            names = some_of([plain(each.model) for each in placement.unplaced])
            text += f"; {names} on none"
    if missing > 0:
        text += f"; {counted(missing, 'model')} without figures"
    return f"{text}."


def _exceeded_budget_text(sweep: Sweep) -> str:
    """Return how many models exceed the budget; empty if none does."""
    found = sweep.over_budget
    if not found:
        return ""
    count = model_count(series for series, _, _ in found)
    names = some_of(list(dict.fromkeys(plain(series.model) for series, _, _ in found)))
    verb = plural(count, "exceeds", "exceed")
    return f"{counted(count, 'model')} {verb} the budget in {counted(len(found), 'job')}: {names}."


def _waste_sentences(sweep: Sweep) -> tuple[str, str]:
    """Return what models take more than necessary, and by which rules; empty without any."""
    found: dict[tuple[str, str], int] = {}
    for series in sweep.series:
        if series.avoidable_bytes:
            name = series.model, series.address
            found[name] = max(found.get(name, 0), series.avoidable_bytes)
    if not found:
        return "", ""
    worst = max(found, key=lambda name: found[name])
    most = format_size(found[worst])
    count, models = len(found), model_count(sweep.series)
    of = f" of {models:,}" if models > count else ""
    names = f", most {plain(worst[0])} ({most})" if count > 1 else f" ({plain(worst[0])})"
    rules = [
        f"{counted(group.model_count, 'model')}: {plain(group.rule)}"
        for group in sweep.findings
        if group.steady_bytes
    ]
    return (
        f"{count:,}{of} {plural(models, 'model')} {plural(count, 'takes', 'take')} more memory than"
        f" necessary: {format_size(sum(found.values()))} after the runs{names}.",
        f"{some_of(rules, MAX_WASTE_RULES, '; ')}." if rules else "",
    )


def release_changes(sweep: Sweep) -> tuple[ReleaseChange, ...]:
    """Return the steps between releases at which the models did not change, the oldest first."""
    found: dict[tuple[str, str], dict[int, SweepStep]] = defaultdict(dict)
    for number, series in enumerate(sweep.series):
        for step in series.steps:
            before, after = (series.point(k).onnxruntime for k in (step.before_key, step.key))
            if before == after or step.is_model_changed:
                continue
            known = found[before, after].get(number)
            if known is None or abs(step.bytes) > abs(known.bytes):
                found[before, after][number] = step
    order = {release: number for number, release in enumerate(sweep.releases)}
    changes = []
    for before, after in sorted(found, key=lambda pair: [order.get(each, -1) for each in pair]):
        steps = [(sweep.series[number], step) for number, step in found[before, after].items()]
        steps.sort(key=lambda each: -abs(each[1].bytes))
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
    where = f", first in {step.phase}" if step.phase else ""
    return f"{plain(series.model)}, {format_size(step.bytes, signed=True)} {figure}{where}"


def step_place(series: SweepSeries, step: SweepStep) -> str:
    """Return where a step is: ``1.24.4 → 1.32.0``, or that both have one release."""
    before, after = series.point(step.before_key), series.point(step.key)
    if before.onnxruntime != after.onnxruntime:
        text = f"{before.onnxruntime} → {after.onnxruntime}"
    else:
        text = "an earlier job → a later job"
    return plain(f"{text} (other content of the model)" if step.is_model_changed else text)


def _regressions_text(sweep: Sweep) -> str:
    """Return the answer of a comparison with a store."""
    store, found = plain(sweep.against), sweep.regressions
    compared = model_count(each for each in sweep.series if each.is_compared)
    if found:
        count = model_count(series for series, _ in found)
        worst = max(found, key=lambda each: each[1].bytes)
        text = (
            f"Regression: {counted(count, 'model')} {plural(count, 'needs', 'need')} more memory"
            f" than in {store} (most: {step_words(*worst)})."
        )
    elif compared:
        models = counted(compared, "model")
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
    broken = [each for each in sweep.series if each.fails_now]
    if broken:
        names = some_of(list(dict.fromkeys(plain(each.model) for each in broken)))
        count = model_count(broken)
        verb = plural(count, "fails", "fail")
        text += f" {counted(count, 'model')} that completed there {verb} now: {names}."
    return text


def noise_line(sweep: Sweep) -> str:
    """Return what the noise is beyond which changes are listed."""
    if sweep.noise_share is None:
        return (
            "The store has too few repeated jobs to show its noise:"
            f" {100 * DEFAULT_NOISE_SHARE:.1f} % of a figure is assumed."
        )
    share = f"{100 * sweep.noise_share:.2f} %"
    return f"The noise, from the repeated jobs of the store, is {share} of a figure."


def estimate_errors(points: Iterable[SweepPoint]) -> list[float]:
    """Return the errors of the estimated peaks, as shares of the measured ones."""
    return [
        (point.estimated_peak_bytes - point.peak_bytes) / point.peak_bytes
        for point in points
        if point.peak_bytes and point.estimated_peak_bytes is not None
    ]


def estimate_line(sweep: Sweep) -> str:
    """Return how far the estimated peaks are from the measured ones; empty without any."""
    errors = sorted(map(abs, estimate_errors(sweep.points)))
    if len(errors) < MIN_COMPARED_ESTIMATES:
        return ""
    most = quantiles(errors, n=20, method="inclusive")[-1]
    return (
        f"Estimated peaks differ from the measured ones by {100 * median(errors):.1f} % (median),"
        f" and 19 of 20 differ by at most {100 * most:.1f} %."
    )


def failed_jobs_by_sentence(
    jobs: Iterable[tuple[SweepSeries, SweepPoint]],
) -> list[tuple[str, list[tuple[SweepSeries, SweepPoint]]]]:
    """Return those of `jobs` that did not complete by sentence, the most frequent one first."""
    found: dict[str, list[tuple[SweepSeries, SweepPoint]]] = defaultdict(list)
    for series, point in jobs:
        if point.is_failed:
            text = plain(point.sentence)
            for name in (series.address, series.model):  # which often start the sentence
                text = text.removeprefix(f"{plain(name)}: ")
            found[text or plain(point.status)].append((series, point))
    return sorted(found.items(), key=lambda each: (-len(each[1]), each[0]))


def point_releases_text(sweep: Sweep, points: Sequence[SweepPoint]) -> str:
    """Return the releases of `points`, or ``all``."""
    releases = {point.onnxruntime for point in points}
    if len(releases) == len(sweep.releases) > 1:
        return "all"
    return some_of([plain(each) for each in sweep.releases if each in releases])
