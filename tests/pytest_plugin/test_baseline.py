"""Baselines: created, kept, breached, updated; and where they cannot be compared."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pytest_plugin.conftest import RunPytest

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
    run_pytest().assert_outcomes(errors=1)  # no budget and no baseline: no silent pass
    result = run_pytest("--memdiag-update-baseline")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"model.onnx * {KEPT} created"])
    created = (pytester.path / KEPT).read_text()
    result = run_pytest()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["model.onnx * within its baseline"])
    result = run_pytest("--memdiag-update-baseline")
    result.stdout.fnmatch_lines([f"model.onnx * {KEPT} kept"])

    project.unlink()
    project.symlink_to(sample_model("tied_if", 8.0))
    result = run_pytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "memory baseline: model.onnx: * MiB over its baseline in *",
            "  steady * baseline * +* MiB",
            "  no copy of a weight is new since the baseline",
            "  try: memdiag fix model.onnx --only shared-weight-transposed",
        ]
    )
    assert (pytester.path / KEPT).read_text() == created
    result = run_pytest("--memdiag-update-baseline")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"model.onnx * {KEPT} updated"])
    run_pytest().assert_outcomes(passed=1)


@pytest.mark.usefixtures("project")
def test_another_class_of_machine_is_skipped_and_says_so(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    run_pytest("--memdiag-update-baseline", "--memdiag-processes=1").assert_outcomes(passed=1)
    kept = json.loads((pytester.path / KEPT).read_text())
    kept["machines"] = {"Darwin arm64": next(iter(kept["machines"].values()))}
    (pytester.path / KEPT).write_text(json.dumps(kept))
    result = run_pytest("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*nothing for this class of machine*only for Darwin arm64*"])


@pytest.mark.usefixtures("project")
def test_another_setup_is_an_error_and_says_in_what(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    run_pytest("--memdiag-update-baseline", "--memdiag-processes=1").assert_outcomes(passed=1)
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.memory_budget("model.onnx", peak="1 GB", threads=1)
        def test_model(): ...
        """
    )
    result = run_pytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*its baseline cannot be compared: this run had options *_threads=1 instead of*"]
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


@pytest.mark.usefixtures("model")
def test_a_baseline_can_have_a_name_of_its_own(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.memory_budget("model.onnx", baseline="one-thread", threads=1)
        def test_model(): ...
        """
    )
    run_pytest("--memdiag-update-baseline", "--memdiag-processes=1").assert_outcomes(passed=1)
    assert (pytester.path / "memory_baselines" / "one-thread.json").exists()
    run_pytest().assert_outcomes(passed=1)
