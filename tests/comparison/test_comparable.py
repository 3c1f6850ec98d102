import msgspec
import pytest

from memdiag.comparison.comparable import comparability_of
from memdiag.records.profile import Input, Profile
from tests.reports import profiles

MEMORY = {"peak", "steady", "mapped", "device_peak", "device_steady", "kept"}
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
    ("part", "changes", "expected"),
    [
        ("environment", {"cpu": "another"}, set()),
        ("environment", {"platform": "Linux-7.0-x86_64"}, set()),
        ("environment", {"onnxruntime": "1.2.3"}, set()),
        ("session", {"runs": None}, MEMORY),
        ("session", {"runs": 3}, set()),
    ],
)
def test_what_was_different_bars_what_depends_on_it(
    part: str, changes: dict[str, object], expected: set[str]
) -> None:
    assert barred(profiles.tied_if(), changed(part, **changes)) == expected


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"options": {"enable_cpu_mem_arena": "0"}}, "the second ran with enable_cpu_mem_arena=0"),
        ({"environment": {"OMP_NUM_THREADS": "2"}}, "the second ran with OMP_NUM_THREADS=2"),
        ({"load_from": "bytes"}, "the second ran with the file's bytes"),
        (
            {"providers": ("X", "Y"), "provider_options": {"X": {"a": "1", "b": "2"}}},
            "the second ran with a=1, b=2, X, Y",
        ),
        ({"providers": ("CPUExecutionProvider",)}, ""),
        ({}, ""),
    ],
)
def test_different_settings_are_named(changes: dict[str, object], note: str) -> None:
    bare = changed("session", options={}, environment={}, run_options={}, load_from="path")
    other = msgspec.structs.replace(bare, session=msgspec.structs.replace(bare.session, **changes))
    remarks = comparability_of(bare, other).remarks
    assert remarks == ((note,) if note else ())


def with_input(profile: Profile, name: str, *shape: int) -> Profile:
    made = Input(name=name, dtype="int64", shape=shape, source="given", note="")
    return msgspec.structs.replace(profile, inputs=(made,))


@pytest.mark.parametrize("weight_bytes", [None, 1])
def test_inputs_with_another_shape_are_named(weight_bytes: int | None) -> None:
    """Whether the models are the same or not."""
    one = with_input(profiles.tied_if(), "ids", 1, 8)
    other = profiles.tied_if() if weight_bytes is None else changed("model", weight_bytes=1)
    assert barred(one, with_input(other, "ids", 1, 8)) == set()
    wide = with_input(other, "ids", 4, 8)
    assert barred(one, wide) == set()
    said = "they ran with different inputs: ids [1, 8] and [4, 8]"
    assert said in comparability_of(one, wide).notes
    renamed = comparability_of(one, with_input(other, "x", 4, 8))
    assert renamed.excluded.keys() == ALWAYS
    assert "the models have different inputs, which count towards their memory" in renamed.notes


def test_a_sampled_peak_is_compared_where_it_is_larger_than_an_exact_one() -> None:
    exact = profiles.tied_if()
    for by_bytes, expected in ((1, set()), (0, {"peak"}), (-(1 << 20), {"peak"})):
        more = exact.peak_rss_bytes + by_bytes
        sampled = msgspec.structs.replace(exact, peak_kind="sampled", peak_rss_bytes=more)
        assert barred(exact, sampled) == barred(sampled, exact) == expected
    notes = " ".join(comparability_of(exact, sampled).notes)
    assert "peak is not compared: that of the second is at least " in notes
    assert "may be larger than the other" in notes
