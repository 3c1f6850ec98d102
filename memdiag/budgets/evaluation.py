"""Evaluation: the figures of a model compared with its budget and its baseline file."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from memdiag.budgets.baselines import condition_differences, dims_of, max_figure
from memdiag.budgets.figures import (
    BUDGET_PHASES,
    DEVICE_FIGURES,
    FIGURES_BY_NAME,
    aggregate_figures,
    copy_totals,
    figures_of,
    largest_repeated,
    late_bytes,
    new_since,
    phase_of_figure,
    why_missing,
)
from memdiag.defaults import MMAP_THRESHOLD_VARIABLE
from memdiag.errors import UsageError
from memdiag.records.attribution import Attribution, Owner
from memdiag.records.baseline import BaselineEntry, CopyTotal
from memdiag.records.budget import Breach, Budget, Judgement, Suspect
from memdiag.records.dimension import Dimension
from memdiag.records.estimate import PINNED_NOTE, Estimate, EstimatedPhase, EstimatedTerm
from memdiag.records.finding import Finding
from memdiag.records.phases import PHASES, PhaseName
from memdiag.records.probe import Probe
from memdiag.records.profile import Profile, Session
from memdiag.units import MIB, MIN_GROUP_GAP, format_size, two_groups

MIN_NOTABLE_ERROR = 10 * MIB
_MIN_MAIN_SHARE = 0.9
MAX_EXPLAINED_OWNERS = 4
"""Owners of memory, and estimated parts of a peak, in the explanation of a breach."""

MAX_ESTIMATE_ERROR = 0.1
"""An estimate explains a measured peak if it differs by at most this share of the peak."""

PEAK_FIGURES = ("peak", "process_peak", *BUDGET_PHASES)
"""Figures that are peaks. They may include memory that is freed later."""

_PROCESS_OWNERS = ("python", "runtime_libraries", "other_libraries")
"""Owners that exist before the model is loaded. Figures are counted from there."""

UPDATE_OPTION = "--update-baseline"
"""The command-line option that writes a baseline file."""

FigurePhase = Callable[[str], PhaseName | None]


def judge_budget(
    profiles: Sequence[Profile],
    budget: Budget,
    *,
    entry: BaselineEntry | None = None,
    update_option: str = UPDATE_OPTION,
) -> Judgement:
    """Return how a model compares with `budget`, and with `entry` of its baseline file.

    Args:
        profiles: completed runs of the model, each in a process of its own. Copies and findings
            are taken from the first run.
        budget: the limits, for figures above the process's own baseline.
        entry: the entry of the baseline file for this class of machines.
        update_option: the command-line option that updates the baseline file, for messages.

    Raises:
        UsageError: the profile lacks the figure of a limit, or its conditions are not the entry's.
    """
    profile, *_ = profiles
    figures = aggregate_figures(profiles)
    late = max(late_bytes(profiles), entry.late_bytes if entry else 0)
    check_known(
        budget,
        figures,
        model=profile.model.path,
        missing_reason=lambda name: why_missing(profile, name),
    )
    if entry is not None and (differences := condition_differences(entry, profile)):
        raise UsageError(
            f"{profile.model.path}: its baseline cannot be compared: this run had"
            f" {'; '.join(differences)}. {_same_conditions_advice(entry, profile, differences)}, or"
            f" update the baseline ({update_option})."
        )
    baseline_figures = entry.figures if entry else {}
    breaches = tuple(
        find_breaches(
            figures,
            budget,
            baseline_figures,
            lambda name: phase_of_figure(profile, name),
            late=late,
        )
    )
    copies_in_use = copy_totals(profile.attribution) if profile.attribution else ()
    # The entry of a profile without an X-ray has no copies.
    new_copies = (
        new_since(entry.copies, copies_in_use) if entry and "copies" in entry.figures else ()
    )
    copies = new_copies or largest_repeated(copies_in_use)
    return Judgement(
        model=profile.model.path,
        onnxruntime=profile.environment.onnxruntime,
        figures=figures,
        processes=len(profiles),
        budget=budget,
        baseline=baseline_figures,
        baseline_onnxruntime=entry.onnxruntime if entry else None,
        breaches=breaches,
        copies=copies,
        copies_are_new=bool(new_copies),
        suspect=_suspect_finding(
            profile.findings, copies, main_breach(breaches), are_new=bool(new_copies)
        )
        if breaches
        else None,
        notes=(
            *_budget_notes(figures, baseline_figures, budget, late, update_option),
            *_spread_notes(profiles),
            *_device_notes(profile, breaches),
            *((PINNED_NOTE,) if MMAP_THRESHOLD_VARIABLE in profile.session.environment else ()),
        ),
        dimensions=profile.dimensions,
        owners=_largest_model_owners(profile.attribution)
        if breaches and profile.attribution and main_breach(breaches).figure not in DEVICE_FIGURES
        else (),
        peak_terms=_estimated_parts(profile, main_breach(breaches)) if breaches else (),
        arguments=command_arguments(profile.dimensions, profile.session),
    )


def command_arguments(
    dimensions: Sequence[Dimension], session: Session | Estimate
) -> tuple[str, ...]:
    """Return the arguments of ``memdiag estimate`` for these sizes and this session.

    Sizes that memdiag chose are left out, because the command chooses the same.
    """
    sizes = [
        f"{dimension.name}={dimension.size}"
        for dimension in dimensions
        if dimension.source == "given"
    ]
    words = ["--dim", ",".join(sizes)] if sizes else []
    for name, value in session.options.items():
        words += ["--session-option", f"{name}={value}"]
    for name in session.disabled_optimizers:
        words += ["--disable-optimizer", name]
    if session.load_from == "bytes":
        words += ["--load-from", session.load_from]
    return tuple(words)


def largest_terms(phase: EstimatedPhase) -> tuple[EstimatedTerm, ...]:
    """Return the largest estimated parts of the peak of `phase`, the largest first."""
    return tuple(sorted(phase.peak_terms, key=lambda term: -term.bytes)[:MAX_EXPLAINED_OWNERS])


def _estimated_parts(profile: Profile, breach: Breach) -> tuple[EstimatedTerm, ...]:
    """Return the largest estimated parts of the peak that exceeds its limit.

    Empty if `breach` is not of a peak, or if the estimate is too far from the measurement.
    """
    if breach.figure not in PEAK_FIGURES or breach.phase is None or profile.estimate is None:
        return ()
    phase = profile.estimate.phase(breach.phase)
    base = profile.baseline_rss_bytes if breach.figure == "process_peak" else 0
    measured = breach.measured - base
    if phase is None or abs(phase.peak_bytes - measured) > MAX_ESTIMATE_ERROR * measured:
        return ()
    return largest_terms(phase)


def _largest_model_owners(attribution: Attribution) -> tuple[Owner, ...]:
    model_owners = [owner for owner in attribution.owners if owner.kind not in _PROCESS_OWNERS]
    return tuple(sorted(model_owners, key=lambda owner: -owner.bytes)[:MAX_EXPLAINED_OWNERS])


def _spread_notes(profiles: Sequence[Profile]) -> Iterator[str]:
    """Yield a note if the figures of several processes differ notably."""
    all_figures = [figures_of(profile) for profile in profiles]
    for name in ("steady", "peak"):
        sizes = [figures[name] for figures in all_figures if name in figures]
        groups = two_groups(sizes)
        if groups is not None:
            low, high = groups
            yield (
                f"{name} has two values by chance, most often freed memory that malloc keeps or"
                f" returns: {len(low)} of {len(all_figures)} processes are near"
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


def _device_notes(profile: Profile, breaches: Sequence[Breach]) -> Iterator[str]:
    """Yield what is on the GPU if a limit of its memory is exceeded."""
    device = profile.device
    if device is None or device.ledger is None:
        return
    if any(breach.figure in DEVICE_FIGURES for breach in breaches):
        rows = sorted(device.ledger.rows, key=lambda row: -row.bytes)[:MAX_EXPLAINED_OWNERS]
        owners = ", ".join(f"{row.label} {format_size(row.bytes)}" for row in rows)
        yield f"on the GPU after the last run: {owners}"


def judge_probe(probe: Probe, budget: Budget) -> Judgement:
    """Return how the figures of a probed process compare with `budget`.

    Raises:
        UsageError: a limit is of a figure that a probe cannot measure.
    """

    def missing_reason(name: str) -> str:
        return "a probe measures only the process as a whole"

    check_known(budget, probe.figures, model=probe.name, missing_reason=missing_reason)
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
    budget: Budget, figures: Mapping[str, int], *, model: str, missing_reason: Callable[[str], str]
) -> None:
    """Check that each limit of `budget` has a figure.

    Raises:
        UsageError: a limit has none. The message has the result of `missing_reason` for it, and the
            available figures.
    """
    for name in budget.limits:
        if name not in figures:
            raise UsageError(
                f"{model}: cannot check the {name!r} budget: {missing_reason(name)}. Available"
                f" figures: {', '.join(figures)}."
            )


def find_breaches(
    figures: Mapping[str, int],
    budget: Budget,
    baseline_figures: Mapping[str, int],
    phase: FigurePhase,
    *,
    late: int = 0,
) -> Iterator[Breach]:
    """Yield the breaches of `budget`, then the breaches of the baseline.

    Both are in the order of the phases. Figures of phases may exceed the baseline by their possible
    error, `late` bytes.
    """

    def phase_index(name: str) -> int:
        figure_phase = phase(name)
        return PHASES.index(figure_phase) if figure_phase else len(PHASES)

    for name in sorted(budget.limits, key=phase_index):
        limit = budget.limits[name]
        maximum = limit + round((budget.tolerance or 0.0) * limit)
        if figures[name] > maximum:
            yield Breach(
                figure=name,
                phase=phase(name),
                measured=figures[name],
                limit=limit,
                allowed=maximum,
                against="budget",
            )
    for name in sorted(baseline_figures.keys() & figures.keys(), key=phase_index):
        maximum = max_figure(name, baseline_figures[name], budget.tolerance, late=late)
        if figures[name] > maximum:
            yield Breach(
                figure=name,
                phase=phase(name),
                measured=figures[name],
                limit=baseline_figures[name],
                allowed=maximum,
                against="baseline",
            )


def main_breach(breaches: Sequence[Breach]) -> Breach:
    """Return the breach to report first: the earliest of the largest of `breaches`.

    Memory that one phase allocates and keeps is also in all later phases.
    """
    kind = breaches[0].against
    same_kind = [breach for breach in breaches if breach.against == kind]
    in_bytes = [breach for breach in same_kind if FIGURES_BY_NAME[breach.figure].unit == "bytes"]
    comparable = in_bytes or same_kind
    largest = max(breach.over for breach in comparable)
    return next(breach for breach in comparable if breach.over >= _MIN_MAIN_SHARE * largest)


def _suspect_finding(
    findings: Sequence[Finding], copies: Sequence[CopyTotal], breach: Breach, *, are_new: bool
) -> Suspect | None:
    """Return the finding that best lowers the figure of `breach`; None if none does.

    A finding about copies that are new since the baseline comes first, then one that brings the
    figure within its limit, then one that ``memdiag fix`` can mend, then the costliest.

    Args:
        findings: all findings; refuted ones do not count.
        copies: the copies of a judgement.
        breach: the breach.
        are_new: whether the baseline lacks `copies`.
    """
    weights = {row.weight for row in copies}
    is_count = FIGURES_BY_NAME[breach.figure].unit == "count"
    candidates = []
    for finding in findings:
        has_copies = bool(weights.intersection(finding.weights))
        cost = _saved_figure_bytes(finding, breach.figure, has_copies=has_copies)
        if finding.evidence != "refuted" and cost > 0:
            is_enough = is_count or cost >= breach.over
            rank = (has_copies and are_new, is_enough, bool(finding.rewrites), cost)
            candidates.append((rank, cost, finding))
    if not candidates:
        return None
    _, cost, best = max(candidates, key=lambda candidate: candidate[0])
    return Suspect(
        name=best.name, message=best.message, bytes=cost, can_be_fixed=bool(best.rewrites)
    )


def _saved_figure_bytes(finding: Finding, figure: str, *, has_copies: bool) -> int:
    """Return the bytes by which the remedy of `finding` may lower `figure`; 0 if it does not.

    If `figure` is the number of copies, return the bytes of a finding about these copies.
    """
    if figure == "copies":
        return max(finding.bytes, finding.peak_bytes) if has_copies else 0
    if figure in ("peak", "process_peak"):
        return finding.peak_bytes
    if figure in ("steady", "steady_anonymous"):
        return finding.bytes
    if figure not in BUDGET_PHASES:
        return 0
    if finding.phase == figure:
        return max(finding.bytes, finding.peak_bytes)
    # Memory that an earlier phase allocated and keeps is also in this phase.
    is_earlier = finding.phase is None or PHASES.index(finding.phase) < PHASES.index(figure)
    return finding.bytes if is_earlier else 0


def _same_conditions_advice(
    entry: BaselineEntry, profile: Profile, differences: Sequence[str]
) -> str:
    """Return how to measure under the conditions of the baseline file's entry."""
    if len(differences) == 1 and (sizes := dims_of(entry, profile)):
        options = " ".join(f"--dim {name}={size}" for name, size in sizes.items())
        return f"Give the sizes of the baseline (dims={json.dumps(sizes)}, or {options})"
    return "Measure under the same conditions"


def _budget_notes(
    figures: Mapping[str, int],
    baseline_figures: Mapping[str, int],
    budget: Budget,
    late: int,
    update_option: str,
) -> Iterator[str]:
    limited = baseline_figures.keys() | budget.limits.keys()
    if late > MIN_NOTABLE_ERROR and limited.intersection(BUDGET_PHASES):
        yield (
            f"the machine was busy: up to {format_size(late)} may count to the phase before the"
            " one that allocated it"
        )
    for name in baseline_figures.keys() - figures.keys():
        yield f"the baseline has {name}, which this run did not distinguish"
    for name in ("peak", "steady"):
        if name in baseline_figures and name in figures:
            saving_bytes = baseline_figures[name] - figures[name]
            if baseline_figures[name] > max_figure(name, figures[name], budget.tolerance):
                yield (
                    f"{name} is {format_size(saving_bytes)} below the baseline, which may be"
                    f" updated ({update_option})"
                )
