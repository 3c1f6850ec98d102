"""Causes of differences between two columns, as sentences: empty if no cause is known.

Each cause of a difference in memory is stated with the bytes that it accounts for, and with the
setting that is known to have this effect, if it differs between two profiles. What remains is
stated as not explained, or with the settings if the profiles differ in nothing else.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Self

from memdiag.comparison.comparable import (
    differ_only_in_settings,
    different_settings,
    resized_inputs,
)
from memdiag.comparison.copies import copy_change_text, phase_of_copy_change
from memdiag.comparison.device_parts import device_part_differences
from memdiag.comparison.estimated_memory import (
    EstimatedMemory,
    estimated_growth,
    estimated_peak,
)
from memdiag.defaults import MMAP_THRESHOLD_VARIABLE
from memdiag.records.attribution import CopyKind, OwnerKind
from memdiag.records.comparison import ColumnFigures, ComparisonColumn, CopyChange
from memdiag.records.estimate import TermName
from memdiag.records.phases import PHASES, RUN_PHASES, PhaseName
from memdiag.records.profile import Profile
from memdiag.session_options import (
    ARENA_OPTION,
    LEVEL_OPTION,
    PATTERN_OPTION,
    PREPACKING_OPTION,
    SHRINKAGE_OPTION,
    THREADS_OPTION,
)
from memdiag.units import MIB, format_size

MIN_LOAD_SHARE = 0.5
"""A phase is named as the cause of a longer load if it takes at least this share of it."""

MAX_UNEXPLAINED_SHARE = 0.01
"""Causes leave at most this share of a difference. A larger remainder is stated with its own,
smaller causes, or as not explained: the sum is the difference, except for rounding."""

MAX_OUTSIDE_BYTES = MIB
"""An X-ray has every byte of a steady state if it misses at most these bytes of the measurement."""

MAX_LEFT_SHARE = 0.25
"""If measured causes leave a larger share of a difference, predicted causes take their place, if
these leave less."""

MAX_ABOVE_STEADY = 0.02
MAX_ABOVE_STEADY_BYTES = 2 * MIB
"""A peak that exceeds the steady memory by this share of the peak, or by these bytes, is the steady
memory."""

MAX_PEAK_ERROR = 0.2
"""A phase differs as much as the peak if the two agree within this share of the peak's change."""

_OWNER_TEXTS: dict[OwnerKind, str] = {
    "kv_cache": "the KV cache",
    "weights": "smaller copies of weights",
    "external_data": "resident pages of the model's own files",
    "arena": "the runtime's arena, apart from weights",
    "allocator_retained": "freed memory that malloc retains",
    "runtime_libraries": "Python and libraries, above the baseline",
    "provider_libraries": "the libraries of execution providers",
    "mapped_files": "other mapped files",
    "thread_stacks": "stacks of threads",
    "other_heap": "heap in which no weight was found",
    "unnamed": "memory of no known owner",
}
_BASELINE_OWNERS: frozenset[OwnerKind] = frozenset(
    {"runtime_libraries", "other_libraries", "python"}
)
"""The owners of the baseline. Memory of each of them may be in the baseline or above it."""

_MAPPED_OWNERS: tuple[OwnerKind, ...] = ("external_data", "provider_libraries", "mapped_files")
"""Mapped files, apart from weights and from the owners of the baseline."""

_MAPPED_PAGES = "pages of mapped files"
_BEYOND_XRAY = "not explained: the X-ray shows the steady state only"
_OTHER_PROCESSES = "the spread between processes: the first of each was X-rayed"
_REST_ON_DEVICE = "not explained: small parts, and the spread between processes"


_TERM_TEXTS: dict[TermName, str] = {
    "runtime": "the runtime itself",
    "graph": "nodes and kernels",
    "model file": "the parsed file",
    "weights": "weights as they are stored",
    "mapped weights": "pages of mapped weights",
    "stale weights": "weights of subgraphs once more",
    "weight being converted": "a converted copy",
    "folded constants": "results of constant folding",
    "operands of folding": "inputs and results of constant folding until its last node",
    "fused weights": "weights of fused nodes",
    "reordered filters": "reordered filters of convolutions",
    "packed weights": "packed weights",
    "tree tables": "tables of tree ensembles",
    "activations": "activations",
    "KV cache": "the KV cache",
    "planned block": "the block that the memory pattern plans",
    "unused arena": "unused memory of the arena",
    "kernel scratch": "working memory of kernels",
    "freed heap": "small freed blocks",
}


