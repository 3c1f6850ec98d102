import msgspec

from memdiag.budgets.baselines import (
    baseline_entry,
    condition_differences,
    matches_entry,
    with_entry,
)
from memdiag.records.baseline import BaselineEntry
from tests.reports import profiles
from tests.reports.profiles import MIB


def taken() -> BaselineEntry:
    profile = profiles.tied_if()
    return baseline_entry([profile])


def test_the_setup_says_what_is_not_as_usual() -> None:
    assert taken().setup == {
        "inputs": "ids int64[1, 16]",
        "runs": "10",
        "peaks": "exact",
        "options": "intra_op_num_threads=2, session.disable_prepacking=0",
        "environment": "MALLOC_ARENA_MAX=2",
    }


def test_the_same_setup_differs_in_nothing() -> None:
    assert condition_differences(taken(), profiles.tied_if()) == ()
    inputs = tuple(
        msgspec.structs.replace(each, shape=(1, 32)) for each in profiles.tied_if().inputs
    )
    other = msgspec.structs.replace(profiles.tied_if(), inputs=inputs)
    assert condition_differences(taken(), other) == (
        "inputs ids int64[1, 32] instead of ids int64[1, 16]",
    )


def test_what_is_about_as_much_is_the_same() -> None:
    before = taken()
    little = {**before.figures, "peak": before.figures["peak"] + MIB}
    much = {**before.figures, "peak": before.figures["peak"] - 100 * MIB}
    assert matches_entry(before, msgspec.structs.replace(before, figures=little), None)
    assert not matches_entry(before, msgspec.structs.replace(before, figures=much), None)
    assert not matches_entry(before, msgspec.structs.replace(before, onnxruntime="1.24.4"), None)
    assert not matches_entry(before, msgspec.structs.replace(before, setup={}), None)
    parse = {**before.figures, "parse": before.figures["parse"] + 90 * MIB}
    seen_late = msgspec.structs.replace(before, figures=parse, late_bytes=90 * MIB)
    assert matches_entry(before, seen_late, None)
    assert not matches_entry(before, msgspec.structs.replace(seen_late, late_bytes=MIB), None)


def test_other_machines_keep_what_they_have() -> None:
    first = with_entry(None, "m.onnx", "one", taken())
    second = with_entry(first, "m.onnx", "two", taken())
    assert second.machines.keys() == {"one", "two"}
    assert first.machines.keys() == {"one"}
