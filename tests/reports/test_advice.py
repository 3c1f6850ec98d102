from typing import Literal

import msgspec
import pytest

from memdiag.defaults import PINNED_TEXT
from memdiag.records.attribution import Owner
from memdiag.records.dimension import Dimension
from memdiag.records.finding import Finding
from memdiag.records.profile import EndCause, Outcome, Profile
from memdiag.reports.findings import profile_summary
from memdiag.reports.profile.advice import ProfileAdvice, profile_advice
from memdiag.runner.failure_text import failure_text
from memdiag.units import MIB
from tests.reports import attributions, profiles, tied_xray
from tests.reports.findings import TIED


def commands(shown: ProfileAdvice) -> list[str]:
    return [step.command for step in shown.steps if step.command]


def found(profile: Profile, **changes: object) -> Profile:
    finding = msgspec.structs.replace(TIED, **changes)
    return msgspec.structs.replace(profile, findings=(finding,))


def test_the_three_sentences_say_what_is_wrong_why_and_what_to_do() -> None:
    shown = profile_advice(found(tied_xray.with_attribution()))
    assert shown.result == (
        "Most of the memory is waste: model.shared.weight +1 more (500 MiB) is in memory three"
        " times. Up to 1,000 MiB of 1.50 GiB could be saved."
    )
    assert shown.reason == TIED.message
    # A record that does not say which rewrites can be applied.
    assert commands(shown) == ["memdiag fix models/tied_if.onnx"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rewrites": ("overridable-weight",)}, ["fix"]),
        ({"rewrites": (), "remedies": ("disable-prepacking",)}, ["fix"]),
        ({"rewrites": (), "remedies": (), "refusal": "Conv needs it"}, ["explain"]),
        ({"rewrites": ("overridable-weight",), "evidence": "refuted"}, []),
        ({"rewrites": ("a",), "bytes": 0, "peak_bytes": 0}, []),
    ],
)
def test_only_what_would_be_done_is_advised(
    changes: dict[str, object], expected: list[str]
) -> None:
    shown = profile_advice(found(tied_xray.with_attribution(), **changes))
    assert [command.split()[1] for command in commands(shown)] == expected
    text = " ".join(step.text for step in shown.steps)
    assert ("Conv needs it" in text) == ("refusal" in changes)


def test_nothing_for_the_cpu_provider_is_advised_for_another() -> None:
    providers = ("OpenVINOExecutionProvider", "CPUExecutionProvider")

    def on_openvino(profile: Profile) -> Profile:
        session = msgspec.structs.replace(profile.session, providers=providers)
        return msgspec.structs.replace(profile, session=session)

    retained = profile_advice(on_openvino(peaking(150, 0, 100)))
    (step,) = retained.steps
    assert step.text.startswith("Call malloc_trim(0) after the first runs")
    assert not step.command
    plain = profile_advice(on_openvino(peaking(60, 0)))
    assert "The rules for waste are for the CPU provider only." in plain.result
    assert commands(plain) == []


def test_nothing_is_advised_for_a_release_without_predictions() -> None:
    profile = peaking(60, 0)
    environment = msgspec.structs.replace(profile.environment, onnxruntime="1.22.1")
    older = profile_advice(msgspec.structs.replace(profile, environment=environment))
    assert "No rule was applied: memdiag predicts for 1.24 and newer." in older.result
    assert commands(older) == []
    assert profile_advice(peaking(60, 0)).result.startswith("No waste was found")


def peaking(peak: float, slack: float, retained: float = 0) -> Profile:
    """Return a profile without findings: sizes in MiB above the baseline, 50 of them at the end."""
    steps = (
        profiles.Step("imports", "start", 0.1, 46, 46),
        profiles.Step("runs", "steady", 0.1, 46 + peak, 96),
    )
    profile = profiles.build(steps, weights=40, runs=3)
    owners = (
        Owner(
            kind="arena", name="slack", bytes=round(slack * MIB), private_bytes=round(slack * MIB)
        ),
        Owner(
            kind="python",
            name="objects",
            bytes=round((96 - slack) * MIB),
            private_bytes=round((96 - slack) * MIB),
        ),
    )
    taken = attributions.attribution(owners=owners, resident_bytes=96 * MIB)
    return msgspec.structs.replace(
        profile, attribution=taken, allocator_retained_bytes=round(retained * MIB)
    )


