"""Baselines: created, kept, breached, updated; and where they cannot be compared."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pytest_plugin.conftest import RunPytest

pytestmark = pytest.mark.usefixtures("measured_once")

KEPT = Path("memory_baselines") / "model.onnx.json"


@pytest.fixture
def project(pytester: pytest.Pytester, model: Path) -> Path:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.memory_budget("model.onnx")
        def test_model(): ...
        """
    )
    return model


def test_a_baseline_is_created_kept_breached_and_updated(
    pytester: pytest.Pytester,
    run_pytest: RunPytest,
    project: Path,
    sample_model: Callable[..., Path],
) -> None:
    once = "--memdiag-repeats=1"
    run_pytest().assert_outcomes(errors=1)  # no budget and no baseline: no silent pass
    result = run_pytest("--memdiag-update-baseline")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"model.onnx * {KEPT} created"])
    created = (pytester.path / KEPT).read_text()
    result = run_pytest()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["model.onnx * within its baseline, at *"])
    result = run_pytest("--memdiag-update-baseline", once)
    result.stdout.fnmatch_lines([f"model.onnx * {KEPT} kept"])

    project.unlink()
    project.symlink_to(sample_model("tied_if", 8.0))
    result = run_pytest(once)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "memory baseline: model.onnx: * MiB over its baseline*",
            "  steady * baseline * +* MiB",
            "  no copy of a weight is new since the baseline",
            "  try: memdiag compare OLD model.onnx (shows what changed*",
            "  try: memdiag fix model.onnx --only shared-weight-transposed",
        ]
    )
    assert (pytester.path / KEPT).read_text() == created
    result = run_pytest("--memdiag-update-baseline", once)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"model.onnx * {KEPT} updated"])


@pytest.mark.usefixtures("project")
def test_another_class_of_machine_is_skipped_and_another_setup_is_an_error(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    run_pytest("--memdiag-update-baseline", "--memdiag-repeats=1").assert_outcomes(passed=1)
    kept = json.loads((pytester.path / KEPT).read_text())
    kept["machines"] = {"Darwin arm64": next(iter(kept["machines"].values()))}
    (pytester.path / "memory_baselines" / "elsewhere.json").write_text(json.dumps(kept))
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.memory_budget("model.onnx", baseline="elsewhere")
        def test_machine(): ...

        @pytest.mark.memory_budget(
            "model.onnx",
            peak="1 GB",
            session_options={"intra_op_num_threads": "1"},
            baseline="model.onnx",
        )
        def test_setup(): ...
        """
    )
    result = run_pytest("-rs")
    result.assert_outcomes(skipped=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*its baseline cannot be compared: this run had options *_threads=1 instead of*",
            "*no entry for this class of machine*only for Darwin arm64*",
        ]
    )


@pytest.mark.usefixtures("project")
def test_a_file_that_is_no_baseline_is_an_error(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    (pytester.path / KEPT.parent).mkdir()
    (pytester.path / KEPT).write_text("{}")
    result = run_pytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*model.onnx.json: not a valid baseline*"])


@pytest.mark.parametrize("name", ["one-thread", "one-thread.json"])
@pytest.mark.usefixtures("model")
def test_a_baseline_can_have_a_name_of_its_own(
    pytester: pytest.Pytester, run_pytest: RunPytest, name: str
) -> None:
    pytester.makepyfile(
        f"""
        import pytest

        ONE_THREAD = {{"intra_op_num_threads": "1"}}

        @pytest.mark.memory_budget("model.onnx", baseline={name!r}, session_options=ONE_THREAD)
        def test_model(): ...
        """
    )
    run_pytest("--memdiag-update-baseline", "--memdiag-repeats=1").assert_outcomes(passed=1)
    assert (pytester.path / "memory_baselines" / "one-thread.json").exists()
    run_pytest().assert_outcomes(passed=1)


@pytest.mark.usefixtures("model")
def test_each_configuration_of_a_model_has_its_own(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.memory_budget("model.onnx")
        def test_as_it_is(): ...

        @pytest.mark.memory_budget("model.onnx", dims={"tokens": 512}, runs=2)
        def test_long(): ...
        """
    )
    words = ("--memdiag-update-baseline", "--memdiag-repeats=1", "--memdiag-models=model.onnx")
    run_pytest(*words).assert_outcomes(passed=3)
    names = ["model.onnx.json", "model.onnx.runs=2,tokens=512.json"]
    assert sorted(path.name for path in (pytester.path / KEPT.parent).iterdir()) == names
    run_pytest("--memdiag-models=model.onnx").assert_outcomes(passed=3)


@pytest.mark.usefixtures("model")
def test_one_name_for_two_configurations_is_an_error(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.memory_budget("model.onnx", baseline="mine")
        def test_as_it_is(): ...

        @pytest.mark.memory_budget("model.onnx", baseline="mine", runs=2)
        def test_fewer_runs(): ...
        """
    )
    result = run_pytest("--memdiag-update-baseline", "--memdiag-repeats=1")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*mine.json: another test uses this baseline with other options*"])


@pytest.mark.usefixtures("model")
def test_a_test_that_fails_leaves_its_baseline(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.memory_budget("model.onnx", peak="1 MB")
        def test_over_its_budget(): ...

        @pytest.mark.memory_budget("model.onnx", runs=2)
        def test_wrong_for_another_reason():
            assert False
        """
    )
    result = run_pytest("--memdiag-update-baseline", "--memdiag-repeats=1")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["  the baseline was not updated: the budget is exceeded"])
    assert not (pytester.path / KEPT.parent).exists()