_CauseKind = OwnerKind | CopyKind | TermName | Literal["spread", "device"]

_SIZES_OF_INPUTS = "the sizes of the inputs"
_ARENA_CAUSES = frozenset[_CauseKind]({"arena", "unused arena"})
_CAUSES_BY_OPTION: dict[str, frozenset[_CauseKind]] = {
    ARENA_OPTION: _ARENA_CAUSES,
    SHRINKAGE_OPTION: _ARENA_CAUSES,
    PATTERN_OPTION: _ARENA_CAUSES | {"planned block"},
    _SIZES_OF_INPUTS: _ARENA_CAUSES | {"activations", "planned block", "kernel scratch"},
    # Without packed copies the runtime uses the weights as they are stored, mapped ones in place.
    PREPACKING_OPTION: frozenset(
        {"packed", "packed weights", "original", "weights", "mapped weights", "external_data"}
    ),
    LEVEL_OPTION: frozenset({"reordered", "reordered filters", "folded constants"}),
    THREADS_OPTION: frozenset({"kernel scratch"}),
    MMAP_THRESHOLD_VARIABLE: frozenset({"allocator_retained"}),
}
"""What settings and inputs change in memory, as far as the runtime and malloc leave no doubt."""


class _DifferenceCause(NamedTuple):
    """One cause of a difference.

    Attributes:
        text: the cause in words.
        bytes: the bytes of the difference that it accounts for.
        kind: what the memory is.
    """

    text: str
    bytes: int
    kind: _CauseKind


def explain_steady(
    copies: Sequence[CopyChange],
    before: ComparisonColumn,
    after: ComparisonColumn,
    size: int,
    tolerance: int,
) -> str:
    """Return the causes of a difference of `size` bytes at steady state.

    Causes are copies of weights, and other owners. `tolerance` is the number of bytes by which
    figures differ without a cause. Owners that differ by no more are named only for the bytes that
    the others do not explain.
    """
    settings = _DifferingSettings.of(before, after)
    profiles = _xrayed_profiles(before, after)
    if profiles is None:
        return settings.as_only_difference()
    old, new = profiles
    causes = _copy_causes(copies)
    parts = _xray_causes(old, new, copies, size)
    causes += [part for part in parts if abs(part.bytes) > tolerance]
    for part in sorted(parts, key=lambda part: -abs(part.bytes)):
        is_left = not _leaves_at_most(MAX_UNEXPLAINED_SHARE, causes, size)
        if is_left and MAX_UNEXPLAINED_SHARE * abs(size) < abs(part.bytes) <= tolerance:
            causes.append(part)
    return settings.explained(causes, size)


def explain_mapped(
    copies: Sequence[CopyChange],
    before: ComparisonColumn,
    after: ComparisonColumn,
    size: int,
    tolerance: int,
) -> str:
    """Return the causes of a difference of `size` bytes in mapped files: weights, and others."""
    settings = _DifferingSettings.of(before, after)
    profiles = _xrayed_profiles(before, after)
    if profiles is None:
        return settings.as_only_difference()
    old, new = profiles
    owners = _owner_differences(old, new)
    parts: Counter[OwnerKind] = Counter({kind: owners[kind] for kind in _MAPPED_OWNERS})
    total_bytes = _mapped_since_start(new) - _mapped_since_start(old)
    parts["runtime_libraries"] = total_bytes - parts.total()
    large_parts = {kind: part for kind, part in parts.items() if abs(part) > tolerance}
    causes = [*_copy_causes([copy for copy in copies if copy.file]), *_owner_causes(large_parts)]
    return settings.explained(causes, size)


