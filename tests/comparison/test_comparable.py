import msgspec
import pytest

from memdiag.comparison.comparable import comparability_of
from memdiag.records.profile import Input, Profile
from tests.reports import profiles

ALWAYS = {"outputs", "load", "latency"}
"""Profiles have no outputs, and were not taken in turn."""


def barred(one: Profile, other: Profile) -> set[str]:
    return {str(metric) for metric in comparability_of(one, other).excluded} - ALWAYS


def changed(part: str, **changes: object) -> Profile:
    profile = profiles.tied_if()
    inner = msgspec.structs.replace(getattr(profile, part), **changes)
    return msgspec.structs.replace(profile, **{part: inner})


def test_profiles_are_compared_in_memory() -> None:
    found = comparability_of(profiles.tied_if(), profiles.tied_if())
    assert found.excluded.keys() == ALWAYS
    assert found.notes == (
        "outputs are not compared: saved profiles contain none",
        "load and latency are not compared: the profiles were not taken in turn",
    )


@pytest.mark.parametrize(
    ("part", "field", "value", "expected"),
    [
        ("environment", "cpu", "another", set()),
        ("environment", "platform", "Linux-7.0-x86_64", set()),
        ("environment", "onnxruntime", "1.2.3", set()),
        ("session", "runs", None, {"peak", "steady", "mapped"}),
        ("session", "runs", 3, set()),
    ],
)
def test_what_was_different_bars_what_depends_on_it(
    part: str, field: str, value: object, expected: set[str]
) -> None:
    assert barred(profiles.tied_if(), changed(part, **{field: value})) == expected


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"options": {"enable_cpu_mem_arena": "0"}}, "the second ran with enable_cpu_mem_arena=0"),
        ({"environment": {"OMP_NUM_THREADS": "2"}}, "the second ran with OMP_NUM_THREADS=2"),
        ({"load_from": "bytes"}, "the second ran with the file's bytes"),
        ({}, ""),
    ],
)
def test_different_settings_are_named(changes: dict[str, object], note: str) -> None:
    bare = changed("session", options={}, environment={}, run_options={}, load_from="path")
    other = msgspec.structs.replace(bare, session=msgspec.structs.replace(bare.session, **changes))
    remarks = comparability_of(bare, other).remarks
    assert remarks == ((note,) if note else ())


def test_other_inputs_and_other_peaks_are_said() -> None:
    one = profiles.tied_if()
    wide = Input(name="ids", dtype="int64", shape=(1, 512), source="given", note="")
    assert barred(one, msgspec.structs.replace(one, inputs=(wide,))) == {
        "peak",
        "steady",
        "mapped",
    }
    assert barred(one, profiles.sampled()) >= {"peak"}


def test_models_of_other_sizes_are_compared_with_other_inputs_too() -> None:
    wide = Input(name="ids", dtype="int64", shape=(1, 512), source="given", note="")
    other = msgspec.structs.replace(changed("model", weight_bytes=1), inputs=(wide,))
    found = comparability_of(profiles.tied_if(), other)
    assert found.excluded.keys() == ALWAYS
    assert any("inputs of different shapes" in note for note in found.notes)
