"""What is wrong with a model, why, and what to do, in three sentences for anybody."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from memdiag.records.finding import Finding
from memdiag.records.profile import Profile
from memdiag.reporters.views import attribution, fix_glance, headline, span_table
from memdiag.reporters.views.text import multiple, plain, shortened
from memdiag.units import MIB, format_size

_MUCH, _SOME = 0.5, 0.1  # shares of the steady memory
_HIGH_PEAK = 2.0  # beside the steady memory
_LONGEST_REASON = 420
_LONGEST_NAME = 60
_TIMES = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """Three sentences, and the `command` to run next; empty where there is nothing to say."""

    wrong: str
    why: str
    remedy: str
    command: str


def build(profile: Profile) -> Glance:
    """Return what `profile` says at a glance, whatever it ended like."""
    worst = _worst(profile.findings)
    ended = profile.outcome.status != "completed"
    if ended:
        wrong = f"The run did not complete. {headline.build(profile).first}"
    elif worst is not None:
        wrong = _waste(profile, worst)
    else:
        wrong = _no_waste(profile)
    command, remedy = _remedy(profile, worst)
    return Glance(
        wrong=wrong,
        why=_reason(worst) if worst is not None else _grown(profile),
        remedy=remedy,
        command=command,
    )


def _worst(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding that costs most memory; None where none costs any."""
    costly = [
        one for one in findings if one.evidence != "refuted" and (one.bytes or one.peak_bytes)
    ]
    return max(costly, key=lambda one: (one.bytes, one.peak_bytes), default=None)


def _waste(profile: Profile, worst: Finding) -> str:
    steady = (profile.steady_rss_bytes or 0) - profile.baseline_rss_bytes
    avoidable = sum(one.bytes for one in profile.findings if one.evidence != "refuted")
    copied = _copied(profile, worst)
    if not worst.bytes:
        return (
            f"Loading takes {format_size(worst.peak_bytes)} more than it need, which is given back"
            " afterwards."
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
    peak = profile.peak_rss_bytes - base
    steady = (profile.steady_rss_bytes or profile.peak_rss_bytes) - base
    times = multiple(profile, steady)
    beside = f", {times} its weights" if times else ""
    if peak > _HIGH_PEAK * max(steady, MIB):
        return (
            f"No waste was found, but loading or running takes {format_size(peak)} for a moment,"
            f" {peak / max(steady, MIB):.1f} × what stays ({format_size(max(0, steady))})."
        )
    looked = "" if profile.attribution else " No X-ray was taken: copies were not looked for."
    return f"No waste was found: the model keeps {format_size(max(0, steady))}{beside}.{looked}"


def _reason(worst: Finding) -> str:
    said = f"{plain(worst.message)} {plain(worst.detail)}".strip()
    doubt = "" if worst.evidence == "measured" else " (Predicted from the model file.)"
    return shortened(said, _LONGEST_REASON) + doubt


def _grown(profile: Profile) -> str:
    grown = span_table.responsible(profile, profile.peak_phase)
    if grown is None:
        return ""
    return f"The peak is in {profile.peak_phase}, where {grown.name} took {grown.sentence}."


def _remedy(profile: Profile, worst: Finding | None) -> tuple[str, str]:
    told = fix_glance.told(profile.fix) if profile.fix else ""
    if told:
        return "", told
    model = shlex.quote(plain(profile.model.path))
    if worst is not None and worst.remedies:
        text = (
            "Let memdiag change a copy of the model, and check that its outputs, memory and speed"
            " are as good:"
        )
        return f"memdiag fix {model}", text
    if worst is not None:
        return f"memdiag explain {worst.name}", "There is no ready remedy; the rule says more:"
    if profile.outcome.status == "failed":
        return "", "The message above is the runtime's own; it has to be solved first."
    if profile.outcome.status != "completed":
        text = "Give it more time or memory, or look for options that take less:"
        return f"memdiag tune {model}", text
    return "", "There is nothing that you must do."
