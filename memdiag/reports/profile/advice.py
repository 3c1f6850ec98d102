"""The result of a profile, the reason for it, and what to do about it, in a few sentences."""

import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memdiag.defaults import (
    MMAP_THRESHOLD_VARIABLE,
    PINNED_TEXT,
)
from memdiag.errors import MAX_REASON_LENGTH
from memdiag.ort.releases import OLDEST_PREDICTED_RELEASE, PREDICTED_RELEASES
from memdiag.ort.runtime import is_older
from memdiag.records.attribution import OwnerKind
from memdiag.records.finding import Finding
from memdiag.records.profile import Profile
from memdiag.reports.profile.headline import profile_headline, runtime_bytes, weight_factor
from memdiag.reports.profile.peak import is_above_steady, transient_peak_sentence
from memdiag.reports.profile.phases import responsible_span
from memdiag.reports.text import dim_option, input_option, listed_names, plain, shortened
from memdiag.reports.xray.weight_copies import weight_rows
from memdiag.runner.failure_text import CUSTOM_OPS_OPTION, RUN_PROGRAM_COMMAND
from memdiag.session_options import ORT_BYTES_OPTION, SHRINKAGE_OPTION
from memdiag.units import MIB, format_size, some_of

ARENA_SLACK, RETAINED = "arena slack", "retained by malloc"
MODEL_BYTES_LABEL = "the bytes of the model's file"

MIN_UNUSED_BYTES = 8 * MIB
MIN_UNUSED_SHARE = 0.25
"""Session options are recommended from this share of the peak above the baseline on that is unused:
arena slack, memory retained by malloc, and memory that is resident for a moment only."""

MIN_NAMED_SHARE = 0.1
"""An unused part is named with findings from this share of the peak on."""

_LARGE_SHARE, _NOTABLE_SHARE, _NAMED_SHARE = 0.5, 0.1, 0.02  # shares of the steady memory
_MIN_PART_BYTES, _MAX_PARTS = MIB // 10, 2
_MAX_WEIGHT_NAME = 60
_MAX_REFUSAL = 120
_MAX_ADVISED_NAMES = 4
_ARENA_REMEDY = "arena-shrinkage"  # a remedy of each finding that explains slack of the arena
_NO_XRAY_SENTENCE = "No X-ray was taken: copies and free memory are unknown."
_TIMES_IN_WORDS = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}


_QUICK_RETURN_SETTINGS = {
    "jemalloc": "MALLOC_CONF=dirty_decay_ms:0,muzzy_decay_ms:0",
    "mimalloc": "MIMALLOC_DECOMMIT_DELAY=0 (from version 2.1 on MIMALLOC_PURGE_DELAY=0)",
    "tcmalloc": "TCMALLOC_AGGRESSIVE_DECOMMIT=t",
}
"""The setting with which an allocator returns freed pages at once, by the allocator's name."""


_LEVER_BY_PART = {
    "other heap": "often less if the file is optimized already",
    RETAINED: "mmap-threshold or another malloc",
    ARENA_SLACK: "same-as-requested or arena-off",
    "thread stacks": "one-thread",
}
"""What may lower each part of the steady memory besides the weights, by the part's label."""


class MemoryPart(NamedTuple):
    """A part of the memory above the baseline.

    Attributes:
        meaning, cause, remedy: for an unused part, what this memory is, why it is there, and the
            setting that ends it.
        is_steady: whether the part is resident at steady state.
    """

    label: str
    size_bytes: int
    meaning: str = ""
    cause: str = ""
    remedy: str = ""
    is_steady: bool = True

    @property
    def text(self) -> str:
        """Label and size: ``arena slack 15 MiB``."""
        return f"{self.label} {format_size(self.size_bytes)}"


