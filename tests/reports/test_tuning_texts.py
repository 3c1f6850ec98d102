"""The sentences of a tuning: what it saves, what that depends on, what to do."""

import msgspec
from memdiag.reports.tuning import tuning_summary

from tests.reports import tuning_records


def test_all_that_a_point_sets_is_named() -> None:
    point = msgspec.structs.replace(
        tuning_records.CHOSEN,
        environment={"MALLOC_MMAP_THRESHOLD_": "131072"},
        run_options={"memory.enable_memory_arena_shrinkage": "cpu:0"},
        disabled_optimizers=("MatMulAddFusion",),
        shared_arena=True,
        saved_options={"x": "y"},
        options=(*tuning_records.CHOSEN.options, "load-by-path"),
        shares_weights=True,
    )
    tuning = tuning_records.tuning(point, (tuning_records.DEFAULTS, point))
    (message,) = (text for label, text in tuning_summary(tuning).sentences if label == "Settings")
    assert message == (
        "session.disable_prepacking=1, $MALLOC_MMAP_THRESHOLD_=131072 in the environment,"
        " memory.enable_memory_arena_shrinkage=cpu:0 for each run, without the graph"
        " transformer MatMulAddFusion, one arena for all sessions, the optimized model, saved once,"
        " the model's path instead of its bytes, weights mapped once for all sessions."
    )


def test_a_point_that_is_not_among_the_points_is_no_crash() -> None:
    broken = msgspec.structs.replace(tuning_records.tuning(), chosen=("another",))
    assert tuning_summary(broken).answer.startswith("Peak 200 MiB")


def test_memory_that_was_measured_once_is_called_that() -> None:
    tuning = tuning_records.tuning()
    assert "Memory" not in dict(tuning_summary(tuning).sentences)
    once = msgspec.structs.replace(tuning, measured_once=True)
    assert dict(tuning_summary(once).sentences)["Memory"].startswith("Measured in one process")


def test_a_tuning_without_comparisons_does_not_judge_the_options() -> None:
    kept = tuning_records.tuning(tuning_records.DEFAULTS, (tuning_records.DEFAULTS,))
    cut = msgspec.structs.replace(kept, untried=("arena-off",))
    assert tuning_summary(cut).answer == "Nothing was verified within the time limit."
    assert dict(tuning_summary(cut).sentences)["What to do"].startswith("Run it again with")
    assert dict(tuning_summary(kept).sentences)["What to do"] == "Keep the defaults."
