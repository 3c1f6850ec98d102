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
"""Share of the peak above the baseline from which on session options are recommended, if it is
unused: arena slack, memory that malloc retains, and memory that is resident only for a moment."""

MIN_NAMED_SHARE = 0.1
"""Share of the peak from which on an unused part is named in addition to findings."""

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
"""The setting that makes an allocator return freed pages at once, by the allocator's name."""


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
            setting that avoids it.
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
        steady: the parts of the steady memory above the baseline; empty without an X-ray.
        steps: at least one recommended action.
    """

    result: str
    reason: str
    steady: str
    steps: tuple[AdviceStep, ...]


def profile_advice(profile: Profile) -> ProfileAdvice:
    """Return the answer of `profile`: result, reason and recommended actions."""
    worst_finding = _worst_finding(profile.findings)
    largest_part = _largest_unused_part(profile)
    if not profile.outcome.completed:
        result = f"The run did not complete. {profile_headline(profile).first}"
    elif largest_part is not None:
        result = _unused_sentence(profile, largest_part)
        result += _also_avoidable_sentence(profile, largest_part)
    elif worst_finding is not None:
        result = (
            f"{_waste_sentence(profile, worst_finding)}{_also_avoidable_sentence(profile, None)}"
        )
    else:
        result = _no_waste_sentence(profile)
    return ProfileAdvice(
        result=result,
        reason=_result_reason(profile, worst_finding, largest_part),
        steady=_steady_parts_sentence(profile),
        steps=_advice_steps(profile, largest_part),
    )


def _steady_parts_sentence(profile: Profile) -> str:
    parts = _steady_memory_parts(profile)
    min_named_bytes = _NAMED_SHARE * sum(part.size_bytes for part in parts)
    named_count = sum(part.size_bytes >= min_named_bytes for part in parts)
    texts = [part.text for part in parts]
    return f"{some_of(texts, min(named_count, _MAX_PARTS), ' · ')}." if parts else ""


def _steady_memory_parts(profile: Profile) -> tuple[MemoryPart, ...]:
    """Return the parts of the steady memory above the baseline, the largest first.

    Empty without an X-ray.
    """
    attribution = profile.attribution
    if attribution is None:
        return ()
    owners_by_label: dict[str, tuple[OwnerKind, ...]] = {
        "weights": ("weights", "external_data"),
        "KV cache": ("kv_cache",),
        "other heap": ("other_heap",),
        "thread stacks": ("thread_stacks",),
    }
    slack = _profile_slack_bytes(profile)
    return _ordered_memory_parts(
        *(
            MemoryPart(label, sum(map(attribution.bytes_of, owners)))
            for label, owners in owners_by_label.items()
        ),
        MemoryPart(ARENA_SLACK, slack),
        MemoryPart("arena in use", attribution.bytes_of("arena") - slack),
        MemoryPart(RETAINED, _retained_bytes(profile)),
        MemoryPart("shared library pages", runtime_bytes(profile)),
    )


def unused_parts(profile: Profile) -> tuple[MemoryPart, ...]:
    """Return the parts of the peak that neither weights nor kernels need, the largest first."""
    steady_rss_bytes = profile.steady_rss_bytes
    transient_bytes = 0 if steady_rss_bytes is None else profile.peak_rss_bytes - steady_rss_bytes
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
        MemoryPart(f"needed only in {profile.peak_phase}", transient_bytes, is_steady=False),
    )


def named_parts(profile: Profile) -> tuple[MemoryPart, ...]:
    """Return the unused parts that belong in the answer, the largest first.

    If their sum is large (see `is_tunable`), these are all parts. Otherwise they are only the large
    parts, and only if there is a finding.
    """
    parts = unused_parts(profile)
    if is_tunable(profile):
        return parts
    if all(finding.evidence == "refuted" for finding in profile.findings):
        return ()
    peak_above_bytes = profile.peak_above_bytes
    min_named_bytes = max(MIN_UNUSED_BYTES, MIN_NAMED_SHARE * peak_above_bytes)
    return tuple(part for part in parts if part.size_bytes >= min_named_bytes)


def is_tunable(profile: Profile) -> bool:
    """Return whether so much of the peak is unused that session options are worth a try."""
    peak_above_bytes = profile.peak_above_bytes
    unused_bytes = sum(part.size_bytes for part in unused_parts(profile))
    return unused_bytes >= max(MIN_UNUSED_BYTES, MIN_UNUSED_SHARE * peak_above_bytes)


def _ordered_memory_parts(*parts: MemoryPart) -> tuple[MemoryPart, ...]:
    notable_parts = (part for part in parts if part.size_bytes >= _MIN_PART_BYTES)
    return tuple(sorted(notable_parts, key=lambda part: -part.size_bytes))


def _profile_slack_bytes(profile: Profile) -> int:
    return profile.attribution.arena_slack_bytes if profile.attribution else 0


def _retained_bytes(profile: Profile) -> int:
    """Return the bytes that malloc retained, before and after ``malloc_trim``."""
    bytes_after_trim = (
        profile.attribution.bytes_of("allocator_retained") if profile.attribution else 0
    )
    return bytes_after_trim + max(0, profile.allocator_retained_bytes or 0)


def _slack_advice(profile: Profile) -> tuple[str, str]:
    """Return why the arena has slack, and the settings that avoid it."""
    cause = "The arena keeps all memory that a run needed, and grows by doubling."
    remedy = f"enable_cpu_mem_arena=False with {PINNED_TEXT}."
    if SHRINKAGE_OPTION not in profile.session.run_options:
        remedy = f"the run option {SHRINKAGE_OPTION}=cpu:0, or {remedy}"
    remedy = f"Set {remedy}"
    planned_bytes = profile.planned_block_bytes
    if planned_bytes < MIN_NAMED_SHARE * _profile_slack_bytes(profile):
        return cause, remedy
    cause += (
        f" {format_size(planned_bytes)} came in the second run: the memory pattern plans one block"
        " for all values, next to what the first run took."
    )
    return cause, f"{remedy} enable_mem_pattern=False avoids the second run's block."


def _kept_model_bytes(profile: Profile) -> int:
    """Return the size of the model's bytes that the session keeps without need."""
    session = profile.session
    is_used = session.options.get(ORT_BYTES_OPTION) == "1"
    is_kept = session.load_from == "bytes" and not is_used
    return profile.model.file_bytes if is_kept and profile.steady_rss_bytes is not None else 0