class AdviceStep(NamedTuple):
    """One recommended action.

    Attributes:
        text: the action, as a sentence.
        command: the command to run; empty for none.
    """

    text: str
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileAdvice:
    """The answer of a report in sentences.

    Attributes:
        result: how much of the memory is waste.
        reason: the cause; empty if it is not known.
        steady: what the memory above the baseline is at steady state; empty without an X-ray.
        steps: at least one recommended action.
    """

    result: str
    reason: str
    steady: str
    steps: tuple[AdviceStep, ...]


def profile_advice(profile: Profile) -> ProfileAdvice:
    """Return the answer of `profile`: result, reason and recommended actions."""
    worst = _worst_finding(profile.findings)
    largest = _largest_unused_part(profile)
    if not profile.outcome.completed:
        result = f"The run did not complete. {profile_headline(profile).first}"
    elif largest is not None:
        result = f"{_unused_sentence(profile, largest)}{_also_avoidable_sentence(profile, largest)}"
    elif worst is not None:
        result = f"{_waste_sentence(profile, worst)}{_also_avoidable_sentence(profile, None)}"
    else:
        result = _no_waste_sentence(profile)
    return ProfileAdvice(
        result=result,
        reason=_result_reason(profile, worst, largest),
        steady=_steady_parts_sentence(profile),
        steps=_advice_steps(profile, largest),
    )


def _steady_parts_sentence(profile: Profile) -> str:
    parts = _steady_memory_parts(profile)
    least = _NAMED_SHARE * sum(part.size_bytes for part in parts)
    count = sum(part.size_bytes >= least for part in parts)
    texts = [part.text for part in parts]
    return f"{some_of(texts, min(count, _MAX_PARTS), ' · ')}." if parts else ""


def _steady_memory_parts(profile: Profile) -> tuple[MemoryPart, ...]:
    """Return the parts of the steady memory above the baseline, the largest first.

    Empty without an X-ray.
    """
    attribution = profile.attribution
    if attribution is None:
        return ()
    kinds: dict[str, tuple[OwnerKind, ...]] = {
        "weights": ("weights", "external_data"),
        "KV cache": ("kv_cache",),
        "other heap": ("other_heap",),
        "thread stacks": ("thread_stacks",),
    }
    slack = _profile_slack_bytes(profile)
    return _ordered_memory_parts(
        *(
            MemoryPart(label, sum(map(attribution.bytes_of, owners)))
            for label, owners in kinds.items()
        ),
        MemoryPart(ARENA_SLACK, slack),
        MemoryPart("arena in use", attribution.bytes_of("arena") - slack),
        MemoryPart(RETAINED, _retained_bytes(profile)),
        MemoryPart("shared library pages", runtime_bytes(profile)),
    )


def unused_parts(profile: Profile) -> tuple[MemoryPart, ...]:
    """Return the parts of the peak that neither weights nor running kernels need, largest first."""
    steady = profile.steady_rss_bytes
    transient = 0 if steady is None else profile.peak_rss_bytes - steady
    cause, remedy = _retained_advice(profile)
    return _ordered_memory_parts(
        MemoryPart(
            MODEL_BYTES_LABEL,
            _kept_model_bytes(profile),
            "the session keeps them, but does not read them again",
            "InferenceSession keeps the bytes that it is created from in _model_bytes.",
            "Create the session from the path. Without a file, drop the bytes after the creation:"
            " session._model_bytes = None, and your own reference (session.set_providers does not"
            " work any more then).",
        ),
        MemoryPart(
            ARENA_SLACK,
            _profile_slack_bytes(profile),
            "free memory that onnxruntime keeps for later runs",
            *_slack_advice(profile),
        ),
        MemoryPart(
            RETAINED,
            _retained_bytes(profile),
            "it is free",
            cause,
            remedy,
        ),
        MemoryPart(f"needed only in {profile.peak_phase}", transient, is_steady=False),
    )