@pytest.mark.parametrize(
    ("profile", "size"),
    [
        (peaking(50, 12.5), "12 MiB of the 50 MiB"),
        (peaking(50, 12.4), None),
        (peaking(50, 4, 8.5), "8.5 MiB of the 50 MiB"),
        (peaking(70, 0), "The peak is 20 MiB above the steady state, in steady (runs:"),
        (peaking(60, 0), None),
    ],
    ids=["slack", "less slack", "retained", "for a moment", "little for a moment"],
)
def test_options_are_advised_where_much_of_the_peak_is_unused(
    profile: Profile, size: str | None
) -> None:
    shown = profile_advice(profile)
    assert ("No waste was found" in shown.result) == (size is None)
    assert size is None or size in shown.result


def test_a_part_that_an_option_may_save_is_named_where_no_rule_applies() -> None:
    (step,) = profile_advice(peaking(50, 12.4)).steps
    assert "arena slack 12 MiB (same-as-requested or arena-off)" in step.text
    assert step.command == "memdiag fix models/tied_if.onnx"
    (step,) = profile_advice(peaking(50, 4.9)).steps
    assert step.text == "Nothing: no rewrite and no session option is expected to save much."


def test_an_option_that_is_set_is_not_advised() -> None:
    default = peaking(50, 20)
    run_options = {"memory.enable_memory_arena_shrinkage": "cpu:0"}
    session = msgspec.structs.replace(default.session, run_options=run_options)
    for profile, start in (
        (default, "Set the run option memory.enable_memory_arena_shrinkage=cpu:0, or enable_cpu"),
        (msgspec.structs.replace(default, session=session), "Set enable_cpu_mem_arena=False with"),
    ):
        (step,) = profile_advice(profile).steps
        assert step.text.startswith(start)


def finding(
    nbytes: float, peak: float = 0, remedies: tuple[str, ...] = ("keep-unfolded",)
) -> Finding:
    """Return a finding of so many MiB at steady state and at the peak."""
    return msgspec.structs.replace(
        TIED, bytes=round(nbytes * MIB), peak_bytes=round(peak * MIB), remedies=remedies, weights=()
    )


_OPTIONS, _REWRITES = "Measure", "Try the rewrites that can be applied to the model"


@pytest.mark.parametrize(
    ("profile", "finding", "result", "first"),
    [
        (
            peaking(50, 0, 20),
            finding(15),
            "20 MiB of the 50 MiB at steady state is retained by",
            _OPTIONS,
        ),
        (
            peaking(50, 0, 15),
            finding(20),
            "A part of the memory is waste. Up to 20 MiB",
            _REWRITES,
        ),
        (
            peaking(50, 20),
            finding(15),
            "20 MiB of the 50 MiB at steady state is arena slack",
            _OPTIONS,
        ),
        (
            peaking(50, 20),
            finding(30, 0, ("arena-shrinkage",)),
            "20 MiB of the 50 MiB",
            _OPTIONS,
        ),
        (peaking(90, 0), finding(20), "The peak is 40 MiB above the steady", _OPTIONS),
        (
            peaking(90, 0),
            finding(0, 60),
            "Loading needs 60 MiB more than necessary",
            _REWRITES,
        ),
        (peaking(400, 0), finding(9), "The peak is 350 MiB above the steady", _OPTIONS),
    ],
    ids=["retained", "less retained", "slack", "about slack", "peak", "less peak", "peak only"],
)
def test_the_result_is_the_largest_avoidable_memory(
    profile: Profile, finding: Finding, result: str, first: str
) -> None:
    """A finding explains the result unless the result is about another part, with its own cause."""
    shown = profile_advice(msgspec.structs.replace(profile, findings=(finding,)))
    assert shown.result.startswith(result)
    own_causes = "The arena keeps", "malloc keeps"
    assert finding.message in shown.reason or shown.reason.startswith(own_causes)
    assert commands(shown)[0].startswith("memdiag fix models")
    assert first in shown.steps[0].text
    assert shown.steps[0].text.startswith(_REWRITES) == (first is _REWRITES)


def test_the_result_names_the_other_avoidable_memory_and_what_ends_the_largest() -> None:
    profile = msgspec.structs.replace(peaking(50, 9, 20), findings=(finding(15),))
    shown = profile_advice(profile)
    assert shown.result.endswith(
        "Also avoidable: up to 15 MiB by the remedies of shared-weight-transposed, 9.0 MiB arena"
        " slack."
    )
    assert "MALLOC_MMAP_THRESHOLD_=131072" in shown.steps[0].text