def _retained_advice(profile: Profile) -> tuple[str, str]:
    """Return why malloc retains memory, and the setting that avoids it."""
    allocator = profile.attribution.allocator if profile.attribution else None
    if allocator in _QUICK_RETURN_SETTINGS:
        return (
            f"{allocator} keeps freed pages for later blocks.",
            f"Start the process with {_QUICK_RETURN_SETTINGS[allocator]}, so that {allocator}"
            " returns freed pages at once.",
        )
    return "malloc keeps freed blocks of less than 32 MiB in its heap.", _malloc_remedy(profile)


def _malloc_remedy(profile: Profile) -> str:
    """Return what makes glibc's malloc return freed memory, and how much, the best remedy first."""
    trimmed_bytes, saved_bytes = (
        profile.allocator_retained_bytes or 0,
        profile.threshold_saved_bytes,
    )
    steps: list[tuple[int, str]] = []
    if trimmed_bytes >= _NOTABLE_SHARE * _retained_bytes(profile):
        steps.append(
            (
                trimmed_bytes,
                "Call malloc_trim(0) after the first runs, in Python ctypes.CDLL(None)."
                f"malloc_trim(0): it returned {format_size(trimmed_bytes)} here; later runs may"
                " take some of it again.",
            )
        )
    setting = f"Start the process with {PINNED_TEXT}, so that malloc returns freed blocks from"
    if MMAP_THRESHOLD_VARIABLE in profile.session.environment:
        pass  # it is set already
    elif saved_bytes is None:
        steps.append((0, f"{setting} 128 KiB on at once."))
    elif saved_bytes >= _NOTABLE_SHARE * _retained_bytes(profile):
        text = f"{setting} 128 KiB on at once: another process had {format_size(saved_bytes)} less."
        steps.append((saved_bytes, text))
    steps.sort(key=lambda step: -step[0])
    first_text, *other_texts = [text for _, text in steps] or [""]
    return " ".join([first_text, *(f"Or {text[:1].lower()}{text[1:]}" for text in other_texts)])