def named_parts(profile: Profile) -> tuple[MemoryPart, ...]:
    """Return the unused parts that belong in the answer, largest first.

    If their sum is large (see `is_tunable`), these are all parts. Otherwise they are the large
    ones, which are named with a finding.
    """
    parts = unused_parts(profile)
    if is_tunable(profile):
        return parts
    if all(finding.evidence == "refuted" for finding in profile.findings):
        return ()
    above = profile.peak_above_bytes
    smallest = max(MIN_UNUSED_BYTES, MIN_NAMED_SHARE * above)
    return tuple(part for part in parts if part.size_bytes >= smallest)


def is_tunable(profile: Profile) -> bool:
    """Return whether so much of the peak is unused that session options are worth a try."""
    above = profile.peak_above_bytes
    size = sum(part.size_bytes for part in unused_parts(profile))
    return size >= max(MIN_UNUSED_BYTES, MIN_UNUSED_SHARE * above)


def _ordered_memory_parts(*parts: MemoryPart) -> tuple[MemoryPart, ...]:
    kept = (part for part in parts if part.size_bytes >= _MIN_PART_BYTES)
    return tuple(sorted(kept, key=lambda part: -part.size_bytes))


def _profile_slack_bytes(profile: Profile) -> int:
    return profile.attribution.arena_slack_bytes if profile.attribution else 0


def _retained_bytes(profile: Profile) -> int:
    """Return the bytes that malloc retained, before and after ``malloc_trim``."""
    after = profile.attribution.bytes_of("allocator_retained") if profile.attribution else 0
    return after + max(0, profile.allocator_retained_bytes or 0)


def _slack_advice(profile: Profile) -> tuple[str, str]:
    """Return why the arena has slack, and the settings that end it."""
    cause = "The arena keeps all memory that a run needed, and grows by doubling."
    remedy = f"enable_cpu_mem_arena=False with {PINNED_TEXT}."
    if SHRINKAGE_OPTION not in profile.session.run_options:
        remedy = f"the run option {SHRINKAGE_OPTION}=cpu:0, or {remedy}"
    remedy = f"Set {remedy}"
    planned = profile.planned_block_bytes
    if planned < MIN_NAMED_SHARE * _profile_slack_bytes(profile):
        return cause, remedy
    cause += (
        f" {format_size(planned)} came in the second run: the memory pattern plans one block for"
        " all values, next to what the first run took."
    )
    return cause, f"{remedy} enable_mem_pattern=False avoids the second run's block."


def _kept_model_bytes(profile: Profile) -> int:
    """Return the bytes from which the session was created, and which it keeps without need."""
    session = profile.session
    is_used = session.options.get(ORT_BYTES_OPTION) == "1"
    is_kept = session.load_from == "bytes" and not is_used
    return profile.model.file_bytes if is_kept and profile.steady_rss_bytes is not None else 0


def _retained_advice(profile: Profile) -> tuple[str, str]:
    """Return why malloc retains memory, and the setting that ends it."""
    allocator = profile.attribution.allocator if profile.attribution else None
    if allocator in _QUICK_RETURN_SETTINGS:
        return (
            f"{allocator} keeps freed pages for later blocks.",
            f"Start the process with {_QUICK_RETURN_SETTINGS[allocator]}, so that {allocator}"
            " returns freed pages at once.",
        )
    return "malloc keeps freed blocks of less than 32 MiB in its heap.", _malloc_remedy(profile)


def _malloc_remedy(profile: Profile) -> str:
    """Return what lets glibc's malloc return freed memory, with what was measured; best first."""
    trimmed, saved = profile.allocator_retained_bytes or 0, profile.threshold_saved_bytes
    steps: list[tuple[int, str]] = []
    if trimmed >= _NOTABLE_SHARE * _retained_bytes(profile):
        steps.append(
            (
                trimmed,
                "Call malloc_trim(0) after the first runs, in Python ctypes.CDLL(None)."
                f"malloc_trim(0): it returned {format_size(trimmed)} here; later runs may take some"
                " of it again.",
            )
        )
    setting = f"Start the process with {PINNED_TEXT}, so that malloc returns freed blocks from"
    if MMAP_THRESHOLD_VARIABLE in profile.session.environment:
        pass  # it is set already
    elif saved is None:
        steps.append((0, f"{setting} 128 KiB on at once."))
    elif saved >= _NOTABLE_SHARE * _retained_bytes(profile):
        text = f"{setting} 128 KiB on at once: another process had {format_size(saved)} less."
        steps.append((saved, text))
    steps.sort(key=lambda step: -step[0])
    first, *others = [text for _, text in steps] or [""]
    return " ".join([first, *(f"Or {text[:1].lower()}{text[1:]}" for text in others)])