def explain_peak(
    copies: Sequence[CopyChange],
    before: ComparisonColumn,
    after: ComparisonColumn,
    size: int,
    tolerance: int,
) -> str:
    """Return the causes of a difference of `size` bytes in the peak.

    If the peak is the steady memory in both columns, the causes of steady memory are returned.
    Otherwise they are the copies made until the phase of the larger peak. If the peak moved to
    another phase, and that phase does not differ as much, the cause is the move. If copies leave
    much unexplained, the predicted causes of both peaks are returned instead.
    """
    old, new = before.measured, after.measured
    assert old is not None
    assert new is not None
    if peak_is_steady(old) and peak_is_steady(new):
        return explain_steady(copies, before, after, size, tolerance)
    move_text = ""
    if old.peak_phase != new.peak_phase:
        move_text = (
            f"the peak of {after.label} is in {new.peak_phase}, the peak of {before.label} in"
            f" {old.peak_phase}"
        )
    settings = _DifferingSettings.of(before, after)
    predicted = _estimated_causes(estimated_peak(before), estimated_peak(after), size)
    causes = _copies_until_peak(copies, before, after, size, tolerance)
    if causes is None:
        is_explained = _leaves_at_most(MAX_LEFT_SHARE, predicted, size)
        explanation = (
            settings.explained(predicted, size, rest=_BEYOND_XRAY)
            if is_explained
            else settings.as_only_difference()
        )
        return "; ".join(filter(None, (move_text, explanation)))
    if _xrayed_profiles(before, after) is None:
        return settings.as_only_difference()
    return settings.explained(_better_causes(causes, predicted, size), size, rest=_BEYOND_XRAY)


def _copies_until_peak(
    copies: Sequence[CopyChange],
    before: ComparisonColumn,
    after: ComparisonColumn,
    size: int,
    tolerance: int,
) -> list[_DifferenceCause] | None:
    """Return the copies made until the phase of the larger peak.

    None if the peak moved to another phase, and that phase does not differ as much.
    """
    old, new = before.measured, after.measured
    assert old is not None
    assert new is not None
    phase = new.peak_phase if size > 0 else old.peak_phase
    if old.peak_phase != new.peak_phase:
        peaks = [
            next(
                (figures.peak.median for figures in measured.phases if figures.phase == phase), None
            )
            for measured in (old, new)
        ]
        if (
            peaks[0] is None
            or peaks[1] is None
            or abs(peaks[1] - peaks[0] - size) > max(tolerance, MAX_PEAK_ERROR * abs(size))
        ):
            return None
    last_index = PHASES.index(phase)
    made_copies = [
        copy
        for copy in copies
        if (origin := phase_of_copy_change(copy)) is not None and PHASES.index(origin) <= last_index
    ]
    return _copy_causes(_certain_copies(made_copies, size, tolerance))


def explain_kept(
    copies: Sequence[CopyChange],
    before: ComparisonColumn,
    after: ComparisonColumn,
    phase: PhaseName,
    size: int,
    tolerance: int,
) -> str:
    """Return the causes of a difference of `size` bytes in what `phase` keeps.

    The causes are the copies made in this phase, the growth of mapped files and, in a phase that
    runs the model, the growth of the arena. That is not measured for each phase: the size of the
    arena at steady state is a cause in all of them.
    """
    settings = _DifferingSettings.of(before, after)
    profiles = _xrayed_profiles(before, after)
    if profiles is None:
        return settings.as_only_difference()
    old, new = profiles
    made_copies = [copy for copy in copies if phase_of_copy_change(copy) == phase]
    mapped = _mapped_growth(new, phase) - _mapped_growth(old, phase)
    file_causes = (
        [_DifferenceCause(_MAPPED_PAGES, mapped, "external_data")]
        if abs(mapped) > tolerance
        else []
    )
    causes = [*file_causes, *_copy_causes(_certain_copies(made_copies, size - mapped, tolerance))]
    arena = _owner_differences(old, new)["arena"]
    if phase not in RUN_PHASES or abs(arena) <= tolerance or (arena > 0) != (size > 0):
        predicted = _estimated_causes(
            estimated_growth(before, phase), estimated_growth(after, phase), size
        )
        return settings.explained(_better_causes(causes, predicted, size), size)
    arena_cause = _DifferenceCause(_OWNER_TEXTS["arena"], arena, "arena")
    if abs(arena) <= abs(size) + tolerance:
        return settings.explained([*causes, arena_cause], size)
    partial_cause = (
        f"a part of the {format_size(arena, signed=True)} of {settings.in_words(arena_cause)}"
    )
    copies_text = settings.explained(causes, sum(cause.bytes for cause in causes)) if causes else ""
    return "; ".join(filter(None, (copies_text, partial_cause)))


