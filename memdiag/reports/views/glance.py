"""The result of a profile, why it is so, and what to do, in a few sentences."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memdiag.records.finding import Finding
from memdiag.records.profile import Profile
from memdiag.reports.views import attribution, fix_glance, headline, memory_parts, span_table
from memdiag.reports.views.memory_parts import ARENA_SLACK, Part
from memdiag.reports.views.sizes import dim_option
from memdiag.reports.views.text import plain, shortened
from memdiag.units import format_size

_MUCH, _SOME = 0.5, 0.1  # shares of the steady memory
_LONGEST_REASON = 420
_LONGEST_NAME = 60
_MAX_NAMES = 4
_ARENA_OPTION = "arena-shrinkage"  # a remedy of each finding that explains slack of the arena
_NO_XRAY = "No X-ray was taken: copies were not looked for."
_TIMES = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}


class Step(NamedTuple):
    """One thing to do: a sentence, and the command to run, empty where there is none."""

    text: str
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """The result, the reason (empty where there is none to give), and at least one step."""

    wrong: str
    why: str
    steps: tuple[Step, ...]


def build(profile: Profile) -> Glance:
    """Return what `profile` says at a glance, whatever it ended like."""
    worst = _worst(profile.findings)
    largest = _largest(profile)
    if profile.outcome.status != "completed":
        wrong = f"The run did not complete. {headline.build(profile).first}"
    elif largest is not None:
        wrong = f"{_unused(profile, largest)}{_also(profile, largest)}"
    elif worst is not None:
        wrong = f"{_waste(profile, worst)}{_also(profile, None)}"
    else:
        wrong = _no_waste(profile)
    return Glance(wrong=wrong, why=_why(profile, worst, largest), steps=_steps(profile, largest))


def _largest(profile: Profile) -> Part | None:
    """Return the unused part that has more memory than all findings; None where none has."""
    parts = memory_parts.worth_naming(profile)
    if not parts or parts[0].size_bytes <= _found_bytes(profile):
        return None
    return parts[0]


def _found_bytes(profile: Profile) -> int:
    """Return what findings say is avoidable, without those that explain slack of the arena."""
    costly = _distinct(profile)
    worst = _worst(costly)
    if worst is None:
        return 0
    if not worst.bytes:
        return worst.peak_bytes
    steady = (profile.steady_rss_bytes or 0) - profile.baseline_rss_bytes
    size = sum(one.bytes for one in costly)
    return min(size, steady) if steady > 0 else size


def _distinct(profile: Profile) -> list[Finding]:
    """Return the findings whose memory is not in an unused part that the X-ray measured."""
    slack = any(part.label == ARENA_SLACK for part in memory_parts.worth_naming(profile))
    return [
        one for one in _costly(profile.findings) if not (slack and _ARENA_OPTION in one.remedies)
    ]


def _unused(profile: Profile, part: Part) -> str:
    """Return the sentence about an unused part, with what it is."""
    whole, state = profile.peak_rss_bytes, "at the peak"
    if part.is_steady and profile.steady_rss_bytes is not None:
        whole, state = profile.steady_rss_bytes, "at steady state"
    above = format_size(whole - profile.baseline_rss_bytes)
    return f"{format_size(part.size_bytes)} of the {above} {state} is {part.label}: {part.meaning}."


def _also(profile: Profile, largest: Part | None) -> str:
    """Return the other avoidable memory in a sentence; empty for none."""
    parts = (part for part in memory_parts.worth_naming(profile) if part != largest)
    others = [f"{format_size(part.size_bytes)} {part.label}" for part in parts]
    found = _found_bytes(profile) if largest else 0
    if found:
        worst = _worst(_distinct(profile))
        assert worst is not None
        others.insert(0, f"up to {format_size(found)} by {plain(worst.name)}")
    looked = "" if profile.attribution else f" {_NO_XRAY}"
    return (f" Also avoidable: {', '.join(others)}." if others else "") + looked * bool(largest)


def _why(profile: Profile, worst: Finding | None, largest: Part | None) -> str:
    if largest is None:
        return _reason(worst) if worst is not None else _parts(profile) or _grown(profile)
    reason = _reason(worst) if worst is not None else _parts(profile)
    return f"{largest.cause} {reason}".strip() or _grown(profile)


def _costly(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that cost memory and were not refuted."""
    return [one for one in findings if one.evidence != "refuted" and (one.bytes or one.peak_bytes)]