def _largest_unused_part(profile: Profile) -> MemoryPart | None:
    """Return the unused part that is larger than what all findings could save, or None."""
    parts = named_parts(profile)
    if not parts or parts[0].size_bytes <= _avoidable_bytes(profile):
        return None
    return parts[0]


def _avoidable_bytes(profile: Profile) -> int:
    """Return the bytes that the remedies of findings could save."""
    costly = _findings_beyond_slack(profile)
    worst = _worst_finding(costly)
    if worst is None:
        return 0
    if not worst.bytes:
        return worst.peak_bytes if worst.remedies else 0
    steady = profile.steady_above_bytes or 0
    size = sum(each.bytes for each in costly if each.remedies and not each.is_private)
    return min(size, steady) if steady > 0 else size


def _findings_beyond_slack(profile: Profile) -> list[Finding]:
    """Return the costly findings. Findings about the arena are left out if its slack is stated."""
    has_slack = any(part.label == ARENA_SLACK for part in named_parts(profile))
    return [
        finding
        for finding in _unrefuted_costly_findings(profile.findings)
        if not (has_slack and _ARENA_REMEDY in finding.remedies)
    ]


def _unused_sentence(profile: Profile, part: MemoryPart) -> str:
    if not part.is_steady:
        return transient_peak_sentence(profile)
    whole, state = profile.peak_rss_bytes, "at the peak"
    if profile.steady_rss_bytes is not None:
        whole, state = profile.steady_rss_bytes, "at steady state"
    above = format_size(whole - profile.baseline_rss_bytes)
    return f"{format_size(part.size_bytes)} of the {above} {state} is {part.label}: {part.meaning}."


def _also_avoidable_sentence(profile: Profile, largest: MemoryPart | None) -> str:
    """Return the other avoidable memory in a sentence; empty for none."""
    worst = _worst_finding(_findings_beyond_slack(profile))
    parts = [part for part in named_parts(profile) if part != largest]
    if largest is None and worst is not None and not worst.bytes:
        # The result states already what only the peak needs.
        parts = [part for part in parts if part.is_steady]
    others = [f"{format_size(part.size_bytes)} {part.label}" for part in parts]
    avoidable = _avoidable_bytes(profile) if largest else 0
    if avoidable and worst is not None:
        others.insert(0, f"up to {format_size(avoidable)} by the remedies of {plain(worst.name)}")
    sentence = f" Also avoidable: {', '.join(others)}." if others else ""
    return sentence if profile.attribution or not largest else f"{sentence} {_NO_XRAY_SENTENCE}"


def _unrefuted_costly_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that cost memory and were not refuted."""
    return [f for f in findings if f.evidence != "refuted" and (f.bytes or f.peak_bytes)]


def _worst_finding(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding whose remedies can save most memory; None if none costs any.

    A finding without a remedy is returned if no finding has one.
    """
    return max(
        _unrefuted_costly_findings(findings),
        key=lambda f: (bool(f.remedies), not f.is_private, f.bytes, f.peak_bytes),
        default=None,
    )