def explain_device(
    before: ComparisonColumn, after: ComparisonColumn, size: int, *, of_peak: bool
) -> str:
    """Return the causes of a difference of `size` bytes on a GPU: the parts that differ."""
    settings = _DifferingSettings.of(before, after)
    old, new = (column.profile.device if column.profile else None for column in (before, after))
    parts = {} if old is None or new is None else device_part_differences(old, new, of_peak=of_peak)
    causes = [
        _DifferenceCause(name, part, "device")
        for name, part in parts.items()
        if abs(part) > MAX_UNEXPLAINED_SHARE * abs(size)
    ]
    if not causes:
        return settings.as_only_difference()
    return settings.explained(causes, size, rest=_REST_ON_DEVICE)


def explain_load(before: ColumnFigures, after: ColumnFigures) -> str:
    """Return the phase that accounts for most of the difference in session creation."""
    durations = {figures.phase: figures.duration.median for figures in before.phases}
    total = after.load.median - before.load.median
    differences = [
        (figures.duration.median - durations[figures.phase], figures.phase)
        for figures in after.phases
        if figures.phase in durations and figures.phase not in ("first_run", "steady")
    ]
    if not differences:
        return ""
    largest, phase = max(differences) if total > 0 else min(differences)
    if largest / total < MIN_LOAD_SHARE:
        return ""
    return f"mostly in {phase}"


def explain_disk(before: ComparisonColumn, after: ComparisonColumn) -> str:
    """Return the numbers of parameters, for models whose files differ in size."""
    if before.graph is None or after.graph is None:
        return ""
    counts = before.graph.parameters, after.graph.parameters
    if counts[0] is None or counts[1] is None:
        return ""
    if counts[0] == counts[1]:
        return "the number of parameters is the same"
    return f"{counts[0]:,} parameters in {before.label}, {counts[1]:,} in {after.label}"


def peak_is_steady(measured: ColumnFigures) -> bool:
    """Return whether the peak is hardly above the steady memory."""
    peak, steady = measured.peak.median, measured.steady.median
    return peak - steady <= max(MAX_ABOVE_STEADY_BYTES, MAX_ABOVE_STEADY * peak)


def _xrayed_profiles(
    before: ComparisonColumn, after: ComparisonColumn
) -> tuple[Profile, Profile] | None:
    """Return the profiles of both; None if one has no X-ray."""
    old, new = before.profile, after.profile
    if old is None or new is None or not (old.attribution and new.attribution):
        return None
    return old, new


def _certain_copies(copies: Sequence[CopyChange], size: int, tolerance: int) -> list[CopyChange]:
    """Return the `copies` that were made in one column only.

    Packed copies exist until the session ends. Any other copy may have been made in both columns
    and released in one, so such copies must fit into `size`.
    """
    packed_copies = [copy for copy in copies if copy.kind == "packed"]
    other_copies = [copy for copy in copies if copy.kind != "packed"]
    remaining_bytes = size - sum(copy.bytes for copy in packed_copies)
    other_bytes = sum(copy.bytes for copy in other_copies)
    are_certain = abs(other_bytes) <= abs(remaining_bytes) + tolerance and (other_bytes > 0) == (
        remaining_bytes > 0
    )
    return [*packed_copies, *other_copies] if are_certain else packed_copies


def _copy_causes(copies: Sequence[CopyChange]) -> list[_DifferenceCause]:
    return [_DifferenceCause(copy_change_text(copy), copy.bytes, copy.kind) for copy in copies]


