"""What is told of a fix at a glance, on its own page and on that of the model's profile."""

import msgspec

from memdiag.reports.views import fix_glance
from tests.reports import fix_records, tuning_records


def test_a_profile_tells_by_what_the_model_was_fixed_and_how_well() -> None:
    assert fix_glance.told(fix_records.verified()) == (
        "Fixed by good-one: peak 1.55 GiB → 559 MiB, steady 1.46 GiB → 540 MiB,"
        " latency 1.02 × (0.98–1.05), outputs within 6.1e-05 of the largest value"
        " (onnxruntime 1.31.1). Load dir/m.fixed.onnx instead of dir/m.onnx."
    )


def test_a_profile_tells_what_a_tuning_depends_on() -> None:
    said = fix_glance.told(tuning_records.tuning())
    assert said.startswith("Fixed by disable-prepacking + mmap-threshold: peak 200 MiB → 150 MiB")
    assert said.endswith("It depends on: session.disable_prepacking=1.")
    near = tuning_records.point("arena-off", at=(150, 75), ratio=1.0, fits=False)
    nearest = tuning_records.tuning(near, (tuning_records.DEFAULTS, near))
    assert "by arena-off, the nearest to a budget that nothing fits: peak" in fix_glance.told(
        nearest
    )


def test_what_changed_nothing_is_told_as_that() -> None:
    assert fix_glance.told(fix_records.all_rejected()) == (
        "A fix was tried. Nothing: no remedy that was tried is worth it."
    )
    kept = tuning_records.tuning(tuning_records.DEFAULTS)
    assert fix_glance.told(kept).startswith("Options of the session were tried. No option is")
    assert fix_glance.told(fix_records.dry_run()) == ""
    assert fix_glance.told(fix_records.unverified()).startswith("Fixed by good-one, unverified: ")


def test_all_that_a_point_sets_is_named() -> None:
    point = msgspec.structs.replace(
        tuning_records.CHOSEN,
        environment={"MALLOC_MMAP_THRESHOLD_": "131072"},
        run_options={"memory.enable_memory_arena_shrinkage": "cpu:0"},
        disabled_optimizers=("MatMulAddFusion",),
        shared_arena=True,
        saved_options={"x": "y"},
        load_from="bytes",
        shares_weights=True,
    )
    tuning = msgspec.structs.replace(
        tuning_records.tuning(point, (tuning_records.DEFAULTS, point)),
        environment=point.environment,
    )
    (said,) = (text for label, text in fix_glance.build(tuning).sentences if "depends" in label)
    assert said == (
        "session.disable_prepacking=1, $MALLOC_MMAP_THRESHOLD_=131072 in the environment,"
        " memory.enable_memory_arena_shrinkage=cpu:0 for each run, without the optimizer"
        " MatMulAddFusion, one arena for all sessions, the optimized model, saved once, the model's"
        " bytes instead of its path, weights mapped once for all sessions."
    )


def test_outputs_beyond_the_bound_are_not_within_it() -> None:
    far = fix_records.verified(largest_difference=1e-3)
    assert "outputs largest difference 1.0e-03 of the largest value" in fix_glance.told(far)
    assert "outputs equal, bit by bit" in fix_glance.told(
        fix_records.verified(largest_difference=0.0)
    )


def test_a_point_that_is_not_among_the_points_is_no_crash() -> None:
    broken = msgspec.structs.replace(tuning_records.tuning(), chosen=("another",))
    assert fix_glance.build(broken).answer.startswith("Peak 200 MiB")


def test_a_tuning_without_comparisons_does_not_judge_the_options() -> None:
    kept = tuning_records.tuning(tuning_records.DEFAULTS, (tuning_records.DEFAULTS,))
    cut = msgspec.structs.replace(kept, untried=("arena-off",))
    assert fix_glance.build(cut).answer == "Nothing: no option was compared in the time limit."
    assert dict(fix_glance.build(cut).sentences)["What to do"].startswith("Run it again with")
    assert dict(fix_glance.build(kept).sentences)["What to do"] == "Keep the defaults."