def _waste_sentence(profile: Profile, worst: Finding) -> str:
    steady = profile.steady_above_bytes or 0
    copies = _copies_clause(profile, worst)
    unsaved = _unsaved_memory_sentence(profile.findings)
    if not worst.bytes:
        start = f"Loading needs {format_size(worst.peak_bytes)} more than necessary{copies}."
        return start + (unsaved or " The steady state does not.")
    if not worst.remedies:
        return f"A part of the memory is waste{copies}, but no remedy saves it.{unsaved}"
    if steady <= 0:
        return f"{format_size(worst.bytes)} could be saved{copies}.{unsaved}"
    if worst.is_private:
        return (
            f"{format_size(worst.bytes)} of the {format_size(steady)} is private{copies}, and could"
            " be mapped instead: shared by processes, and given back where memory is short. The"
            f" resident set stays as large.{unsaved}"
        )
    saving = [
        each
        for each in _unrefuted_costly_findings(profile.findings)
        if each.remedies and not each.is_private
    ]
    saving_bytes = min(sum(finding.bytes for finding in saving), steady)
    share = saving_bytes / steady
    if share >= _LARGE_SHARE:
        start = "Most of the memory is waste"
    elif share >= _NOTABLE_SHARE:
        start = "A part of the memory is waste"
    else:
        start = "A little of the memory is waste"
    up_to = "Up to" if worst.evidence == "measured" else "By the rules, up to"
    could = f"{up_to} {format_size(saving_bytes)} of {format_size(steady)} could be saved."
    return f"{start}{copies}. {could}{unsaved}"


def _unsaved_memory_sentence(findings: Sequence[Finding]) -> str:
    """Return the sentence on the steady memory of findings without a remedy; empty for none."""
    unsaved = [
        finding
        for finding in _unrefuted_costly_findings(findings)
        if finding.bytes and not finding.remedies
    ]
    if not unsaved:
        return ""
    size = format_size(sum(finding.bytes for finding in unsaved))
    names = listed_names([finding.name for finding in unsaved], limit=_MAX_ADVISED_NAMES)
    name = "finding" if len(unsaved) == 1 else "findings"
    return f" No rewrite saves the {size} of the {name} {names}."