def _largest_unused_part(profile: Profile) -> MemoryPart | None:
    """Return the largest unused part if it is larger than all that findings could save."""
    parts = named_parts(profile)
    if not parts or parts[0].size_bytes <= _avoidable_bytes(profile):
        return None
    return parts[0]


def _avoidable_bytes(profile: Profile) -> int:
    """Return the bytes that the remedies of findings could save."""
    costly_findings = _findings_beyond_slack(profile)
    worst_finding = _worst_finding(costly_findings)
    if worst_finding is None:
        return 0
    if not worst_finding.bytes:
        return worst_finding.peak_bytes if worst_finding.remedies else 0
    steady_above_bytes = profile.steady_above_bytes or 0
    avoidable_bytes = sum(
        finding.bytes for finding in costly_findings if finding.remedies and not finding.is_private
    )
    return min(avoidable_bytes, steady_above_bytes) if steady_above_bytes > 0 else avoidable_bytes


def _findings_beyond_slack(profile: Profile) -> list[Finding]:
    """Return the costly findings, without findings about the arena if its slack is stated."""
    has_slack = any(part.label == ARENA_SLACK for part in named_parts(profile))
    return [
        finding
        for finding in _unrefuted_costly_findings(profile.findings)
        if not (has_slack and _ARENA_REMEDY in finding.remedies)
    ]


def _unused_sentence(profile: Profile, part: MemoryPart) -> str:
    if not part.is_steady:
        return transient_peak_sentence(profile)
    rss_bytes, state = profile.peak_rss_bytes, "at the peak"
    if profile.steady_rss_bytes is not None:
        rss_bytes, state = profile.steady_rss_bytes, "at steady state"
    size = format_size(rss_bytes - profile.baseline_rss_bytes)
    return f"{format_size(part.size_bytes)} of the {size} {state} is {part.label}: {part.meaning}."


def _also_avoidable_sentence(profile: Profile, largest_part: MemoryPart | None) -> str:
    """Return a sentence on other avoidable memory; empty if there is none."""
    worst_finding = _worst_finding(_findings_beyond_slack(profile))
    parts = [part for part in named_parts(profile) if part != largest_part]
    if largest_part is None and worst_finding is not None and not worst_finding.bytes:
        # The result already states what only the peak needs.
        parts = [part for part in parts if part.is_steady]
    avoidable_texts = [f"{format_size(part.size_bytes)} {part.label}" for part in parts]
    avoidable_bytes = _avoidable_bytes(profile) if largest_part else 0
    if avoidable_bytes and worst_finding is not None:
        avoidable_texts.insert(
            0,
            f"up to {format_size(avoidable_bytes)} by the remedies of {plain(worst_finding.name)}",
        )
    sentence = f" Also avoidable: {', '.join(avoidable_texts)}." if avoidable_texts else ""
    return (
        sentence if profile.attribution or not largest_part else f"{sentence} {_NO_XRAY_SENTENCE}"
    )


def _unrefuted_costly_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that cost memory and were not refuted."""
    return [
        finding
        for finding in findings
        if finding.evidence != "refuted" and (finding.bytes or finding.peak_bytes)
    ]


def _worst_finding(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding whose remedies can save most memory; None if none costs any.

    A finding without a remedy is returned if no finding has one.
    """
    return max(
        _unrefuted_costly_findings(findings),
        key=lambda finding: (
            bool(finding.remedies),
            not finding.is_private,
            finding.bytes,
            finding.peak_bytes,
        ),
        default=None,
    )


