"""Comparison of an estimate with a budget, without a run."""

from memdiag.budgets.evaluation import (
    PEAK_FIGURES,
    check_known,
    command_arguments,
    find_breaches,
    largest_terms,
    main_breach,
)
from memdiag.budgets.figures import BUDGET_PHASES
from memdiag.errors import UsageError
from memdiag.records.budget import Budget, Judgement
from memdiag.records.estimate import Estimate
from memdiag.records.phases import PhaseName
from memdiag.units import counted, format_size, plural

ESTIMATED_FIGURES = ("peak", "steady", *BUDGET_PHASES, "process_peak")
"""Names of the figures that an estimate can have."""


def estimated_figures(estimate: Estimate) -> dict[str, int]:
    """Return the figures of `estimate` at its first point, in bytes.

    Memory is counted above the process before the session. Only `process_peak` includes that
    process and the inputs; it is missing if the size of the process is not known.
    """
    point = estimate.point
    figures = {"peak": point.peak_bytes, "steady": point.steady_bytes}
    figures |= {
        phase.name: phase.peak_bytes for phase in point.phases if phase.name in BUDGET_PHASES
    }
    if estimate.baseline_bytes is not None:
        figures["process_peak"] = estimate.beside_bytes(point) + point.peak_bytes
    return figures


def judge_estimate(estimate: Estimate, budget: Budget) -> Judgement:
    """Return how `estimate` compares with `budget`.

    Raises:
        UsageError: the estimate lacks the figure of a limit, or whether a limit is kept depends on
            values whose sizes only a run shows.
    """
    point = estimate.point
    figures = estimated_figures(estimate)

    def missing_reason(name: str) -> str:
        if name == "process_peak":
            return "the process before the session is not known for this release"
        return "it cannot be estimated"

    def phase_of(name: str) -> PhaseName | None:
        if name in ("peak", "process_peak"):
            return point.peak_phase
        return next((phase for phase in BUDGET_PHASES if phase == name), "steady")

    check_known(budget, figures, model=estimate.model, missing_reason=missing_reason)
    kind = "an upper bound" if estimate.is_upper else "an estimate"
    note = f"{kind} for onnxruntime {estimate.onnxruntime}, not measured"
    if not estimate.is_upper:
        low, high = format_size(point.low_bytes), format_size(point.high_bytes)
        note += f"; the peak is expected between {low} and {high}"
    breaches = tuple(find_breaches(figures, budget, {}, phase_of))
    if point.unknown_values and not estimate.calibration and not breaches:
        unknown_bytes = point.high_bytes - point.peak_bytes
        largest_figures = {name: size + unknown_bytes for name, size in figures.items()}
        if not point.is_bounded or any(find_breaches(largest_figures, budget, {}, phase_of)):
            count = point.unknown_values
            raise UsageError(
                f"{estimate.model}: an estimate cannot say whether it keeps the budget, which"
                f" depends on {counted(count, 'value')} whose {plural(count, 'size', 'sizes')} only"
                " a run shows. Measure it instead."
            )
    first_breach = main_breach(breaches) if breaches else None
    explained_phase = (
        point.phase(first_breach.phase)
        if first_breach and first_breach.phase and first_breach.figure in PEAK_FIGURES
        else None
    )
    arguments = command_arguments(estimate.dimensions, estimate)
    return Judgement(
        model=estimate.model,
        onnxruntime=estimate.onnxruntime,
        figures=figures,
        processes=0,
        budget=budget,
        breaches=breaches,
        notes=(note, *estimate.notes),
        dimensions=estimate.dimensions,
        peak_terms=largest_terms(explained_phase) if explained_phase else (),
        arguments=(*arguments, "--for-onnxruntime", estimate.onnxruntime),
    )
