"""Why the peak of a profile is above its steady state, and what its second run adds."""

import msgspec
import pytest

from memdiag.records.estimate import EstimatedPhase, EstimatedPoint, EstimatedTerm, TermName
from memdiag.records.phases import PhaseName
from memdiag.records.profile import Profile
from memdiag.reports.profile.advice import profile_advice
from memdiag.reports.profile.peak import transient_peak_sentence
from memdiag.reports.profile.phases import runs_summary
from memdiag.units import MIB
from tests.reports import estimates, profiles
from tests.reports.findings import TIED

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
    built = profiles.build(steps, runs=3, weights=100)
    return msgspec.structs.replace(built, estimate=estimate)


def terms(**sizes: int) -> tuple[EstimatedTerm, ...]:
    """Return terms, whose names have underscores in place of blanks, of sizes in MiB."""
    found: list[EstimatedTerm] = []
    for key, size in sizes.items():
        name: TermName = key.replace("_", " ")  # type: ignore[assignment] # the names of terms
        found.append(EstimatedTerm(name=name, bytes=size * MIB))
    return tuple(found)


def estimate(phase: PhaseName, cause: str, **peak: int) -> EstimatedPoint:
    """Return an estimate whose `phase` has the terms `peak`, and whose steady state has 154 MiB."""
    steady = terms(weights=20, packed_weights=80, reordered_filters=40, activations=14)
    phases: tuple[EstimatedPhase, ...] = (
        estimates.phase(phase, terms(**peak), terms(weights=100), cause),
        estimates.phase("steady", steady, steady),
    )
    largest = max(phases, key=lambda each: each.peak_bytes)
    return msgspec.structs.replace(
        estimates.point(),
        phases=phases,
        peak_phase=largest.name,
        peak_bytes=largest.peak_bytes,
        steady_bytes=phases[-1].kept_bytes,
    )


@pytest.mark.parametrize(
    ("phase", "cause", "peak", "kept"),
    [
        (
            "optimize",
            "embed.weight",
            {"weights": 140, "weight_being_converted": 60},
            "optimize briefly keeps a converted copy of embed.weight (60 MiB)",
        ),
        (
            "prepack",
            "head.weight",
            {"weights": 100, "packed_weights": 100},
            "prepack briefly keeps head.weight next to its packed copy (60 MiB)",
        ),
        (
            "optimize",
            "conv.weight",
            {"weights": 100, "reordered_filters": 100},
            "optimize briefly keeps filters of convolutions as they were until the last one is"
            " reordered (60 MiB)",
        ),
        (
            "constant_fold",
            "Mul_3",
            {"weights": 40, "folded_constants": 100, "operands_of_folding": 60},
            "constant_fold briefly keeps inputs and results of constant folding until its last node"
            " is evaluated (60 MiB)",
        ),
        (
            "optimize",
            "embed.weight",
            {"weights": 60, "model_file": 80, "weight_being_converted": 60},
            "optimize briefly keeps the parsed file (80 MiB) and a converted copy of embed.weight"
            " (60 MiB)",
        ),
        ("first_run", "MatMul_1", {"weights": 100, "activations": 100}, "the values of a run"),
    ],
)
def test_what_only_the_peak_needs_is_named(
    phase: PhaseName, cause: str, peak: dict[str, int], kept: str
) -> None:
    found = profile(phase, 200, estimate(phase, cause, **peak))
    sentence = transient_peak_sentence(found)
    assert sentence.startswith("The peak is 46 MiB above the steady state: ")
    assert kept in sentence
    advice = profile_advice(found)
    assert advice.reason.startswith(sentence) or advice.result.startswith(sentence)


def test_an_estimate_that_misses_the_peak_names_no_cause_but_the_measured_step() -> None:
    peak = {"weights": 140, "weight_being_converted": 60}
    found = profile("optimize", 230, estimate("optimize", "embed.weight", **peak))
    expected = (
        "The peak is 76 MiB above the steady state, in optimize (GraphPass: +230 MiB at its peak,"
        " +100 MiB kept)."
    )
    assert transient_peak_sentence(found) == expected
    assert transient_peak_sentence(profile("optimize", 230, None)) == expected


def test_a_peak_that_is_the_steady_state_has_no_cause_of_its_own() -> None:
    peak = {"weights": 100, "weight_being_converted": 60}
    near = profile("optimize", 160, estimate("optimize", "embed.weight", **peak))
    advice = profile_advice(near)
    assert "embed.weight" not in advice.result + advice.reason


@pytest.mark.parametrize(
    ("bytes_", "phase", "is_said_twice"), [(0, "optimize", False), (9 * MIB, "optimize", True)]
)
def test_a_finding_about_the_peak_alone_is_its_cause(
    bytes_: int, phase: PhaseName, is_said_twice: bool
) -> None:
    finding = msgspec.structs.replace(TIED, bytes=bytes_, peak_bytes=60 * MIB, phase=phase)
    peak = {"weights": 140, "weight_being_converted": 60}
    found = profile("optimize", 200, estimate("optimize", "embed.weight", **peak))
    advice = profile_advice(msgspec.structs.replace(found, findings=(finding,)))
    text = advice.result + advice.reason
    assert ("briefly keeps a converted copy" in text) is is_said_twice
    if is_said_twice:
        assert f"(60 MiB) [{finding.name}]." in text


@pytest.mark.parametrize(("added", "is_block"), [(30, True), (28, True), (20, False), (0, False)])
def test_growth_in_the_second_run_is_the_planned_block_if_it_is_as_large(
    added: int, is_block: bool
) -> None:
    steady = terms(weights=100, activations=54, planned_block=30)
    predicted = estimate("optimize", "w", weights=100)
    phases = (predicted.phases[0], estimates.phase("steady", steady, steady))
    predicted = msgspec.structs.replace(predicted, phases=phases)
    found = profile("optimize", 100, predicted, after_run=STEADY + added)
    assert found.planned_block_bytes == (added * MIB if is_block else 0)
    growth = runs_summary(found).growth
    assert ("(the block that the memory pattern plans)" in growth) is is_block
