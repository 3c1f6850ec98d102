"""The answer in one or two sentences, and the few figures that belong beside it."""

from dataclasses import dataclass

from memdiag.records.profile import Memory, Profile, Status
from memdiag.reports.views.memory_parts import factor
from memdiag.reports.views.sizes import at_sizes
from memdiag.reports.views.text import (
    and_kind,
    beside_baseline,
    model_name,
    plain,
    runtime,
    shortened,
)
from memdiag.units import format_size

_ENDED: dict[Status, str] = {
    "completed": "completed",
    "failed": "failed",
    "killed": "killed",
    "timeout": "timed out",
    "limit": "passed the memory limit",
}
_LONGEST_MESSAGE = 400
_ALL_BUT = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of the headline: `value` is its text, `size_bytes` what a bar would be long."""

    label: str
    value: str
    note: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The answer: `first` and `second` are sentences, `facts` say what was measured.

    Sizes in `figures` are above the baseline, except those of the weights and the baseline.
    """

    model: str
    completed: bool
    first: str
    second: str
    facts: str
    figures: tuple[Figure, ...]


def build(profile: Profile) -> Headline:
    """Return the headline of `profile`, whatever it ended like."""
    completed = profile.outcome.status == "completed"
    peak = _peak(profile)
    size = format_size(profile.baseline_rss_bytes)
    baseline = f"Baseline {size}: Python, onnxruntime and inputs" if profile.phases else ""
    sizes = at_sizes(profile.dimensions)
    where = f", {sizes}" if sizes else ""
    if profile.phases:
        baseline += f". Whole process: peak {format_size(profile.peak_rss_bytes)}"
    if completed:
        first = f"Peak {peak}{where}."
        second = _steady(profile)
    else:
        first = _ending(profile)
        second = f"The peak until then was {peak}{where}."
    weights = profile.model.weight_bytes
    facts = [f"{format_size(weights)} of weights"] if weights is not None else []
    return Headline(
        model=model_name(profile),
        completed=completed,
        first=first,
        second=f"{second} {baseline}." if baseline else second,
        facts=" · ".join([*facts, runtime(profile)]),
        figures=_figures(profile),
    )


def last_rss_bytes(profile: Profile) -> int:
    """Return the last resident set that was seen of the child, in bytes.

    A process that has just been killed reads as zero, which is not what it ended at.
    """
    sampled = next((rss for rss in reversed(profile.samples.rss_bytes) if rss > 0), None)
    if sampled is not None:
        return sampled
    ended = profile.phase(profile.outcome.phase)
    return ended.end.rss_bytes if ended else profile.peak_rss_bytes


def _ending(profile: Profile) -> str:
    outcome = profile.outcome
    where = f"in {outcome.phase} at {format_size(last_rss_bytes(profile))}"
    message = shortened(plain(outcome.message), _LONGEST_MESSAGE)
    sentence = f"{_ENDED[outcome.status].capitalize()} {where}"
    if not message:
        return f"{sentence}."
    return f"{sentence}: {message}" + ("" if message.endswith((".", "!", "?")) else ".")


def _peak(profile: Profile) -> str:
    above = profile.peak_rss_bytes - profile.baseline_rss_bytes
    if above <= 0:
        return "no higher than the baseline"
    times = factor(profile, above)
    asides = [f"{times} the weights" if times else "", and_kind(profile.peak_kind)]
    aside = ", ".join(part for part in asides if part)
    where = f"{beside_baseline(above)} {f'({aside}) ' if aside else ''}in {profile.peak_phase}"
    return where + _reached_before(profile, above)


def _reached_before(profile: Profile, above: int) -> str:
    """Return which phase came all but as high before: it is the one to look at first."""
    for span in profile.spans:
        share = (span.peak_rss_bytes - profile.baseline_rss_bytes) / above
        if share >= _ALL_BUT:
            if span.phase == profile.peak_phase:
                break
            return f", {min(100, int(share * 100))} % already in {span.phase}"
    return ""


def _steady(profile: Profile) -> str:
    if profile.steady_rss_bytes is None:
        if not profile.phases:
            return "The model was not run."
        kept = profile.phases[-1].end.rss_bytes - profile.baseline_rss_bytes
        return (
            f"Not run; created, the session stays {beside_baseline(kept)}{_times(profile, kept)}."
        )
    above = profile.steady_rss_bytes - profile.baseline_rss_bytes
    split = split_above_baseline(profile)
    parts = f": {split}" if split else ""
    return f"Steady {beside_baseline(above)}{_times(profile, above)}{parts}."


def _times(profile: Profile, size: int) -> str:
    times = factor(profile, size)
    return f" ({times})" if times else ""


def baseline_memory(profile: Profile) -> Memory | None:
    """Return the memory at the end of `start`, whose parts are those of the baseline."""
    start = profile.phase("start")
    return start.end if start else None


def split_above_baseline(profile: Profile) -> str | None:
    """Return what the steady state adds to the baseline, as anonymous and file-backed memory."""
    base, steady = baseline_memory(profile), profile.steady
    if steady is None or base is None:
        return None
    pairs = (
        ("anonymous", steady.anonymous_bytes, base.anonymous_bytes),
        ("file-backed", steady.file_bytes, base.file_bytes),
        ("shared", steady.shared_bytes, base.shared_bytes),
    )
    told = [(name, now - then) for name, now, then in pairs if now is not None and then is not None]
    if not told:
        return None
    parts = (f"{name} {format_size(size, signed=True)}" for name, size in told if size != 0)
    return ", ".join(parts) or None


def _figures(profile: Profile) -> tuple[Figure, ...]:
    base = profile.baseline_rss_bytes
    peak = profile.peak_rss_bytes - base
    kind = and_kind(profile.peak_kind)
    figures = [
        Figure(
            label="Peak",
            value=format_size(peak),
            note=", ".join(
                part
                for part in (_of_weights(profile, peak), f"in {profile.peak_phase}", kind)
                if part
            ),
            size_bytes=peak,
        )
    ]
    if profile.steady_rss_bytes is not None:
        steady = profile.steady_rss_bytes - base
        figures.append(
            Figure(
                label="Steady",
                value=format_size(steady),
                note=_of_weights(profile, steady) or "after the last run",
                size_bytes=steady,
            )
        )
    weights = profile.model.weight_bytes
    if weights is not None:
        count = profile.model.weight_count
        tensors = f"{count:,} tensor{'' if count == 1 else 's'}" if count is not None else ""
        figures.append(
            Figure(label="Weights", value=format_size(weights), note=tensors, size_bytes=weights)
        )
    note = "Python, onnxruntime and inputs"
    figures.append(Figure(label="Baseline", value=format_size(base), note=note, size_bytes=base))
    return tuple(figures)


def _of_weights(profile: Profile, size: int) -> str:
    times = factor(profile, size)
    return f"{times} the weights" if times else ""
