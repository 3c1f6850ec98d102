"""What a model's memory consists of above the baseline, and how much of it is not needed."""

from typing import NamedTuple

from memdiag.records.attribution import OwnerKind
from memdiag.records.profile import Profile
from memdiag.units import MIB, format_size

ARENA_SLACK, RETAINED = "arena slack", "retained by malloc"

MIN_UNUSED_BYTES = 8 * MIB
MIN_UNUSED_SHARE = 0.25
"""Session options are recommended where at least so much of the peak above the baseline is unused:
arena slack, memory retained by malloc, and what was resident for a moment only."""

MIN_FACTOR_BYTES = MIB
"""Multiples of fewer bytes of weights are never printed."""


MIN_SHARE = 0.1
"""An unused part is worth naming beside findings from this share of the peak on."""


class Part(NamedTuple):
    """A part of the memory above the baseline.

    Attributes:
        meaning: for an unused part, what this memory is.
        cause: for an unused part, why it is there.
        remedy: for an unused part, the setting that ends it, as an instruction.
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
        """The part with its size."""
        return f"{self.label} {format_size(self.size_bytes)}"


def factor(profile: Profile, size: int) -> str | None:
    """Return `size` as a multiple of the weights (``3.0 ×``), or None where that misleads.

    A multiple is printed only where the weights are larger than the pages of its own that the
    runtime adds (see `runtime_bytes`): otherwise it would describe the library, not the model.
    """
    weights = profile.model.weight_bytes
    if weights is None or size <= 0:
        return None
    if weights < MIN_FACTOR_BYTES or weights <= runtime_bytes(profile):
        return None
    ratio = size / weights
    return f"{ratio:.0f} ×" if ratio >= 10 else f"{ratio:.1f} ×" if ratio >= 0.1 else "< 0.1 ×"


def runtime_bytes(profile: Profile) -> int:
    """Return the file-backed memory added since the baseline that is not the model's.

    These are pages of the runtime's libraries, used for the first time. 0 where not known.
    """
    if not profile.phases:
        return 0
    first, last = profile.phases[0].end, profile.steady or profile.phases[-1].end
    if first.file_bytes is None or last.file_bytes is None:
        return 0
    return max(0, last.file_bytes - first.file_bytes - _mapped_bytes(profile))


def above_baseline(profile: Profile) -> tuple[Part, ...]:
    """Return the parts of the steady memory above the baseline, the largest first.

    Empty without an X-ray.
    """
    taken = profile.attribution
    if taken is None:
        return ()
    kinds: dict[str, tuple[OwnerKind, ...]] = {
        "weights": ("weights", "external_data"),
        "other heap": ("other_heap",),
        "thread stacks": ("thread_stacks",),
    }
    parts = [Part(label, sum(map(taken.bytes_of, owners))) for label, owners in kinds.items()]
    slack = _slack_bytes(profile)
    parts += [
        Part(ARENA_SLACK, slack),
        Part("arena in use", taken.bytes_of("arena") - slack),
        Part(RETAINED, _retained_bytes(profile)),
        Part("runtime library pages", runtime_bytes(profile)),
    ]
    smallest = MIB // 10
    found = (part for part in parts if part.size_bytes >= smallest)
    return tuple(sorted(found, key=lambda part: -part.size_bytes))


def unused(profile: Profile) -> tuple[Part, ...]:
    """Return the parts of the peak that no weight and no running kernel needs, largest first."""
    steady = profile.steady_rss_bytes
    transient = 0 if steady is None else profile.peak_rss_bytes - steady
    parts = (
        Part(
            ARENA_SLACK,
            _slack_bytes(profile),
            "free memory that onnxruntime keeps for later runs",
            "The arena keeps all memory that a run needed, and grows by doubling.",
            "Set the run option memory.enable_memory_arena_shrinkage=cpu:0, or"
            " enable_cpu_mem_arena=False with MALLOC_MMAP_THRESHOLD_=131072.",
        ),
        Part(
            RETAINED,
            _retained_bytes(profile),
            "freed, but not returned to the system",
            "malloc keeps freed blocks of less than 32 MiB in its heap.",
            "Start the process with MALLOC_MMAP_THRESHOLD_=131072, so that malloc returns freed"
            " blocks from 128 KiB on at once.",
        ),
        Part(
            f"needed only in {profile.peak_phase}",
            transient,
            "the steady state does without",
            is_steady=False,
        ),
    )
    found = (part for part in parts if part.size_bytes >= MIB // 10)
    return tuple(sorted(found, key=lambda part: -part.size_bytes))


def worth_naming(profile: Profile) -> tuple[Part, ...]:
    """Return the unused parts that belong in the answer, largest first.

    These are all parts where they are much together (see `is_tunable`), otherwise, beside a
    finding, the large ones.
    """
    parts = unused(profile)
    if is_tunable(profile):
        return parts
    if all(finding.evidence == "refuted" for finding in profile.findings):
        return ()
    above = profile.peak_rss_bytes - profile.baseline_rss_bytes
    smallest = max(MIN_UNUSED_BYTES, MIN_SHARE * above)
    return tuple(part for part in parts if part.size_bytes >= smallest)


def is_tunable(profile: Profile) -> bool:
    """Return whether so much of the peak is unused that session options are worth a try."""
    above = profile.peak_rss_bytes - profile.baseline_rss_bytes
    size = sum(part.size_bytes for part in unused(profile))
    return size >= max(MIN_UNUSED_BYTES, MIN_UNUSED_SHARE * above)


def _slack_bytes(profile: Profile) -> int:
    owners = profile.attribution.owners if profile.attribution else ()
    return sum(one.bytes for one in owners if one.kind == "arena" and one.name == "slack")


def _retained_bytes(profile: Profile) -> int:
    """Return what malloc retained, before and after ``malloc_trim``."""
    after = profile.attribution.bytes_of("allocator_retained") if profile.attribution else 0
    return after + max(0, profile.allocator_retained_bytes or 0)


def _mapped_bytes(profile: Profile) -> int:
    """Return what of the model's files is mapped and resident; all of it where not measured."""
    taken = profile.attribution
    if taken is None:
        return profile.model.external_bytes
    copies = sum(copy.resident_bytes for copy in taken.copies if copy.backing.kind == "file")
    return copies + taken.bytes_of("external_data")