def _copies_clause(profile: Profile, worst: Finding) -> str:
    """Return the clause on the weight of `worst` with several copies; empty without one."""
    if profile.attribution is None:
        return ""
    concerned = {plain(name) for name in worst.weights}
    for row in weight_rows(profile.attribution):
        count = row.count - row.freed_count
        if count > 1 and concerned.intersection(row.names):
            size = format_size(max(copy.size_bytes // copy.count for copy in row.copies))
            times = _TIMES_IN_WORDS.get(count, f"{count} times")
            return f": {row.titled(_MAX_WEIGHT_NAME)} ({size}) is in memory {times}"
    return ""


def _no_waste_sentence(profile: Profile) -> str:
    base = profile.baseline_rss_bytes
    steady = max(0, (profile.steady_rss_bytes or profile.peak_rss_bytes) - base)
    factor = weight_factor(profile, steady)
    size = format_size(steady) + (f", {factor} its weights" if factor else "")
    xray = "" if profile.attribution else f" {_NO_XRAY_SENTENCE}"
    if limits := _no_rules_reason(profile):
        return f"The model keeps {size}. {limits}{xray}"
    if xray:
        return f"The file has no waste that is known, and the model keeps {size}.{xray}"
    return f"No waste was found: the model keeps {size}."


def _no_rules_reason(profile: Profile) -> str:
    """Return why there are no rules and remedies for the session; empty if there are."""
    if profile.session.providers and not profile.session.prefers_cpu:
        return "The rules for waste are for the CPU provider only."
    if is_older(profile.environment.onnxruntime, OLDEST_PREDICTED_RELEASE):
        return f"No rule was applied: {PREDICTED_RELEASES}."
    return ""


def _result_reason(profile: Profile, worst: Finding | None, largest: MemoryPart | None) -> str:
    reason = largest.cause if largest is not None else ""
    if worst is not None and not reason:
        reason = _finding_reason(worst)
    # The result states the cause of the peak if that is the largest part, and so does a finding
    # about the peak alone.
    is_stated = largest is not None and not largest.is_steady
    is_stated |= worst is not None and not worst.bytes and worst.phase == profile.peak_phase
    if is_above_steady(profile) and not is_stated:
        reason = f"{transient_peak_sentence(profile)} {reason}".strip()
    return reason or _peak_span_sentence(profile)


def _finding_reason(finding: Finding) -> str:
    text = plain(finding.message).rstrip(".") + "."
    doubt = "" if finding.evidence == "measured" else " (Predicted from the model file.)"
    return textwrap.shorten(text, MAX_REASON_LENGTH, placeholder=" …") + doubt


def _peak_span_sentence(profile: Profile) -> str:
    grown = responsible_span(profile, profile.peak_phase)
    if grown is None:
        return ""
    return f"The peak is in {profile.peak_phase}, where {grown.name} took {grown.sentence}."


def _advice_steps(profile: Profile, largest: MemoryPart | None) -> tuple[AdviceStep, ...]:
    model = shlex.quote(plain(profile.model.path)) + dim_option(profile.dimensions)
    model += input_option(profile.command)
    if profile.outcome.status == "failed":
        if CUSTOM_OPS_OPTION not in profile.outcome.message:
            return (AdviceStep("Solve the error above first."),)
        return (
            AdviceStep(
                "Load the library of its operators:", f"memdiag profile {model} {CUSTOM_OPS_OPTION}"
            ),
            AdviceStep("Or measure it in the program that loads it:", RUN_PROGRAM_COMMAND),
        )
    # No rewrite and no option lowers the resident set of what only private memory is saved of.
    costly = [each for each in _unrefuted_costly_findings(profile.findings) if not each.is_private]
    tuning = _option_steps(profile, costly, model, largest)
    if not profile.outcome.completed:
        if profile.outcome.cause == "interrupt":
            return (AdviceStep("Run it again to the end: the steady state is not known."),)
        if profile.outcome.cause == "crash":
            text = "onnxruntime crashed: try other session options or another version of it:"
            return (AdviceStep(text, f"memdiag compare {model} --onnxruntime latest"),)
        text = "Give it more time or memory, or look for session options that need less:"
        tuning = [AdviceStep(text, f"memdiag fix {model}")]
    fixing = _fix_steps(costly, model)
    steps = [*tuning, *fixing] if largest else [*fixing, *tuning]
    if steps and not tuning:
        steps += _lever_steps(profile, model, _avoidable_bytes(profile), "Besides,")
    if steps:
        return tuple(_merged_steps(steps))
    worst = _worst_finding(profile.findings)
    if worst is not None and worst.is_private:
        text = "See what the weights are worth unpacked: private memory, and the latency:"
        option = "--session-option session.disable_prepacking=1"
        return (AdviceStep(text, f"memdiag profile {model} {option}"),)
    if worst is not None:
        text = (
            f"There is no remedy that can be applied{_rewrite_refusal_text(costly)}. The"
            " documentation of the rule:"
        )
        return (AdviceStep(text, f"memdiag explain {worst.name}"),)
    if _no_rules_reason(profile):
        return (AdviceStep("See which copies of weights the X-ray found, and in which step."),)
    nothing = AdviceStep("Nothing: no rewrite and no session option is expected to save much.")
    if profile.attribution is None:
        nothing = AdviceStep("An X-ray would tell whether memory is free or copied.")
    levers = _lever_steps(profile, model, 0, "No rule applies, but")
    return tuple(levers) or (nothing,)


def _merged_steps(steps: Sequence[AdviceStep]) -> list[AdviceStep]:
    """Return `steps`, those that follow each other with the same command as one."""
    merged: list[AdviceStep] = []
    for step in steps:
        if merged and step.command and merged[-1].command == step.command:
            text = merged[-1].text.removesuffix(":")
            step = AdviceStep(f"{text}. {step.text}", step.command)
            merged.pop()
        merged.append(step)
    return merged


def _lever_steps(profile: Profile, model: str, least_bytes: int, start: str) -> list[AdviceStep]:
    """Return what may still save memory where no rule applies: most of a small model's memory.

    Parts that take together no more than `least_bytes`, or a tenth of the memory, are left out.
    """
    if _no_rules_reason(profile):
        return []
    above = profile.steady_above_bytes or 0
    least_part = _NAMED_SHARE * above  # advice about less is noise
    levers = [part for part in _steady_memory_parts(profile) if part.label in _LEVER_BY_PART]
    parts = [part for part in levers if part.size_bytes >= least_part]
    size = sum(part.size_bytes for part in parts)
    if size < max(MIB, _NOTABLE_SHARE * above) or size <= least_bytes:
        return []
    named = ", ".join(f"{part.text} ({_LEVER_BY_PART[part.label]})" for part in parts)
    text = f"{start} a part of this may be saved: {named}. Measure it:"
    return [AdviceStep(text, f"memdiag fix {model}")]


def _fix_steps(costly: Sequence[Finding], model: str) -> list[AdviceStep]:
    """Return the step that rewrites the model, if a rewrite can be applied or may be."""
    rewrites = [name for finding in costly for name in finding.rewrites or ()]
    if rewrites:
        text = (
            f"Try {listed_names(rewrites, limit=_MAX_ADVISED_NAMES)} on a copy, kept only if its"
            " outputs, memory and latency are verified:"
        )
        return [AdviceStep(text, f"memdiag fix {model}")]
    if any(finding.rewrites is None and finding.remedies for finding in costly):
        text = "Try the rewrites that can be applied to the model:"
        return [AdviceStep(text, f"memdiag fix {model}")]
    return []


def _option_steps(
    profile: Profile, costly: Sequence[Finding], model: str, largest: MemoryPart | None
) -> list[AdviceStep]:
    """Return the step that searches session options, if they can be expected to save memory."""
    if _no_rules_reason(profile):  # nor does memdiag fix measure such sessions
        return [AdviceStep(largest.remedy)] if largest is not None and largest.remedy else []
    # Without an applicable rewrite, the other remedies of a finding are session options.
    not_rewritable = [finding for finding in costly if finding.rewrites == ()]
    options = [name for finding in not_rewritable for name in finding.remedies]
    names = listed_names(options, limit=_MAX_ADVISED_NAMES)
    if largest is not None and largest.label == MODEL_BYTES_LABEL:
        return [AdviceStep(largest.remedy)]
    part = largest if largest is None or largest.remedy else _largest_with_remedy(profile)
    if part is not None:
        others = f" ({names})" if options else ""
        what = "other settings" if part.label == RETAINED else "this and other settings"
        text = f"{part.remedy} Measure what {what}{others} save:"
    elif options:
        text = f"Measure session options, such as {names}:"
        if not any(finding.rewrites for finding in costly):
            refusal = _rewrite_refusal_text(not_rewritable)
            text = f"No rewrite can be applied to this model{refusal}. {text}"
    elif is_tunable(profile):
        size = format_size(sum(part.size_bytes for part in unused_parts(profile)))
        text = (
            f"Measure which session options avoid some of the {size} of loading and allocators at"
            " the peak:"
        )
    else:
        return []
    return [AdviceStep(text, f"memdiag fix {model}")]


def _largest_with_remedy(profile: Profile) -> MemoryPart | None:
    """Return the largest named part that a setting ends; None if it is small or there is none."""
    part = next((each for each in named_parts(profile) if each.remedy), None)
    return part if part is not None and part.size_bytes >= 2 * MIN_UNUSED_BYTES else None


def _rewrite_refusal_text(findings: Sequence[Finding]) -> str:
    """Return why no rewrite can be applied, in parentheses; empty if unknown."""
    reason = next((plain(finding.refusal) for finding in findings if finding.refusal), "")
    return f" ({shortened(reason, _MAX_REFUSAL)})" if reason else ""
