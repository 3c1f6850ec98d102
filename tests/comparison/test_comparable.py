import msgspec
import pytest

from memdiag.comparison.comparable import comparability_of
from memdiag.records.profile import Input, Profile
from tests.reports import profiles


def barred(one: Profile, other: Profile) -> set[str]:
    return {str(metric) for metric in comparability_of(one, other).excluded} - {"outputs"}


def changed(part: str, **changes: object) -> Profile:
    profile = profiles.tied_if()
    inner = msgspec.structs.replace(getattr(profile, part), **changes)
    return msgspec.structs.replace(profile, **{part: inner})


def test_profiles_of_one_machine_are_compared_in_all_but_outputs() -> None:
    found = comparability_of(profiles.tied_if(), profiles.tied_if())
    assert {*found.excluded} == {"outputs"}
    assert found.notes == ("outputs are not compared: saved profiles contain none",)
    assert not found.interleaved


@pytest.mark.parametrize(
    ("part", "field", "value", "expected"),
    [
        ("environment", "cpu", "another", {"load", "latency"}),
        ("environment", "cpu_count", 64, {"load", "latency"}),
        ("environment", "platform", "Windows-11", {"peak", "steady", "kept"}),
        ("environment", "platform", "Linux-7.0-x86_64", set()),
        ("environment", "onnxruntime", "1.2.3", set()),
        ("session", "options", {"intra_op_num_threads": "8"}, {"load", "latency"}),
        ("session", "runs", None, {"peak", "steady", "latency"}),
        ("session", "runs", 3, set()),
    ],
)
def test_what_was_different_bars_what_depends_on_it(
    part: str, field: str, value: object, expected: set[str]
) -> None:
    assert barred(profiles.tied_if(), changed(part, **{field: value})) == expected


def test_other_inputs_and_other_peaks_are_said() -> None:
    one = profiles.tied_if()
    wide = Input(name="ids", dtype="int64", shape=(1, 512), source="given", note="")
    assert barred(one, msgspec.structs.replace(one, inputs=(wide,))) == {
        "peak",
        "steady",
        "latency",
    }
    assert barred(one, profiles.sampled()) >= {"peak"}


def test_models_of_other_sizes_are_compared_with_other_inputs_too() -> None:
    wide = Input(name="ids", dtype="int64", shape=(1, 512), source="given", note="")
    other = msgspec.structs.replace(changed("model", weight_bytes=1), inputs=(wide,))
    found = comparability_of(profiles.tied_if(), other)
    assert {*found.excluded} == {"outputs"}
    assert any("inputs of different shapes" in note for note in found.notes)


def test_reasons_are_said_once_with_all_that_they_bar() -> None:
    found = comparability_of(profiles.tied_if(), changed("environment", cpu="Xeon"))
    assert (
        "load and latency are not compared: they were taken on AMD EPYC, 2 processors and on"
        " Xeon, 2 processors"
    ) in found.notes
