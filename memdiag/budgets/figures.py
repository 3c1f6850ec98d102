"""The figures that a model can be held to, read from a profile."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from memdiag.records.attribution import Copy
from memdiag.records.phases import PHASES, PhaseName
from memdiag.records.profile import Memory, Profile
from memdiag.units import format_size

Unit = Literal["bytes", "count"]

_LEAST_COPY = 4096
"""Copies of smaller weights are not counted: a budget of copies is about large ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure: what it says, in words, and its unit."""

    name: str
    says: str
    unit: Unit = "bytes"

    def show(self, value: int, *, signed: bool = False) -> str:
        """Return `value` of this figure as people read it."""
        if self.unit == "count":
            return f"{value:+,}" if signed else f"{value:,}"
        return format_size(value, signed=signed)


BUDGET_PHASES: tuple[PhaseName, ...] = tuple(
    name for name in PHASES if name not in ("start", "steady")
)
_FASTEST = 6e9
"""Bytes a second that a process takes at most: what bounds the figures of phases seen late."""

FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure(name="peak", says="the largest resident set, above the baseline"),
        Figure(name="steady", says="the resident set after the last run, above the baseline"),
        Figure(name="steady_anonymous", says="its anonymous part: heap, arenas, stacks"),
        Figure(name="steady_file", says="its file-backed part: mapped weights, libraries"),
        *(
            Figure(name=name, says=f"the peak in {name}, above the baseline")
            for name in BUDGET_PHASES
        ),
        Figure(name="growth_per_run", says="by how much each run after the second leaves it grown"),
        Figure(name="copies", says="the most copies of any one weight, live", unit="count"),
        Figure(name="process_peak", says="the largest resident set of the whole process"),
    )
}
"""Every figure by its name; memory above the baseline, but for `process_peak`."""


def figures_of(profile: Profile) -> dict[str, int]:
    """Return the figures that `profile` has, in their units.

    A phase that was not reached, or not told apart, has none; nor has what comes after runs where
    there was none, nor `copies` without an X-ray.
    """
    base = profile.baseline_rss_bytes
    found = {"peak": profile.peak_rss_bytes - base}
    if profile.steady is not None:
        start = profile.phase("start")
        found |= above(profile.steady, start.end if start else None, base)
    for phase in profile.phases:
        if phase.name in BUDGET_PHASES:
            found[phase.name] = phase.peak_rss_bytes - base
    if len(profile.runs) > 1:
        grown = profile.runs[-1].rss_bytes - profile.runs[0].rss_bytes
        found["growth_per_run"] = round(grown / (len(profile.runs) - 1))
    if profile.attribution is not None:
        held: Counter[tuple[str, ...]] = Counter()
        held.update(copy.weights for copy in profile.attribution.copies if is_held(copy))
        found["copies"] = max(held.values(), default=0)
    return found | {"process_peak": profile.peak_rss_bytes}


def settled(profiles: Sequence[Profile]) -> dict[str, int]:
    """Return the figures of several processes that ran the same model.

    They are medians, but for the figures of phases: those are of the process whose boundaries were
    seen soonest, for what moves before a boundary is seen counts to the phase before it.
    """
    each = [figures_of(profile) for profile in profiles]
    names = dict.fromkeys(name for figures in each for name in figures)
    medians = {
        name: round(median(figures[name] for figures in each if name in figures)) for name in names
    }
    soonest = figures_of(min(profiles, key=_lag_s))
    return medians | {name: soonest[name] for name in BUDGET_PHASES if name in soonest}


def late_bytes(profiles: Sequence[Profile]) -> int:
    """Return by how much the figures of phases that `profiles` settle may be off.

    What moves before a boundary is seen counts to the phase before it.
    """
    return round(min(map(_lag_s, profiles)) * _FASTEST)


def _lag_s(profile: Profile) -> float:
    return profile.sampling.boundary_lag_s or 0.0


def above(memory: Memory, before: Memory | None, base: int) -> dict[str, int]:
    """Return by how much `memory` is above `base` bytes and its parts above those of `before`."""
    found = {"steady": memory.rss_bytes - base}
    if before is None:
        return found
    parts = (
        ("steady_anonymous", memory.anonymous_bytes, before.anonymous_bytes),
        ("steady_file", memory.file_bytes, before.file_bytes),
    )
    told = {name: now - then for name, now, then in parts if now is not None and then is not None}
    return found | told


def is_held(copy: Copy) -> bool:
    """Return whether `copy` counts: large enough, not freed, and resident for the most part."""
    large = copy.bytes >= _LEAST_COPY
    return large and copy.live is not False and 2 * copy.resident_bytes >= copy.bytes


def why_missing(profile: Profile, name: str) -> str:
    """Return in words why `profile` has no figure `name`."""
    if name in BUDGET_PHASES:
        runtime = f"onnxruntime {profile.environment.onnxruntime}"
        if profile.session.runs is None and name == "first_run":
            return "the model was not run"
        return f"{runtime} did not tell that phase apart with these session options"
    if name == "copies":
        reasons = [note for note in profile.notes if note.startswith("no X-ray")]
        return reasons[0] if reasons else "no X-ray was taken"
    if name == "growth_per_run":
        return "it takes two runs after the first one, or more"
    if profile.steady is None:
        return "the model was not run"
    return "this system does not split the resident set"


def phase_of(profile: Profile, name: str) -> PhaseName | None:
    """Return the phase in which figure `name` of `profile` comes to be."""
    if name in ("peak", "process_peak"):
        return profile.peak_phase
    return next((phase for phase in BUDGET_PHASES if phase == name), "steady")