def _estimated_causes(
    before: EstimatedMemory | None, after: EstimatedMemory | None, size: int
) -> list[_DifferenceCause]:
    """Return the predicted causes of a difference of `size` bytes; none without both estimates."""
    if before is None or after is None:
        return []
    terms = dict.fromkeys((*after.terms, *before.terms))
    sizes = {name: after.terms[name] - before.terms[name] for name in terms}
    return [
        _DifferenceCause(
            f"{_term_text(name, before if part < 0 else after)} (predicted)", part, name
        )
        for name, part in sizes.items()
        if abs(part) > MAX_UNEXPLAINED_SHARE * abs(size)
    ]


def _term_text(name: TermName, memory: EstimatedMemory) -> str:
    """Return a term in words; `memory` is the estimate that has more of it."""
    if name == "weight being converted" and memory.cause:
        return f"a converted copy of {memory.cause} in {memory.label}"
    return _TERM_TEXTS[name]


def _better_causes(
    causes: list[_DifferenceCause], predicted: list[_DifferenceCause], size: int
) -> list[_DifferenceCause]:
    """Return `causes`, which were measured; `predicted` ones if those leave much of `size`."""
    if _leaves_at_most(MAX_LEFT_SHARE, causes, size) or not _leaves_at_most(
        MAX_LEFT_SHARE, predicted, size
    ):
        return causes
    return predicted


def _ordered_causes(causes: Sequence[_DifferenceCause], size: int) -> list[_DifferenceCause]:
    """Return `causes` in an order in which the first explain most of a difference of `size` bytes.

    The first are the largest cause in the direction of the difference and the largest one against
    it. The last are pairs that add up to nothing, as of a weight in another kind of memory.
    """
    by_size = sorted(causes, key=lambda cause: -abs(cause.bytes))
    same_direction = [cause for cause in by_size if (cause.bytes > 0) == (size > 0)]
    opposite_direction = [cause for cause in by_size if cause not in same_direction]
    pairs: list[_DifferenceCause] = []
    for cause in opposite_direction:
        offsetting = next(
            (other for other in same_direction if other not in pairs and _is_offset(other, cause)),
            None,
        )
        pairs += [] if offsetting is None else [offsetting, cause]
    first_causes = [
        cause
        for group in (same_direction, opposite_direction)
        for cause in [member for member in group if member not in pairs][:1]
    ]
    other_causes = [cause for cause in by_size if cause not in first_causes and cause not in pairs]
    return [*first_causes, *other_causes, *pairs]


def _is_offset(cause: _DifferenceCause, other_cause: _DifferenceCause) -> bool:
    return abs(cause.bytes + other_cause.bytes) <= MAX_UNEXPLAINED_SHARE * abs(cause.bytes)


def _leaves_at_most(share: float, causes: Sequence[_DifferenceCause], size: int) -> bool:
    remaining_bytes = size - sum(cause.bytes for cause in causes)
    return abs(remaining_bytes) <= share * abs(size)


def _mapped_since_start(profile: Profile) -> int:
    """Return the bytes of mapped files since the start, without weights; 0 if not known."""
    start, copies = (
        profile.phase("start"),
        profile.attribution.copies if profile.attribution else (),
    )
    if start is None or start.end.file_bytes is None or profile.end.file_bytes is None:
        return 0
    weights = sum(copy.resident_bytes for copy in copies if copy.backing.kind == "file")
    return profile.end.file_bytes - start.end.file_bytes - weights


def _mapped_growth(profile: Profile, name: PhaseName) -> int:
    """Return the bytes of mapped files that became resident in a phase; 0 if it is not known."""
    phase = profile.phase(name)
    if phase is None or phase.start.file_bytes is None or phase.end.file_bytes is None:
        return 0
    return phase.end.file_bytes - phase.start.file_bytes


def _owner_causes(differences: Mapping[OwnerKind, int]) -> list[_DifferenceCause]:
    """Return the owners whose bytes differ."""
    return [
        _DifferenceCause(_OWNER_TEXTS[kind], size, kind)
        for kind, size in differences.items()
        if size
    ]


