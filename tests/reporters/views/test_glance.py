import msgspec

from memdiag.records.profile import Profile
from memdiag.reporters.views import glance
from tests.reporters import fix_records, profiles, tied_xray
from tests.reporters.findings import TIED


def found(profile: Profile, **changes: object) -> Profile:
    finding = msgspec.structs.replace(TIED, **changes)
    return msgspec.structs.replace(profile, findings=(finding,))


def test_the_three_sentences_say_what_is_wrong_why_and_what_to_do() -> None:
    shown = glance.build(found(tied_xray.with_attribution()))
    assert shown.wrong == (
        "Most of the memory is waste: model.shared.weight +1 more (500 MiB) is in memory three"
        " times. Up to 1,000 MiB of 1.50 GiB could be saved."
    )
    assert shown.why == f"{TIED.message} {TIED.detail}"
    assert shown.command == "memdiag fix models/tied_if.onnx"


def test_what_was_not_measured_is_said_to_be_predicted() -> None:
    shown = glance.build(found(profiles.tied_if(), evidence="predicted", measured_bytes=None))
    assert "By the rules, up to 1,000 MiB" in shown.wrong
    assert shown.why.endswith("(Predicted from the model file.)")


def test_what_a_measurement_refuted_is_no_waste() -> None:
    shown = glance.build(found(tied_xray.with_attribution(), evidence="refuted"))
    assert shown.wrong == "No waste was found: the model keeps 1.50 GiB, 3.1 × its weights."
    assert not shown.command


def test_a_finding_without_a_remedy_is_explained() -> None:
    shown = glance.build(found(profiles.tied_if(), remedies=()))
    assert shown.command == "memdiag explain shared-weight-transposed"


def test_a_run_that_ended_early_says_so_first() -> None:
    shown = glance.build(profiles.killed())
    assert shown.wrong.startswith("The run did not complete. Killed in constant_fold at ")
    assert shown.command == "memdiag tune models/tied_if.onnx"
    assert not glance.build(profiles.failed()).command


def test_every_profile_has_an_answer() -> None:
    for build in (profiles.nothing_seen, profiles.tiny, profiles.hostile, profiles.not_run):
        shown = glance.build(build())
        assert shown.wrong
        assert shown.remedy


def test_a_fix_that_was_joined_is_what_to_do_and_what_is_wrong_stays() -> None:
    profile = found(tied_xray.with_attribution())
    fixed = glance.build(msgspec.structs.replace(profile, fix=fix_records.verified()))
    assert fixed.wrong == glance.build(profile).wrong
    assert fixed.remedy.startswith("Fixed by good-one: peak 1.55 GiB → 559 MiB, ")
    assert fixed.command == ""
    dry = glance.build(msgspec.structs.replace(profile, fix=fix_records.dry_run()))
    assert dry == glance.build(profile)
