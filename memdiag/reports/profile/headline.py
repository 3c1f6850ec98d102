"""The answer of a profile in one or two sentences, and the facts with it."""

from collections.abc import Mapping
from dataclasses import dataclass

from memdiag.records.profile import Memory, Profile, Status
from memdiag.reports.control_group import container_sentence
from memdiag.reports.generation_sentences import generation_calls_text
from memdiag.reports.text import (
    baseline_difference_text,
    model_file_name,
    plain,
    sampled_peak_word,
    shortened,
    sizes_clause,
)
from memdiag.session_options import THREADS_OPTION
from memdiag.units import MIB, counted, format_size

MIN_FACTOR_BYTES = MIB
"""Weights of fewer bytes are not a unit: no multiple of them is printed."""

STATUS_ENDINGS: Mapping[Status, str] = {
    "completed": "completed",
    "failed": "failed",
    "killed": "killed",
    "timeout": "timed out",
    "limit": "passed the memory limit",
}
MIN_NOTABLE_RETENTION = 0.05
"""Share of the steady memory from which on freed memory that malloc keeps is named.

This memory depends on the order in which threads free blocks: equal processes kept 46 to 55 MiB.
"""
_MAX_OUTCOME_MESSAGE = 400
_MIN_EARLIER_SHARE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileHeadline:
    """The answer.

    Attributes:
        first, second: the sentences.
        facts: the weights, the runtime, its providers and threads.
    """

    model: str
    completed: bool
    first: str
    second: str
    facts: str


def profile_headline(profile: Profile) -> ProfileHeadline:
    """Return the headline of `profile`, whether the run completed or not."""
    completed = profile.outcome.completed
    peak = _peak_above_text(profile)
    size = format_size(profile.baseline_rss_bytes)
    baseline = f"Baseline {size}: Python, onnxruntime and inputs" if profile.phases else ""
    generation = profile.generation
    sizes = (
        sizes_clause(profile.dimensions)
        if generation is None
        else f"with {generation_calls_text(generation)}"
    )
    sizes_text = f", {sizes}" if sizes else ""
    if profile.phases:
        baseline += f". Whole process: peak {format_size(profile.peak_rss_bytes)}"
    if completed:
        first = f"Peak {peak}{sizes_text}."
        second = _steady_sentence(profile)
    else:
        first = _early_end_sentence(profile)
        second = f"The peak until then was {peak}{sizes_text}."
    container = container_sentence(profile.environment, profile.group)
    second = " ".join(filter(None, (second, f"{baseline}." if baseline else "", container)))
    weight_bytes = profile.model.weight_bytes
    facts = [f"{format_size(weight_bytes)} of weights"] if weight_bytes is not None else []
    if _is_mostly_attributes(profile):
        facts.insert(0, f"{format_size(profile.model.file_bytes)} file")
    return ProfileHeadline(
        model=model_file_name(profile.model.path),
        completed=completed,
        first=first,
        second=second,
        facts=" · ".join([*facts, _runtime_facts(profile)]),
    )


def weight_factor(profile: Profile, size: int) -> str | None:
    """Return `size` as a multiple of the weights (``3.0 ×``), or None if that misleads.

    A multiple is printed only if the weights are larger than the pages that the runtime itself
    adds (see `runtime_bytes`). Otherwise it would describe the library, not the model.
    """
    return _size_factor(profile, size, profile.model.weight_bytes)


def _size_factor(profile: Profile, size: int, base: int | None) -> str | None:
    if base is None or size <= 0 or base < MIN_FACTOR_BYTES or base <= runtime_bytes(profile):
        return None
    ratio = size / base
    return f"{ratio:.0f} ×" if ratio >= 10 else f"{ratio:.1f} ×" if ratio >= 0.1 else "< 0.1 ×"


def _is_mostly_attributes(profile: Profile) -> bool:
    """Return whether the file is large, but has hardly any weights, as for a tree ensemble."""
    model = profile.model
    has_weights = model.weight_bytes is None or model.weight_bytes >= MIN_FACTOR_BYTES
    return not has_weights and model.file_bytes >= MIN_FACTOR_BYTES


def runtime_bytes(profile: Profile) -> int:
    """Return the file-backed bytes since the baseline that are not the model's; 0 if unknown.

    They are pages of the runtime's libraries that are used for the first time.
    """
    if not profile.phases:
        return 0
    first_memory, last_memory = profile.phases[0].end, profile.end
    if first_memory.file_bytes is None or last_memory.file_bytes is None:
        return 0
    return max(0, last_memory.file_bytes - first_memory.file_bytes - _mapped_model_bytes(profile))


def _mapped_model_bytes(profile: Profile) -> int:
    """Return the resident bytes of the model's files; without an X-ray, its external data."""
    attribution = profile.attribution
    if attribution is None:
        return profile.model.external_bytes
    copy_bytes = sum(
        copy.resident_bytes for copy in attribution.copies if copy.backing.kind == "file"
    )
    return copy_bytes + attribution.bytes_of("external_data")