def _xray_causes(
    before: Profile, after: Profile, copies: Sequence[CopyChange], size: int
) -> list[_DifferenceCause]:
    """Return the causes other than `copies`; all add up to `size` if the X-rays have every byte."""
    differences = _owner_differences(before, after)
    differences["weights"] -= sum(copy.bytes for copy in copies)
    libraries = sum(differences.pop(kind, 0) for kind in _BASELINE_OWNERS)
    libraries -= after.baseline_rss_bytes - before.baseline_rss_bytes
    parts = _owner_causes({**differences, "runtime_libraries": libraries})
    if not (_is_complete_xray(before) and _is_complete_xray(after)):
        return parts
    end_bytes = [process.end_above_bytes for process in (before, after)]
    spread = size - (end_bytes[1] - end_bytes[0])
    return [*parts, _DifferenceCause(_OTHER_PROCESSES, spread, "spread")]


def _is_complete_xray(profile: Profile) -> bool:
    """Return whether the X-ray and the memory that malloc had retained are the steady memory."""
    if profile.attribution is None or profile.allocator_retained_bytes is None:
        return False
    xray_bytes = profile.attribution.resident_bytes + profile.allocator_retained_bytes
    return abs(profile.end.rss_bytes - xray_bytes) <= MAX_OUTSIDE_BYTES


def _owner_differences(before: Profile, after: Profile) -> Counter[OwnerKind]:
    """Return the bytes that each kind of owner has more in `after` than in `before`."""
    differences: Counter[OwnerKind] = Counter()
    for profile, sign in ((after, 1), (before, -1)):
        for owner in profile.attribution.owners if profile.attribution else ():
            differences[owner.kind] += sign * owner.bytes
    retained = before.allocator_retained_bytes, after.allocator_retained_bytes
    if retained[0] is not None and retained[1] is not None:
        # The X-ray is taken after malloc has released what it retained.
        differences["allocator_retained"] += retained[1] - retained[0]
    return differences


class _DifferingSettings(NamedTuple):
    """The settings in which two columns differ.

    Attributes:
        names: the names of the settings; the sizes of the inputs are one.
        are_all: whether the profiles of the columns differ in nothing else.
    """

    names: tuple[str, ...]
    are_all: bool

    @classmethod
    def of(cls, before: ComparisonColumn, after: ComparisonColumn) -> Self:
        if before.profile is None or after.profile is None:
            return cls((), are_all=False)
        names = different_settings(before.profile, after.profile)
        are_all = bool(names) and differ_only_in_settings(before.profile, after.profile)
        if resized_inputs(before.profile, after.profile):
            names = (*names, _SIZES_OF_INPUTS)
        return cls(names, are_all)

    def as_only_difference(self) -> str:
        """Return a clause that there is no other difference; empty if there are others."""
        return f"the profiles differ only in {', '.join(self.names)}" if self.are_all else ""

    def in_words(self, cause: _DifferenceCause) -> str:
        """Return a cause in words, with the settings that are known to change such memory."""
        settings = [name for name in self.names if cause.kind in _CAUSES_BY_OPTION.get(name, ())]
        return f"{cause.text}, because of {' and '.join(settings)}" if settings else cause.text

    def explained(
        self, causes: Sequence[_DifferenceCause], size: int, *, rest: str = "not explained"
    ) -> str:
        """Return `causes` with their bytes, and the remaining bytes of `size`, called `rest`."""
        if not causes:
            return self.as_only_difference() or rest
        parts = [
            f"{format_size(cause.bytes, signed=True)}, {self.in_words(cause)}"
            for cause in _ordered_causes(causes, size)
        ]
        if not _leaves_at_most(MAX_UNEXPLAINED_SHARE, causes, size):
            only_difference = self.as_only_difference()
            remainder_text = f", the rest: {only_difference}" if only_difference else f" {rest}"
            remaining_bytes = size - sum(cause.bytes for cause in causes)
            parts.append(f"{format_size(remaining_bytes, signed=True)}{remainder_text}")
        return "; ".join(parts)