def _worst(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding that costs most memory; None where none costs any."""
    return max(_costly(findings), key=lambda one: (one.bytes, one.peak_bytes), default=None)


def _waste(profile: Profile, worst: Finding) -> str:
    steady = (profile.steady_rss_bytes or 0) - profile.baseline_rss_bytes
    avoidable = sum(one.bytes for one in profile.findings if one.evidence != "refuted")
    copied = _copied(profile, worst)
    if not worst.bytes:
        return (
            f"Loading needs {format_size(worst.peak_bytes)} more than necessary{copied}."
            " The steady state does not."
        )
    if steady <= 0:
        return f"{format_size(worst.bytes)} could be saved{copied}."
    saved = min(avoidable, steady)
    share = saved / steady
    if share >= _MUCH:
        start = "Most of the memory is waste"
    elif share >= _SOME:
        start = "A part of the memory is waste"
    else:
        start = "A little of the memory is waste"
    measured = worst.evidence == "measured"
    return (
        f"{start}{copied}. {'Up to' if measured else 'By the rules, up to'} {format_size(saved)} of"
        f" {format_size(steady)} could be saved."
    )


def _copied(profile: Profile, worst: Finding) -> str:
    """Return which weight of `worst` is in memory how often; empty where the X-ray saw it once."""
    if profile.attribution is None:
        return ""
    concerned = {plain(name) for name in worst.weights}
    rows = attribution.build(profile.attribution).weights
    for row in rows:
        count = row.count - row.freed_count
        if count > 1 and concerned.intersection(row.names):
            size = format_size(max(one.size_bytes // one.count for one in row.copies))
            often = _TIMES.get(count, f"{count} times")
            return f": {row.titled(_LONGEST_NAME)} ({size}) is in memory {often}"
    return ""


def _no_waste(profile: Profile) -> str:
    base = profile.baseline_rss_bytes
    steady = max(0, (profile.steady_rss_bytes or profile.peak_rss_bytes) - base)
    looked = "" if profile.attribution else f" {_NO_XRAY}"
    times = memory_parts.factor(profile, steady)
    beside = f", {times} its weights" if times else ""
    return f"No waste was found: the model keeps {format_size(steady)}{beside}.{looked}"


def _reason(worst: Finding) -> str:
    sentences = (_ended(plain(text)) for text in (worst.message, worst.detail) if text)
    said = " ".join(sentences)
    doubt = "" if worst.evidence == "measured" else " (Predicted from the model file.)"
    return shortened(said, _LONGEST_REASON) + doubt


def _ended(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _parts(profile: Profile) -> str:
    """Return what the steady memory consists of; empty without an X-ray."""
    parts = memory_parts.above_baseline(profile)
    if not parts:
        return ""
    return f"Above the baseline: {', '.join(part.text for part in parts)}."


def _grown(profile: Profile) -> str:
    grown = span_table.responsible(profile, profile.peak_phase)
    if grown is None:
        return ""
    return f"The peak is in {profile.peak_phase}, where {grown.name} took {grown.sentence}."


def _steps(profile: Profile, largest: Part | None) -> tuple[Step, ...]:
    told = fix_glance.told(profile.fix) if profile.fix else ""
    if told:
        return (Step(told),)
    if profile.outcome.status == "failed":
        return (Step("Solve the error above first: it is onnxruntime's own."),)
    costly = _costly(profile.findings)
    model = shlex.quote(plain(profile.model.path)) + dim_option(profile.dimensions)
    tuning = _tuning(profile, costly, model, largest)
    if profile.outcome.status != "completed":
        more = "Give it more time or memory, or look for session options that need less:"
        tuning = [Step(more, f"memdiag tune {model}")]
    fixing = _fixing(costly, model)
    steps = [*tuning, *fixing] if largest else [*fixing, *tuning]
    if steps:
        return tuple(steps)
    if costly:
        worst = _worst(costly)
        assert worst is not None
        text = f"There is no remedy that can be applied{_refusal(costly)}. The rule says more:"
        return (Step(text, f"memdiag explain {worst.name}"),)
    return (Step("Nothing: no rewrite and no session option is expected to save much."),)


def _fixing(costly: Sequence[Finding], model: str) -> list[Step]:
    """Return the step that rewrites the model, where a rewrite can be applied or may be."""
    rewrites = [name for one in costly for name in one.rewrites or ()]
    if rewrites:
        text = (
            f"Let memdiag try {_listed(rewrites)} on a copy of the model. The copy is kept only if"
            " its memory is less and its outputs and speed are as good:"
        )
        return [Step(text, f"memdiag fix {model}")]
    if any(one.rewrites is None and one.remedies for one in costly):
        text = "See which rewrites can be applied to the model:"
        return [Step(text, f"memdiag fix --dry-run {model}")]
    return []


def _tuning(
    profile: Profile, costly: Sequence[Finding], model: str, largest: Part | None
) -> list[Step]:
    """Return the step that looks for session options, where they can be expected to save."""
    # Without a rewrite that applies, the other remedies of a finding are session options.
    left = [one for one in costly if one.rewrites == ()]
    options = [name for one in left for name in one.remedies]
    command = f"memdiag tune {model}"
    such = f", such as {_listed(options)}" if options else ""
    if largest is not None and largest.remedy:
        others = f" ({_listed(options)})" if options else ""
        text = f"{largest.remedy} Let memdiag measure what this and other settings{others} save:"
        return [Step(text, command)]
    if options:
        text = (
            f"memdiag fix has no rewrite for this model{_refusal(left)}. Let memdiag measure"
            f" session options{such}:"
        )
        if any(one.rewrites for one in costly):
            text = f"Let memdiag measure session options{such}:"
        return [Step(text, command)]
    if memory_parts.is_tunable(profile):
        size = format_size(sum(part.size_bytes for part in memory_parts.unused(profile)))
        text = (
            f"Let memdiag measure which session options avoid some of the {size} that loading and"
            " allocators add at the peak:"
        )
        return [Step(text, command)]
    return []


def _refusal(findings: Sequence[Finding]) -> str:
    """Return why no rewrite can be applied, in parentheses; empty where that is not known."""
    reason = next((plain(one.refusal) for one in findings if one.refusal), "")
    return f" ({shortened(reason, 120)})" if reason else ""


def _listed(names: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(map(plain, names)))
    more = len(distinct) - _MAX_NAMES
    return ", ".join(distinct[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
