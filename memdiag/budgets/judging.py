"""Comparing a model's figures with its budget and its baseline."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from memdiag.budgets.baselines import allowed, differences, sizes_of
from memdiag.budgets.copies import held, most_held, new_since
from memdiag.budgets.figures import (
    BUDGET_PHASES,
    figures_of,
    late_bytes,
    phase_of,
    settled,
    why_missing,
)
from memdiag.errors import UsageError
from memdiag.records.attribution import Attribution, Owner
from memdiag.records.baseline import HeldCopy, Taken
from memdiag.records.budget import Breach, Budget, Judgement, Suspect
from memdiag.records.finding import Finding
from memdiag.records.phases import PHASES, PhaseName
from memdiag.records.probe import Probe
from memdiag.records.profile import Profile
from memdiag.units import MIB, MIN_GROUP_GAP, format_size, two_groups

_NOTABLE_LATE = 10 * MIB
MAX_OWNERS = 4
"""A breach names at most this many owners of memory."""

_IN_EVERY_PROCESS = ("python", "runtime_libraries", "other_libraries")
"""Owners that are there before the model is loaded, which the figures are counted from."""

UPDATE_OPTION = "--update-baseline"
"""The option of the command line that writes a baseline."""

PhaseOf = Callable[[str], PhaseName | None]


def judge(
    profiles: Sequence[Profile],
    budget: Budget,
    *,
    taken: Taken | None = None,
    update_option: str = UPDATE_OPTION,
) -> Judgement:
    """Return how a model compares with `budget`, and with `taken` of its baseline.

    Args:
        profiles: runs of it that completed, each in a process of its own; what is told of copies
            and findings is told of the first.
        budget: the limits, for figures above the baseline.
        taken: what the baseline has for this class of machines.
        update_option: the option that updates the baseline, for messages.

    Raises:
        UsageError: the profile has not the figure of a limit, or was measured otherwise than the
            baseline.
    """
    profile, *_ = profiles
    found = settled(profiles)
    late = max(late_bytes(profiles), taken.late_bytes if taken else 0)
    check_known(
        budget, found, model=profile.model.path, why=lambda name: why_missing(profile, name)
    )
    if taken is not None and (unlike := differences(taken, profile)):
        raise UsageError(
            f"{profile.model.path}: its baseline cannot be compared: this run had"
            f" {'; '.join(unlike)}. {_remedy(taken, profile, unlike)}, or update the baseline"
            f" ({update_option})."
        )
    before = taken.figures if taken else {}
    breaches = tuple(
        find_breaches(found, budget, before, lambda name: phase_of(profile, name), late=late)
    )
    now = held(profile.attribution) if profile.attribution else ()
    # A baseline without an X-ray knows of no copy.
    new = new_since(taken.copies, now) if taken and "copies" in taken.figures else ()
    copies = new or most_held(now)
    return Judgement(
        model=profile.model.path,
        onnxruntime=profile.environment.onnxruntime,
        figures=found,
        processes=len(profiles),
        budget=budget,
        baseline=before,
        baseline_onnxruntime=taken.onnxruntime if taken else None,
        breaches=breaches,
        copies=copies,
        copies_are_new=bool(new),
        suspect=_suspect(profile.findings, copies) if breaches else None,
        notes=(*_remarks(found, before, budget, late, update_option), *_groups(profiles)),
        dimensions=profile.dimensions,
        owners=_largest_owners(profile.attribution) if breaches and profile.attribution else (),
    )


def _largest_owners(attribution: Attribution) -> tuple[Owner, ...]:
    of_model = [one for one in attribution.owners if one.kind not in _IN_EVERY_PROCESS]
    return tuple(sorted(of_model, key=lambda one: -one.bytes)[:MAX_OWNERS])


def _groups(profiles: Sequence[Profile]) -> Iterator[str]:
    """Yield a remark where the figures of several processes differ notably."""
    each = [figures_of(profile) for profile in profiles]
    for name in ("steady", "peak"):
        sizes = [figures[name] for figures in each if name in figures]
        found = two_groups(sizes)
        if found is not None:
            low, high = found
            yield (
                f"{name} has two values by chance, most often freed memory that malloc keeps or"
                f" returns: {len(low)} of {len(each)} processes are near"
                f" {format_size(round(median(low)))}, {len(high)} near"
                f" {format_size(round(median(high)))}; the median is used"
            )
            return
        smallest, largest = min(sizes, default=0), max(sizes, default=0)
        if largest - smallest >= max(MIB, MIN_GROUP_GAP * largest):
            yield (
                f"{name} differs between processes, most often by freed memory that malloc keeps:"
                f" from {format_size(smallest)} to {format_size(largest)}; the median is used"
            )
            return


def judge_probe(probe: Probe, budget: Budget) -> Judgement:
    """Return how what was seen of a process compares with `budget`.

    Raises:
        UsageError: a limit is of a figure that cannot be told there.
    """

    def why(name: str) -> str:
        return "in a process that runs other code too only the whole can be told"

    check_known(budget, probe.figures, model=probe.name, why=why)
    return Judgement(
        model=probe.name,
        onnxruntime=None,
        figures=probe.figures,
        processes=1,
        budget=budget,
        breaches=tuple(find_breaches(probe.figures, budget, {}, lambda name: None)),
        notes=probe.notes,
    )


def check_known(
    budget: Budget, figures: Mapping[str, int], *, model: str, why: Callable[[str], str]
) -> None:
    """Make sure that there is a figure for each limit of `budget`.

    Raises:
        UsageError: there is none, with the reason that `why` gives, and the figures there are.
    """
    for name in budget.limits:
        if name not in figures:
            raise UsageError(
                f"{model}: cannot check the {name!r} budget: {why(name)}. Available figures:"
                f" {', '.join(figures)}."
            )


def find_breaches(
    figures: Mapping[str, int],
    budget: Budget,
    before: Mapping[str, int],
    phase: PhaseOf,
    *,
    late: int = 0,
) -> Iterator[Breach]:
    """Yield what of `figures` is above its limit in `budget`, or above its baseline `before`.

    Those of the budget come first; both in the order in which the session goes through the phases.
    Bytes that may be counted to a phase too early, `late`, make no breach of a baseline.
    """

    def when(name: str) -> int:
        where = phase(name)
        return PHASES.index(where) if where else len(PHASES)

    for name in sorted(budget.limits, key=when):
        limit = budget.limits[name]
        most = limit + round((budget.tolerance or 0.0) * limit)
        if figures[name] > most:
            yield Breach(
                figure=name,
                phase=phase(name),
                measured=figures[name],
                limit=limit,
                allowed=most,
                against="budget",
            )
    for name in sorted(before.keys() & figures.keys(), key=when):
        most = allowed(name, before[name], budget.tolerance, late=late)
        if figures[name] > most:
            yield Breach(
                figure=name,
                phase=phase(name),
                measured=figures[name],
                limit=before[name],
                allowed=most,
                against="baseline",
            )


def _suspect(findings: Sequence[Finding], copies: Sequence[HeldCopy]) -> Suspect | None:
    """Return the costliest finding that was not refuted; those about `copies` come first."""
    weights = {row.weight for row in copies}
    standing = [
        (bool(weights.intersection(one.weights)), max(one.bytes, one.peak_bytes), one)
        for one in findings
        if one.evidence != "refuted" and max(one.bytes, one.peak_bytes) > 0
    ]
    if not standing:
        return None
    _, cost, worst = max(standing, key=lambda each: each[:2])
    return Suspect(
        rule=worst.name, message=worst.message, bytes=cost, can_be_fixed=bool(worst.rewrites)
    )


def _remedy(taken: Taken, profile: Profile, unlike: Sequence[str]) -> str:
    """Return what to do so that the conditions are those of the baseline."""
    if len(unlike) == 1 and (sizes := sizes_of(taken, profile)):
        options = " ".join(f"--dim {name}={size}" for name, size in sizes.items())
        return f"Give the sizes of the baseline (dims={json.dumps(sizes)}, or {options})"
    return "Measure under the same conditions"


def _remarks(
    figures: Mapping[str, int],
    before: Mapping[str, int],
    budget: Budget,
    late: int,
    update_option: str,
) -> Iterator[str]:
    limited = before.keys() | budget.limits.keys()
    if late > _NOTABLE_LATE and limited.intersection(BUDGET_PHASES):
        yield (
            f"the machine was busy: up to {format_size(late)} may count to the phase before the one"
            " that took it"
        )
    for name in before.keys() - figures.keys():
        yield f"the baseline has {name}, which this run did not tell apart"
    for name in ("peak", "steady"):
        if name in before and name in figures:
            less = before[name] - figures[name]
            if before[name] > allowed(name, figures[name], budget.tolerance):
                yield (
                    f"{name} is {format_size(less)} below the baseline, which may be updated"
                    f" ({update_option})"
                )