@pytest.mark.parametrize(
    ("allocator", "setting"),
    [
        ("glibc", "MALLOC_MMAP_THRESHOLD_=131072"),
        ("jemalloc", "MALLOC_CONF=dirty_decay_ms:0,muzzy_decay_ms:0"),
        ("mimalloc", "MIMALLOC_DECOMMIT_DELAY=0"),
        ("tcmalloc", "TCMALLOC_AGGRESSIVE_DECOMMIT=t"),
    ],
)
def test_the_setting_that_ends_retained_memory_is_the_allocators(
    allocator: str, setting: str
) -> None:
    profile = peaking(50, 0, 40)
    assert profile.attribution is not None
    attribution = msgspec.structs.replace(profile.attribution, allocator=allocator)
    shown = profile_advice(msgspec.structs.replace(profile, attribution=attribution))
    assert setting in shown.steps[0].text
    assert shown.reason.startswith("malloc" if allocator == "glibc" else allocator)
    slack = profile_advice(peaking(50, 20))
    assert "Also avoidable" not in slack.result
    assert "memory.enable_memory_arena_shrinkage=cpu:0" in slack.steps[0].text
    assert f"enable_cpu_mem_arena=False with {PINNED_TEXT}." in slack.steps[0].text


TRIM, THRESHOLD = "malloc_trim(0): it returned 60 MiB", "another process had {} MiB less"


@pytest.mark.parametrize(
    ("saved", "environment", "named"),
    [
        (55, {}, (TRIM, THRESHOLD.format(55))),
        (62, {}, (THRESHOLD.format(62), TRIM)),
        (5, {}, (TRIM,)),
        (None, {"MALLOC_MMAP_THRESHOLD_": "131072"}, (TRIM,)),
    ],
    ids=["both help", "the threshold helps more", "only trimming helps", "it is set already"],
)
def test_what_was_measured_to_return_retained_memory_is_advised(
    saved: int | None, environment: dict[str, str], named: tuple[str, ...]
) -> None:
    profile = peaking(100, 0, 60)
    profile = msgspec.structs.replace(
        profile,
        threshold_saved_bytes=None if saved is None else saved * MIB,
        session=msgspec.structs.replace(profile.session, environment=environment),
    )
    text = profile_advice(profile).steps[0].text
    positions = [text.index(words) for words in named]
    assert positions == sorted(positions)
    assert ("MALLOC_MMAP_THRESHOLD_" in text) == any("another process" in words for words in named)
    assert "Measure what other settings save" in text


def test_a_setting_is_named_beside_what_only_a_phase_needs() -> None:
    shown = profile_advice(peaking(150, 0, 30))
    assert shown.result.startswith("The peak is 100 MiB above the steady state, in steady")
    assert "malloc_trim(0): it returned 30 MiB" in shown.steps[0].text


@pytest.mark.parametrize(
    ("load_from", "options", "is_named"),
    [
        ("bytes", {}, True),
        ("path", {}, False),
        ("bytes", {"session.use_ort_model_bytes_directly": "1"}, False),
    ],
)
def test_bytes_that_a_session_keeps_are_named(
    load_from: Literal["path", "bytes"], options: dict[str, str], is_named: bool
) -> None:
    profile = peaking(50, 0)
    profile = msgspec.structs.replace(
        profile,
        model=msgspec.structs.replace(profile.model, file_bytes=20 * MIB),
        session=msgspec.structs.replace(profile.session, load_from=load_from, options=options),
    )
    shown = profile_advice(profile)
    assert ("20 MiB of the 50 MiB at steady state is the bytes of" in shown.result) == is_named
    assert ("session._model_bytes = None" in shown.steps[0].text) == is_named


def test_each_reason_ends_with_a_full_stop() -> None:
    shown = profile_advice(found(tied_xray.with_attribution(), message="Twice", detail="Seen"))
    assert shown.reason == "Twice."


def test_little_memory_is_not_tuned_whatever_its_share() -> None:
    steps = (
        profiles.Step("imports", "start", 0.1, 46, 46),
        profiles.Step("runs", "steady", 0.1, 53.9, 46.1),
    )
    profile = profiles.build(steps, weights=0, runs=3)
    profile = msgspec.structs.replace(profile, allocator_retained_bytes=0)
    assert commands(profile_advice(profile)) == []


def test_parts_larger_than_what_a_rewrite_saves_are_named_beside_it() -> None:
    def advised(avoidable: float) -> str:
        profile = found(peaking(50, 7), bytes=round(avoidable * MIB), rewrites=("deduplicate",))
        (step,) = profile_advice(profile).steps
        assert step.command == "memdiag fix models/tied_if.onnx"
        return step.text

    assert "verified. Besides, a part of this may be saved: arena slack 7.0 MiB" in advised(5)
    assert "may be saved" not in advised(7)


def test_what_was_not_measured_is_said_to_be_predicted() -> None:
    shown = profile_advice(found(profiles.tied_if(), evidence="predicted", measured_bytes=None))
    assert "By the rules, up to 1,000 MiB" in shown.result
    assert shown.reason.endswith("(Predicted from the model file.)")