def _waste_sentence(profile: Profile, worst_finding: Finding) -> str:
    steady_above_bytes = profile.steady_above_bytes or 0
    copies_clause = _copies_clause(profile, worst_finding)
    unremedied_sentence = _unsaved_memory_sentence(profile.findings)
    if not worst_finding.bytes:
        size = format_size(worst_finding.peak_bytes)
        start = f"Loading needs {size} more than necessary{copies_clause}."
        return start + (unremedied_sentence or " The steady state does not.")
    if not worst_finding.remedies:
        start = f"A part of the memory is waste{copies_clause}, but no remedy saves it."
        return start + unremedied_sentence
    if steady_above_bytes <= 0:
        size = format_size(worst_finding.bytes)
        return f"{size} could be saved{copies_clause}.{unremedied_sentence}"
    if worst_finding.is_private:
        return (
            f"{format_size(worst_finding.bytes)} of the {format_size(steady_above_bytes)} is"
            f" private{copies_clause}, and could be mapped instead: shared by processes, and given"
            f" back where memory is short. The resident set stays as large.{unremedied_sentence}"
        )
    remediable = [
        finding
        for finding in _unrefuted_costly_findings(profile.findings)
        if finding.remedies and not finding.is_private
    ]
    avoidable_bytes = min(sum(finding.bytes for finding in remediable), steady_above_bytes)
    share = avoidable_bytes / steady_above_bytes
    if share >= _LARGE_SHARE:
        start = "Most of the memory is waste"
    elif share >= _NOTABLE_SHARE:
        start = "A part of the memory is waste"
    else:
        start = "A little of the memory is waste"
    bound = "Up to" if worst_finding.evidence == "measured" else "By the rules, up to"
    sizes = f"{format_size(avoidable_bytes)} of {format_size(steady_above_bytes)}"
    return f"{start}{copies_clause}. {bound} {sizes} could be saved.{unremedied_sentence}"


def _unsaved_memory_sentence(findings: Sequence[Finding]) -> str:
    """Return a sentence on the steady memory of findings without a remedy; empty for none."""
    unremedied = [
        finding
        for finding in _unrefuted_costly_findings(findings)
        if finding.bytes and not finding.remedies
    ]
    if not unremedied:
        return ""
    size = format_size(sum(finding.bytes for finding in unremedied))
    names = listed_names([finding.name for finding in unremedied], limit=_MAX_ADVISED_NAMES)
    name = "finding" if len(unremedied) == 1 else "findings"
    return f" No rewrite saves the {size} of the {name} {names}."