def last_rss_bytes(profile: Profile) -> int:
    """Return the last resident set that was sampled, in bytes.

    A process that was just killed reads as zero, which is not its last size.
    """
    sampled_bytes = next((rss for rss in reversed(profile.samples.rss_bytes) if rss > 0), None)
    if sampled_bytes is not None:
        return sampled_bytes
    last_phase = profile.phase(profile.outcome.phase)
    return last_phase.end.rss_bytes if last_phase else profile.peak_rss_bytes


def baseline_memory(profile: Profile) -> Memory | None:
    """Return the baseline with its parts: the memory at the end of the phase `start`."""
    start = profile.phase("start")
    return start.end if start else None


def _early_end_sentence(profile: Profile) -> str:
    outcome = profile.outcome
    place = f"in {outcome.phase} at {format_size(last_rss_bytes(profile))}"
    message = shortened(plain(outcome.message), _MAX_OUTCOME_MESSAGE)
    sentence = f"{STATUS_ENDINGS[outcome.status].capitalize()} {place}"
    if not message:
        return f"{sentence}."
    return f"{sentence}: {message}" + ("" if message.endswith((".", "!", "?")) else ".")


def _peak_above_text(profile: Profile) -> str:
    above_bytes = profile.peak_above_bytes
    if above_bytes <= 0:
        return "no higher than the baseline"
    base_name = "the weights"
    factor = weight_factor(profile, above_bytes)
    if _is_mostly_attributes(profile):
        base_name, factor = "the file", _size_factor(profile, above_bytes, profile.model.file_bytes)
    remarks = [f"{factor} {base_name}" if factor else "", sampled_peak_word(profile.peak_kind)]
    remarks_text = ", ".join(part for part in remarks if part)
    size = f"{baseline_difference_text(above_bytes)} {f'({remarks_text}) ' if remarks_text else ''}"
    return f"{size}in {profile.peak_phase}{_earlier_peak_clause(profile, above_bytes)}"


def _earlier_peak_clause(profile: Profile, above_bytes: int) -> str:
    """Return a clause about an earlier phase that nearly reached the peak; empty for none."""
    for span in profile.spans:
        share = (span.peak_rss_bytes - profile.baseline_rss_bytes) / above_bytes
        rise = span.peak_rss_bytes - span.start_rss_bytes
        if share >= _MIN_EARLIER_SHARE and (rise >= MIB or span.phase == profile.peak_phase):
            if span.phase == profile.peak_phase:
                break
            return f", {min(100, int(share * 100))} % already in {span.phase}"
    return ""


def _steady_sentence(profile: Profile) -> str:
    above_bytes = profile.steady_above_bytes
    if above_bytes is None:
        if not profile.phases:
            return "The model was not run."
        end_above_bytes = profile.end_above_bytes
        factor = _parenthesized_text(weight_factor(profile, end_above_bytes))
        size = f"{baseline_difference_text(end_above_bytes)}{factor}"
        return f"Not run; created, the session stays {size}."
    parts = _steady_kinds_text(profile)
    factor = _parenthesized_text(weight_factor(profile, above_bytes))
    size = f"{baseline_difference_text(above_bytes)}{factor}"
    name = "Steady" if profile.generation is None else "After the last step"
    retained = _retained_memory_sentence(profile, above_bytes)
    return f"{name} {size}{f': {parts}' if parts else ''}.{retained}"


def _retained_memory_sentence(profile: Profile, above_bytes: int) -> str:
    """Return a sentence on freed memory that malloc keeps, if it is much of `above_bytes`."""
    size = profile.allocator_retained_bytes or 0
    if size < max(MIB, MIN_NOTABLE_RETENTION * above_bytes):
        return ""
    return f" {format_size(size)} of it is free, but kept by malloc; this varies between processes."


def _parenthesized_text(text: str | None) -> str:
    return f" ({text})" if text else ""


def _steady_kinds_text(profile: Profile) -> str:
    """Return the bytes that the steady state adds to the baseline, by kind of memory."""
    baseline, steady = baseline_memory(profile), profile.steady
    if steady is None or baseline is None:
        return ""
    parts = (
        ("anonymous", steady.anonymous_bytes, baseline.anonymous_bytes),
        ("file-backed", steady.file_bytes, baseline.file_bytes),
        ("shared", steady.shared_bytes, baseline.shared_bytes),
    )
    return ", ".join(
        f"{name} {format_size(steady_bytes - baseline_bytes, signed=True)}"
        for name, steady_bytes, baseline_bytes in parts
        if steady_bytes is not None
        and baseline_bytes is not None
        and steady_bytes != baseline_bytes
    )


def _runtime_facts(profile: Profile) -> str:
    """Return the runtime, its providers and threads: ``onnxruntime 1.31.1, CPU, 2 threads``."""
    version = profile.environment.onnxruntime
    parts = [f"onnxruntime {plain(version)}" if version else "onnxruntime (version unknown)"]
    parts += [plain(name).removesuffix("ExecutionProvider") for name in profile.session.providers]
    threads = profile.session.options.get(THREADS_OPTION, "0")
    if threads.isdecimal() and int(threads) > 0:
        parts.append(counted(int(threads), "thread"))
    return ", ".join(part for part in parts if part)
