"""Why a figure differs between two columns, in words: empty where nothing says it.

The words have no sizes and times of their own: those are in the tables.
"""

from collections import Counter
from collections.abc import Sequence

from memdiag.comparison.copies import in_words, phase_of
from memdiag.records.attribution import OwnerKind
from memdiag.records.comparison import Column, CopyChange, Graph, Measured
from memdiag.records.phases import PhaseName
from memdiag.records.profile import Profile

_MOST = 2
_ENOUGH = 0.5
"""A cause is one that makes up at least this share of what it is to explain."""

_OWNERS: dict[OwnerKind, str] = {
    "external_data": "the model's own files, which are resident",
    "arena": "the runtime's arena, apart from weights",
    "allocator_retained": "freed memory that malloc keeps",
    "runtime_libraries": "the runtime's own libraries",
    "other_libraries": "other libraries",
    "mapped_files": "other mapped files",
    "other_heap": "heap that no weight owns",
}


def of_steady(copies: Sequence[CopyChange], before: Column, after: Column, size: int) -> str:
    """Return why steady memory became more by `size` bytes: copies of weights, or other owners."""
    words = _of_copies(copies, size)
    if words:
        return words
    if before.profile is None or after.profile is None:
        return ""
    return _of_owners(before.profile, after.profile, size)


def of_peak(copies: Sequence[CopyChange], before: Measured, after: Measured, size: int) -> str:
    """Return why the peak rose by `size` bytes: what is kept until then, or a phase's own peak."""
    steady = after.steady.median - before.steady.median
    if steady and 0.8 <= size / steady <= 1.25 and (words := _of_copies(copies, size)):
        return words
    phase = after.peak_phase if size > 0 else before.peak_phase
    peaks = [
        next((each.peak.median for each in one.phases if each.phase == phase), None)
        for one in (before, after)
    ]
    if peaks[0] is None or peaks[1] is None:
        return ""
    words = f"{phase} reaches {'more' if peaks[1] > peaks[0] else 'less'}"
    if after.peak_phase != before.peak_phase:
        words += f"; the peak is in {after.peak_phase} instead of {before.peak_phase}"
    return words


def of_kept(
    copies: Sequence[CopyChange], before: Column, after: Column, phase: PhaseName, size: int
) -> str:
    """Return why a phase adds `size` bytes more: the copies that are made in it.

    Otherwise it is what steady memory differs by, where that is about as much: copies of another
    phase, which this one frees or does not, or other owners.
    """
    made_here = [one for one in copies if phase_of(one) == phase]
    if words := _of_copies(made_here, size):
        return words
    steady = _steady_bytes(after) - _steady_bytes(before)
    is_alike = _ENOUGH <= steady / size <= 1 / _ENOUGH
    return of_steady(copies, before, after, steady) if is_alike else ""


def of_load(before: Measured, after: Measured) -> str:
    """Return which phase takes the time that creating the session takes more or less."""
    then = {each.phase: each.duration.median for each in before.phases}
    wanted = after.load.median - before.load.median
    found = [
        (each.duration.median - then[each.phase], each.phase)
        for each in after.phases
        if each.phase in then and each.phase not in ("first_run", "steady")
    ]
    if not found:
        return ""
    most, phase = max(found) if wanted > 0 else min(found)
    if most / wanted < _ENOUGH:
        return ""
    return f"mostly in {phase}"


def of_disk(before: Graph, after: Graph) -> str:
    """Return why a model's files take more or less: the elements of its weights."""
    if before.parameters is None or after.parameters is None:
        return ""
    if before.parameters == after.parameters:
        return "as many parameters are stored"
    return f"{before.parameters:,} parameters became {after.parameters:,}"


def _steady_bytes(column: Column) -> int:
    return column.measured.steady.median if column.measured else 0


def _of_copies(copies: Sequence[CopyChange], size: int) -> str:
    """Return the copies that make up `size` bytes, those of the other sign left out."""
    same = [one for one in copies if (one.bytes > 0) == (size > 0)]
    if sum(abs(one.bytes) for one in same) < _ENOUGH * abs(size):
        return ""
    said = [in_words(one) for one in same[:_MOST]]
    if len(same) > _MOST:
        said.append(f"and {len(same) - _MOST} more")
    return "; ".join(said)


def _of_owners(before: Profile, after: Profile, size: int) -> str:
    """Return the owners that make up `size` bytes: at most two, of the same sign."""
    moved: Counter[OwnerKind] = Counter()
    for profile, sign in ((after, 1), (before, -1)):
        if profile.attribution is None:
            return ""
        for owner in profile.attribution.owners:
            moved[owner.kind] += sign * owner.bytes
        # The X-ray is taken after what malloc kept was given back.
        moved["allocator_retained"] += sign * (profile.allocator_retained_bytes or 0)
    kinds = [kind for kind in moved if kind in _OWNERS and (moved[kind] > 0) == (size > 0)]
    largest = sorted(kinds, key=lambda kind: -abs(moved[kind]))[:_MOST]
    if largest and moved[largest[0]] / size >= _ENOUGH:
        largest = largest[:1]
    if sum(moved[kind] for kind in largest) / size < _ENOUGH:
        return ""
    return " and ".join(_OWNERS[kind] for kind in largest)
