"""What is wrong, why, and what to do: the three sentences of a profile, case by case."""

from typing import Any, Literal

import pytest

from memdiag.records.dimension import Dimension
from memdiag.records.finding import Finding
from memdiag.records.profile import EndCause, Outcome, Profile
from memdiag.reports.findings import profile_summary
from memdiag.reports.profile.advice import profile_advice
from memdiag.runner.failure_text import failure_text
from memdiag.units import MIB
from tests.reports import attributions, profiles, tied_xray
from tests.reports.attributions import owner
from tests.reports.findings import TIED
from tests.reports.rendering import assert_sentences_approved, replaced

XRAYED = tied_xray.with_attribution()
OPENVINO = ("OpenVINOExecutionProvider", "CPUExecutionProvider")
SHRINKAGE = {"memory.enable_memory_arena_shrinkage": "cpu:0"}


def finding(
    nbytes: float, peak: float = 0, remedies: tuple[str, ...] = ("keep-unfolded",), **changes: Any
) -> Finding:
    """Return a finding of so many MiB at steady state and at the peak."""
    sizes = {"bytes": round(nbytes * MIB), "peak_bytes": round(peak * MIB)}
    return replaced(TIED, weights=(), remedies=remedies, **sizes, **changes)


def with_findings(profile: Profile, *findings: Finding) -> Profile:
    return replaced(profile, findings=findings)


def tied(profile: Profile = XRAYED, **changes: Any) -> Profile:
    """Return a profile with the finding of the tied weight, and changes of it."""
    return with_findings(profile, replaced(TIED, **changes))


def peaking(peak: float, slack: float, retained: float = 0, **changes: Any) -> Profile:
    """Return a profile without findings: sizes in MiB above the baseline, 50 of them at the end."""
    steps = (
        profiles.Step("imports", "start", 0.1, 46, 46),
        profiles.Step("runs", "steady", 0.1, 46 + peak, 96),
    )
    free = round(slack * MIB)
    owners = (owner("arena", "slack", free), owner("python", "objects", 96 * MIB - free))
    return replaced(
        profiles.build(steps, weights=40, runs=3),
        attribution=attributions.attribution(owners=owners, resident_bytes=96 * MIB),
        allocator_retained_bytes=round(retained * MIB),
        **changes,
    )


def ended(cause: EndCause) -> Profile:
    outcome = Outcome(status="killed", phase="steady", message="", cause=cause)
    return replaced(profiles.killed(), outcome=outcome)


def bytes_loaded(load_from: Literal["path", "bytes"], **options: str) -> Profile:
    return replaced(
        peaking(50, 0),
        model__file_bytes=20 * MIB,
        session__load_from=load_from,
        session__options={f"session.{name}": value for name, value in options.items()},
    )


def failed_with(message: str) -> Profile:
    outcome = Outcome(status="failed", phase="parse", message=failure_text(message))
    return replaced(profiles.failed(), outcome=outcome)


LITTLE = profiles.build(
    (
        profiles.Step("imports", "start", 0.1, 46, 46),
        profiles.Step("runs", "steady", 0.1, 53.9, 46.1),
    ),
    weights=0,
    runs=3,
)
GROWING = finding(600, remedies=(), name="folding-grows", measured_bytes=None)
MEASURED = finding(300, measured_bytes=300 * MIB)
BOTH = with_findings(XRAYED, GROWING, MEASURED)
PRIVATE = finding(300, is_private=True, rewrites=("a-rewrite",), measured_bytes=300 * MIB)
SIZES = (
    Dimension(name="n", size=4, role="batch", source="given", reason=""),
    Dimension(name="chosen", size=128, role="sequence", source="chosen", reason=""),
    Dimension(name="ids:1", size=32, role="sequence", source="given", reason=""),
)
SPACED = Dimension(name="a b", size=4, role="batch", source="given", reason="")
WASTE = {
    # A record that does not say which rewrites can be applied.
    "tied weight": tied(),
    "a rewrite": tied(rewrites=("overridable-weight",)),
    "an option": tied(rewrites=(), remedies=("disable-prepacking",)),
    "a rewrite that was refused": tied(rewrites=(), remedies=(), refusal="Conv needs it"),
    "refuted by the X-ray": tied(rewrites=("overridable-weight",), evidence="refuted"),
    "nothing to save": tied(rewrites=("a",), bytes=0, peak_bytes=0),
    "predicted": tied(profiles.tied_if(), evidence="predicted", measured_bytes=None),
    "no remedy": tied(profiles.tied_if(), remedies=()),
    "sentence without an end": tied(message="Twice", detail="Seen"),
    "sizes that were given": replaced(tied(), dimensions=SIZES),
    "size with a space": replaced(tied(), dimensions=(SPACED,)),
    "one of two has a remedy": BOTH,
    "one has none, one is of loading": with_findings(XRAYED, GROWING, finding(0, 77)),
    "private memory": with_findings(profiles.tied_if(), PRIVATE),
    "private memory and other": with_findings(profiles.tied_if(), PRIVATE, finding(200)),
    "less than slack": tied(peaking(50, 7), bytes=5 * MIB, rewrites=("deduplicate",)),
    "as much as slack": tied(peaking(50, 7), bytes=7 * MIB, rewrites=("deduplicate",)),
}
OPTIONS = {
    "slack": peaking(50, 12.5),
    "less slack": peaking(50, 12.4),
    "little slack": peaking(50, 4.9),
    "slack, shrinkage is set": peaking(50, 20, session__run_options=SHRINKAGE),
    "retained": peaking(50, 4, 8.5),
    "for a moment": peaking(70, 0),
    "little for a moment": peaking(60, 0),
    "for a moment, and retained": peaking(150, 0, 30),
    "retained, on another provider": peaking(150, 0, 100, session__providers=OPENVINO),
    "another provider": peaking(60, 0, session__providers=OPENVINO),
    "a release without predictions": peaking(60, 0, environment__onnxruntime="1.22.1"),
    "retained, and a remedy": with_findings(peaking(50, 9, 20), finding(15)),
    "bytes of the file": bytes_loaded("bytes"),
    "loaded from a path": bytes_loaded("path"),
    "bytes used directly": bytes_loaded("bytes", use_ort_model_bytes_directly="1"),
    "both settings help": peaking(100, 0, 60, threshold_saved_bytes=55 * MIB),
    "the threshold helps more": peaking(100, 0, 60, threshold_saved_bytes=62 * MIB),
    "only trimming helps": peaking(100, 0, 60, threshold_saved_bytes=5 * MIB),
    "the threshold is set": peaking(
        *(100, 0, 60), session__environment={"MALLOC_MMAP_THRESHOLD_": "131072"}
    ),
    "little memory": replaced(LITTLE, allocator_retained_bytes=0),
    **{
        f"retained by {name}": peaking(50, 0, 40, attribution__allocator=name)
        for name in ("glibc", "jemalloc", "mimalloc", "tcmalloc")
    },
}
ENDS = {
    "killed": profiles.killed(),
    "failed": profiles.failed(),
    "custom operator": failed_with("Fatal error: my.ops:Foo(-1) is not a registered function/op"),
    "interrupted": ended("interrupt"),
    "crash": ended("crash"),
    "killed by the system": ended("sigkill"),
    "unknown": ended(""),
    "nothing seen": profiles.nothing_seen(),
    "tiny": profiles.tiny(),
    "not run": profiles.not_run(),
}