def _copies_clause(profile: Profile, worst_finding: Finding) -> str:
    """Return the clause on the weight of `worst_finding` with several copies; empty without one."""
    if profile.attribution is None:
        return ""
    weight_names = {plain(name) for name in worst_finding.weights}
    for row in weight_rows(profile.attribution):
        count = row.count - row.freed_count
        if count > 1 and weight_names.intersection(row.names):
            size = format_size(max(copy.size_bytes // copy.count for copy in row.copies))
            times = _TIMES_IN_WORDS.get(count, f"{count} times")
            return f": {row.shortened_title(_MAX_WEIGHT_NAME)} ({size}) is in memory {times}"
    return ""


def _no_waste_sentence(profile: Profile) -> str:
    baseline_bytes = profile.baseline_rss_bytes
    steady_bytes = max(0, (profile.steady_rss_bytes or profile.peak_rss_bytes) - baseline_bytes)
    factor = weight_factor(profile, steady_bytes)
    size = format_size(steady_bytes) + (f", {factor} its weights" if factor else "")
    xray_sentence = "" if profile.attribution else f" {_NO_XRAY_SENTENCE}"
    if reason := _no_rules_reason(profile):
        return f"The model keeps {size}. {reason}{xray_sentence}"
    if xray_sentence:
        return f"The file has no waste that is known, and the model keeps {size}.{xray_sentence}"
    return f"No waste was found: the model keeps {size}."


def _no_rules_reason(profile: Profile) -> str:
    """Return why no rules and remedies apply to the session; empty if they do."""
    if profile.session.providers and not profile.session.prefers_cpu:
        return "The rules for waste are for the CPU provider only."
    if is_older(profile.environment.onnxruntime, OLDEST_PREDICTED_RELEASE):
        return f"No rule was applied: {PREDICTED_RELEASES}."
    return ""


def _result_reason(
    profile: Profile, worst_finding: Finding | None, largest_part: MemoryPart | None
) -> str:
    reason = largest_part.cause if largest_part is not None else ""
    if worst_finding is not None and not reason:
        reason = _finding_reason(worst_finding)
    # The cause of the peak is stated already if the peak is the largest part, or if the finding is
    # about the peak alone.
    is_stated = largest_part is not None and not largest_part.is_steady
    is_stated |= (
        worst_finding is not None
        and not worst_finding.bytes
        and worst_finding.phase == profile.peak_phase
    )
    if is_above_steady(profile) and not is_stated:
        reason = f"{transient_peak_sentence(profile)} {reason}".strip()
    return reason or _peak_span_sentence(profile)


def _finding_reason(finding: Finding) -> str:
    text = plain(finding.message).rstrip(".") + "."
    remark = "" if finding.evidence == "measured" else " (Predicted from the model file.)"
    return textwrap.shorten(text, MAX_REASON_LENGTH, placeholder=" …") + remark


def _peak_span_sentence(profile: Profile) -> str:
    span = responsible_span(profile, profile.peak_phase)
    if span is None:
        return ""
    return f"The peak is in {profile.peak_phase}, where {span.name} took {span.sentence}."


def _advice_steps(profile: Profile, largest_part: MemoryPart | None) -> tuple[AdviceStep, ...]:
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
    # What saves only private memory does not lower the resident set.
    costly_findings = [
        finding
        for finding in _unrefuted_costly_findings(profile.findings)
        if not finding.is_private
    ]
    option_steps = _option_steps(profile, costly_findings, model, largest_part)
    if not profile.outcome.completed:
        if profile.outcome.cause == "interrupt":
            return (AdviceStep("Run it again to the end: the steady state is not known."),)
        if profile.outcome.cause == "crash":
            text = "onnxruntime crashed: try other session options or another version of it:"
            return (AdviceStep(text, f"memdiag compare {model} --onnxruntime latest"),)
        text = "Give it more time or memory, or look for session options that need less:"
        option_steps = [AdviceStep(text, f"memdiag fix {model}")]
    rewrite_steps = _fix_steps(costly_findings, model)
    steps = [*option_steps, *rewrite_steps] if largest_part else [*rewrite_steps, *option_steps]
    if steps and not option_steps:
        steps += _lever_steps(profile, model, _avoidable_bytes(profile), "Besides,")
    if steps:
        return tuple(_merged_steps(steps))
    worst_finding = _worst_finding(profile.findings)
    if worst_finding is not None and worst_finding.is_private:
        text = "See what the weights are worth unpacked: private memory, and the latency:"
        option = "--session-option session.disable_prepacking=1"
        return (AdviceStep(text, f"memdiag profile {model} {option}"),)
    if worst_finding is not None:
        text = (
            f"There is no remedy that can be applied{_rewrite_refusal_text(costly_findings)}. The"
            " documentation of the rule:"
        )
        return (AdviceStep(text, f"memdiag explain {worst_finding.name}"),)
    if _no_rules_reason(profile):
        return (AdviceStep("See which copies of weights the X-ray found, and in which step."),)
    last_step = AdviceStep("Nothing: no rewrite and no session option is expected to save much.")
    if profile.attribution is None:
        last_step = AdviceStep("An X-ray would tell whether memory is free or copied.")
    lever_steps = _lever_steps(profile, model, 0, "No rule applies, but")
    return tuple(lever_steps) or (last_step,)


def _merged_steps(steps: Sequence[AdviceStep]) -> list[AdviceStep]:
    """Return `steps`, with successive steps of the same command merged into one."""
    merged_steps: list[AdviceStep] = []
    for step in steps:
        if merged_steps and step.command and merged_steps[-1].command == step.command:
            text = merged_steps[-1].text.removesuffix(":")
            step = AdviceStep(f"{text}. {step.text}", step.command)
            merged_steps.pop()
        merged_steps.append(step)
    return merged_steps


def _lever_steps(profile: Profile, model: str, min_bytes: int, start: str) -> list[AdviceStep]:
    """Return a step for parts of the memory that no rule is about, which is most of a small model.

    Empty if these parts together take no more than `min_bytes`, or a tenth of the memory.
    """
    if _no_rules_reason(profile):
        return []
    steady_above_bytes = profile.steady_above_bytes or 0
    min_part_bytes = _NAMED_SHARE * steady_above_bytes  # advice about less is noise
    lever_parts = [part for part in _steady_memory_parts(profile) if part.label in _LEVER_BY_PART]
    parts = [part for part in lever_parts if part.size_bytes >= min_part_bytes]
    parts_bytes = sum(part.size_bytes for part in parts)
    if parts_bytes < max(MIB, _NOTABLE_SHARE * steady_above_bytes) or parts_bytes <= min_bytes:
        return []
    part_texts = ", ".join(f"{part.text} ({_LEVER_BY_PART[part.label]})" for part in parts)
    text = f"{start} a part of this may be saved: {part_texts}. Measure it:"
    return [AdviceStep(text, f"memdiag fix {model}")]


def _fix_steps(costly_findings: Sequence[Finding], model: str) -> list[AdviceStep]:
    """Return the step that rewrites the model, if a rewrite can be applied or may apply."""
    rewrites = [name for finding in costly_findings for name in finding.rewrites or ()]
    if rewrites:
        text = (
            f"Try {listed_names(rewrites, limit=_MAX_ADVISED_NAMES)} on a copy, kept only if its"
            " outputs, memory and latency are verified:"
        )
        return [AdviceStep(text, f"memdiag fix {model}")]
    if any(finding.rewrites is None and finding.remedies for finding in costly_findings):
        text = "Try the rewrites that can be applied to the model:"
        return [AdviceStep(text, f"memdiag fix {model}")]
    return []


def _option_steps(
    profile: Profile,
    costly_findings: Sequence[Finding],
    model: str,
    largest_part: MemoryPart | None,
) -> list[AdviceStep]:
    """Return the step that searches session options, if these are expected to save memory."""
    if _no_rules_reason(profile):  # nor does memdiag fix measure such sessions
        return (
            [AdviceStep(largest_part.remedy)]
            if largest_part is not None and largest_part.remedy
            else []
        )
    # Without an applicable rewrite, the other remedies of a finding are session options.
    option_findings = [finding for finding in costly_findings if finding.rewrites == ()]
    options = [name for finding in option_findings for name in finding.remedies]
    names = listed_names(options, limit=_MAX_ADVISED_NAMES)
    if largest_part is not None and largest_part.label == MODEL_BYTES_LABEL:
        return [AdviceStep(largest_part.remedy)]
    part = (
        largest_part
        if largest_part is None or largest_part.remedy
        else _largest_with_remedy(profile)
    )
    if part is not None:
        option_names = f" ({names})" if options else ""
        settings = "other settings" if part.label == RETAINED else "this and other settings"
        text = f"{part.remedy} Measure what {settings}{option_names} save:"
    elif options:
        text = f"Measure session options, such as {names}:"
        if not any(finding.rewrites for finding in costly_findings):
            refusal = _rewrite_refusal_text(option_findings)
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
    """Return the largest named part that a setting avoids; None if it is small or there is none."""
    part = next((part for part in named_parts(profile) if part.remedy), None)
    return part if part is not None and part.size_bytes >= 2 * MIN_UNUSED_BYTES else None


def _rewrite_refusal_text(findings: Sequence[Finding]) -> str:
    """Return why no rewrite can be applied, in parentheses; empty if unknown."""
    reason = next((plain(finding.refusal) for finding in findings if finding.refusal), "")
    return f" ({shortened(reason, _MAX_REFUSAL)})" if reason else ""
