"""Why the peak of a profile is above its steady state, and what its second run adds."""

import pytest

from memdiag.records.estimate import EstimatedPoint, EstimatedTerm
from memdiag.records.phases import PhaseName
from memdiag.records.profile import Profile
from memdiag.reports.profile.advice import profile_advice
from memdiag.reports.profile.peak import transient_peak_sentence
from memdiag.reports.profile.phases import runs_summary
from memdiag.units import MIB
from tests.reports import estimates, profiles
from tests.reports.findings import TIED
from tests.reports.rendering import assert_sentences_approved, replaced

BASELINE, STEADY = 46, 154


def profile(
    phase: PhaseName, peak: float, estimate: EstimatedPoint | None, after_run: float = STEADY
) -> Profile:
    """Return a profile with a peak in `phase`, in MiB above the baseline like all sizes."""
    steps = (
        profiles.Step("imports", "start", 0.1, BASELINE, BASELINE),
        profiles.Step("GraphPass", phase, 0.1, BASELINE + peak, BASELINE + 100),
        profiles.Step("first run", "first_run", 0.1, BASELINE + STEADY, BASELINE + STEADY),
        profiles.Step("runs", "steady", 0.1, BASELINE + after_run, BASELINE + after_run),
    )
    return replaced(profiles.build(steps, runs=3, weights=100), estimate=estimate)


def terms(sizes: dict[str, int]) -> tuple[EstimatedTerm, ...]:
    """Return terms of sizes in MiB by their names."""
    return tuple(EstimatedTerm(name=name, bytes=size * MIB) for name, size in sizes.items())  # type: ignore[arg-type] # the names of terms


LASTING = {"weights": 20, "packed weights": 80, "reordered filters": 40, "activations": 14}


def estimate(
    phase: PhaseName, cause: str, peak: dict[str, int], lasting: dict[str, int] = LASTING
) -> EstimatedPoint:
    """Return an estimate whose `phase` has the terms `peak`, and whose steady state `lasting`."""
    steady = terms(lasting)
    phases = (
        estimates.phase(phase, terms(peak), terms({"weights": 100}), cause),
        estimates.phase("steady", steady, steady),
    )
    largest = max(phases, key=lambda phase: phase.peak_bytes)
    return replaced(
        estimates.point(),
        phases=phases,
        peak_phase=largest.name,
        peak_bytes=largest.peak_bytes,
        steady_bytes=phases[-1].kept_bytes,
    )


CONVERTED = {"weights": 140, "weight being converted": 60}
CONVERTING = profile("optimize", 200, estimate("optimize", "embed.weight", CONVERTED))
PACKED = {"weights": 100, "packed weights": 100}
REORDERED = {"weights": 100, "reordered filters": 100}
FOLDED = {"weights": 40, "folded constants": 100, "operands of folding": 60}
PARSED = {"weights": 60, "model file": 80, "weight being converted": 60}
VALUES = {"weights": 100, "activations": 100}
PEAKS = {
    "converted weight": CONVERTING,
    "packed weight": profile("prepack", 200, estimate("prepack", "head.weight", PACKED)),
    "reordered filters": profile("optimize", 200, estimate("optimize", "conv.weight", REORDERED)),
    "folding": profile("constant_fold", 200, estimate("constant_fold", "Mul_3", FOLDED)),
    "parsed file": profile("optimize", 200, estimate("optimize", "embed.weight", PARSED)),
    "values of a run": profile("first_run", 200, estimate("first_run", "MatMul_1", VALUES)),
    "estimate misses the peak": profile(
        "optimize", 230, estimate("optimize", "embed.weight", CONVERTED)
    ),
    "no estimate": profile("optimize", 230, None),
}


def test_what_only_the_peak_needs_is_named() -> None:
    """Where the estimate misses the peak, the measured step is named."""
    sentences = {case: transient_peak_sentence(peaking) for case, peaking in PEAKS.items()}
    assert_sentences_approved(
        "profile_peaks", {case: (sentence,) for case, sentence in sentences.items()}
    )
    for case in sentences.keys() - {"estimate misses the peak", "no estimate"}:
        advice = profile_advice(PEAKS[case])
        assert (advice.reason + advice.result).count(sentences[case]) == 1


def test_a_peak_that_is_the_steady_state_has_no_cause_of_its_own() -> None:
    peak = {"weights": 100, "weight being converted": 60}
    advice = profile_advice(profile("optimize", 160, estimate("optimize", "embed.weight", peak)))
    assert "embed.weight" not in advice.result + advice.reason


@pytest.mark.parametrize(("nbytes", "is_said_twice"), [(0, False), (9 * MIB, True)])
def test_a_finding_about_the_peak_alone_is_its_cause(nbytes: int, is_said_twice: bool) -> None:
    finding = replaced(TIED, bytes=nbytes, peak_bytes=60 * MIB, phase="optimize")
    advice = profile_advice(replaced(CONVERTING, findings=(finding,)))
    text = advice.result + advice.reason
    assert ("briefly keeps a converted copy" in text) is is_said_twice
    assert (f"(60 MiB) [{finding.name}]." in text) is is_said_twice


@pytest.mark.parametrize(("added", "is_block"), [(30, True), (28, True), (20, False), (0, False)])
def test_growth_in_the_second_run_is_the_planned_block_if_it_is_as_large(
    added: int, is_block: bool
) -> None:
    lasting = {"weights": 100, "activations": 54, "planned block": 30}
    predicted = estimate("optimize", "w", {"weights": 100}, lasting)
    growing = profile("optimize", 100, predicted, after_run=STEADY + added)
    assert growing.planned_block_bytes == (added * MIB if is_block else 0)
    growth = runs_summary(growing).growth
    assert ("(the block that the memory pattern plans)" in growth) is is_block