@pytest.mark.parametrize(
    ("name", "cases"), [("waste", WASTE), ("options", OPTIONS), ("ends", ENDS)]
)
def test_the_three_sentences_say_what_is_wrong_why_and_what_to_do(
    name: str, cases: dict[str, Profile]
) -> None:
    sentences = {}
    for case, profile in cases.items():
        advice = profile_advice(profile)
        steps = (f"Do: {step.text} {step.command}".rstrip() for step in advice.steps)
        sentences[case] = (advice.result, f"Why: {advice.reason}".removesuffix("Why: "), *steps)
    assert_sentences_approved(f"profile_advice_{name}", sentences)


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        (WASTE["a rewrite"], ["fix"]),
        (WASTE["an option"], ["fix"]),
        (WASTE["a rewrite that was refused"], ["explain"]),
        (WASTE["no remedy"], ["explain"]),
        (WASTE["refuted by the X-ray"], []),
        (WASTE["nothing to save"], []),
        (OPTIONS["another provider"], []),
        (OPTIONS["a release without predictions"], []),
        (OPTIONS["little memory"], []),
        (ENDS["custom operator"], ["profile", "run"]),
    ],
)
def test_only_what_would_be_done_is_advised(profile: Profile, expected: list[str]) -> None:
    commands = [step.command for step in profile_advice(profile).steps if step.command]
    assert [command.split()[1] for command in commands] == expected


_OPTIONS, _REWRITES = "Measure", "Try the rewrites that can be applied to the model"


@pytest.mark.parametrize(
    ("profile", "finding", "result", "first"),
    [
        pytest.param(
            *(peaking(50, 0, 20), finding(15), "20 MiB of the 50 MiB at steady state is retained"),
            _OPTIONS,
            id="retained",
        ),
        pytest.param(
            *(peaking(50, 0, 15), finding(20), "A part of the memory is waste. Up to 20 MiB"),
            _REWRITES,
            id="less retained",
        ),
        pytest.param(
            *(peaking(50, 20), finding(15), "20 MiB of the 50 MiB at steady state is arena slack"),
            _OPTIONS,
            id="slack",
        ),
        pytest.param(
            *(peaking(50, 20), finding(30, 0, ("arena-shrinkage",)), "20 MiB of the 50 MiB"),
            _OPTIONS,
            id="about slack",
        ),
        pytest.param(
            *(peaking(90, 0), finding(20), "The peak is 40 MiB above the steady", _OPTIONS),
            id="peak",
        ),
        pytest.param(
            *(peaking(90, 0), finding(0, 60), "Loading needs 60 MiB more than", _REWRITES),
            id="less peak",
        ),
        pytest.param(
            *(peaking(400, 0), finding(9), "The peak is 350 MiB above the steady", _OPTIONS),
            id="peak only",
        ),
    ],
)
def test_the_result_is_the_largest_avoidable_memory(
    profile: Profile, finding: Finding, result: str, first: str
) -> None:
    """A finding explains the result unless the result is about another part, with its own cause."""
    advice = profile_advice(with_findings(profile, finding))
    assert advice.result.startswith(result)
    own_causes = "The arena keeps", "malloc keeps"
    assert finding.message in advice.reason or advice.reason.startswith(own_causes)
    step = advice.steps[0]
    assert step.command.startswith("memdiag fix models")
    assert first in step.text
    assert step.text.startswith(_REWRITES) == (first is _REWRITES)


def test_a_summary_counts_what_a_remedy_saves_and_states_the_rest() -> None:
    assert profile_summary(BOTH) == (
        "2 findings, up to 300 MiB avoidable at steady state. No rewrite is known for one of the 2"
        " findings (600 MiB); memdiag fix tries options of the session as well"
    )
    private = profile_summary(WASTE["private memory"])
    assert private == "1 finding, up to 300 MiB of private memory avoidable"


def test_a_hostile_profile_has_an_answer_and_a_step() -> None:
    advice = profile_advice(profiles.hostile())
    assert advice.result
    assert all(step.text for step in advice.steps)
    assert advice.steps