def test_what_a_measurement_refuted_is_no_waste() -> None:
    shown = profile_advice(found(tied_xray.with_attribution(), evidence="refuted"))
    assert shown.result == "No waste was found: the model keeps 1.50 GiB, 3.1 × its weights."
    assert not commands(shown)


def test_a_finding_without_a_remedy_is_explained() -> None:
    shown = profile_advice(found(profiles.tied_if(), remedies=()))
    assert commands(shown) == ["memdiag explain shared-weight-transposed"]


def test_the_result_counts_what_a_remedy_saves_and_states_the_rest() -> None:
    profile = tied_xray.with_attribution()
    growing = finding(600, remedies=())
    growing = msgspec.structs.replace(growing, name="folding-grows", measured_bytes=None)
    tied = msgspec.structs.replace(finding(300), measured_bytes=300 * MIB)
    both = msgspec.structs.replace(profile, findings=(growing, tied))
    assert profile_advice(both).result == (
        "A part of the memory is waste. Up to 300 MiB of 1.50 GiB could be saved. No rewrite saves"
        " the 600 MiB of the finding folding-grows."
    )
    assert profile_summary(both) == (
        "2 findings, up to 300 MiB avoidable at steady state. No rewrite is known for one of the 2"
        " findings (600 MiB); memdiag fix tries options of the session as well"
    )
    at_load = msgspec.structs.replace(profile, findings=(growing, finding(0, 77)))
    assert profile_advice(at_load).result == (
        "Loading needs 77 MiB more than necessary. No rewrite saves the 600 MiB of the finding"
        " folding-grows."
    )


def test_a_run_that_ended_early_says_so_first() -> None:
    shown = profile_advice(profiles.killed())
    assert shown.result.startswith("The run did not complete. Killed in constant_fold at ")
    assert commands(shown) == ["memdiag fix models/tied_if.onnx"]
    assert not commands(profile_advice(profiles.failed()))


def test_a_model_with_custom_operators_needs_their_library() -> None:
    message = failure_text("Fatal error: my.ops:Foo(-1) is not a registered function/op")
    outcome = Outcome(status="failed", phase="parse", message=message)
    shown = profile_advice(msgspec.structs.replace(profiles.failed(), outcome=outcome))
    assert [command.partition(" models/")[0] for command in commands(shown)] == [
        "memdiag profile",
        "memdiag run -- python app.py",
    ]


def test_every_profile_has_an_answer() -> None:
    for build in (profiles.nothing_seen, profiles.tiny, profiles.hostile, profiles.not_run):
        shown = profile_advice(build())
        assert shown.result
        assert shown.steps
        assert all(step.text for step in shown.steps)


def test_commands_repeat_the_sizes_that_were_given() -> None:
    sizes = (
        Dimension(name="n", size=4, role="batch", source="given", reason=""),
        Dimension(name="chosen", size=128, role="sequence", source="chosen", reason=""),
        Dimension(name="ids:1", size=32, role="sequence", source="given", reason=""),
    )
    profile = msgspec.structs.replace(found(tied_xray.with_attribution()), dimensions=sizes)
    assert commands(profile_advice(profile)) == [
        "memdiag fix models/tied_if.onnx --dim n=4,ids:1=32"
    ]
    spaced = (Dimension(name="a b", size=4, role="batch", source="given", reason=""),)
    profile = msgspec.structs.replace(profile, dimensions=spaced)
    assert commands(profile_advice(profile))[0].endswith("--dim 'a b=4'")


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("interrupt", "Run it again to the end"),
        ("crash", "onnxruntime crashed"),
        ("sigkill", "Give it more time or memory"),
        ("", "Give it more time or memory"),
    ],
)
def test_what_to_do_after_a_crash_is_not_to_give_it_more_memory(
    cause: EndCause, words: str
) -> None:
    outcome = Outcome(status="killed", phase="steady", message="", cause=cause)
    shown = profile_advice(msgspec.structs.replace(profiles.killed(), outcome=outcome))
    assert words in shown.steps[0].text


def test_what_only_private_memory_is_saved_of_is_no_saving() -> None:
    private = msgspec.structs.replace(
        finding(300), is_private=True, rewrites=("a-rewrite",), measured_bytes=300 * MIB
    )
    profile = msgspec.structs.replace(profiles.tied_if(), findings=(private,))
    advice = profile_advice(profile)
    assert advice.result.startswith("300 MiB of the 1.50 GiB is private, and could be mapped")
    assert advice.steps[0].command.endswith("--session-option session.disable_prepacking=1")
    assert profile_summary(profile) == "1 finding, up to 300 MiB of private memory avoidable"
    # Beside one that lowers the resident set it does not count.
    profile = msgspec.structs.replace(profile, findings=(private, finding(200)))
    assert "Up to 200 MiB of 1.50 GiB could be saved." in profile_advice(profile).result
