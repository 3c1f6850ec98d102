"""Baselines: created, kept, breached, updated; and where they cannot be compared."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pytest_plugin.conftest import Marked, RunPytest

pytestmark = pytest.mark.usefixtures("measured_once", "model")

KEPT = Path("memory_baselines") / "model.onnx.json"
ONCE = "--memdiag-repeats=1"
UPDATE = "--memdiag-update-baseline"
ONE_THREAD = "session_options={'intra_op_num_threads': '1'}"


def test_a_baseline_is_created_kept_breached_and_updated(
    pytester: pytest.Pytester,
    marked: Marked,
    run_pytest: RunPytest,
    model: Path,
    sample_model: Callable[..., Path],
) -> None:
    marked("'model.onnx'")
    run_pytest(errors=1)  # no budget and no baseline: no silent pass
    run_pytest(UPDATE, passed=1, lines=[f"model.onnx * {KEPT} created"])
    created = (pytester.path / KEPT).read_text()
    run_pytest(passed=1, lines=["model.onnx * within its baseline, at *"])
    run_pytest(UPDATE, ONCE, lines=[f"model.onnx * {KEPT} kept"])

    model.unlink()
    model.symlink_to(sample_model("tied_if", 8.0))
    lines = [
        "memory baseline: model.onnx: * MiB over its baseline*",
        "  steady * baseline * +* MiB",
        "  no copy of a weight is new since the baseline",
        "  try: memdiag compare OLD model.onnx (shows what changed*",
        "  try: memdiag fix model.onnx --only shared-weight-transposed",
    ]
    run_pytest(ONCE, failed=1, lines=lines)
    assert (pytester.path / KEPT).read_text() == created
    run_pytest(UPDATE, ONCE, passed=1, lines=[f"model.onnx * {KEPT} updated"])


def test_another_class_of_machine_is_skipped_and_another_setup_is_an_error(
    pytester: pytest.Pytester, marked: Marked, run_pytest: RunPytest
) -> None:
    marked("'model.onnx'")
    run_pytest(UPDATE, ONCE, passed=1)
    kept = json.loads((pytester.path / KEPT).read_text())
    kept["machines"] = {"Darwin arm64": next(iter(kept["machines"].values()))}
    (pytester.path / "memory_baselines" / "elsewhere.json").write_text(json.dumps(kept))
    marked(
        "'model.onnx', baseline='elsewhere'",
        f"'model.onnx', peak='1 GB', baseline='model.onnx', {ONE_THREAD}",
    )
    lines = [
        "*its baseline cannot be compared: this run had options *_threads=1 instead of*",
        "*no entry for this class of machine*only for Darwin arm64*",
    ]
    run_pytest("-rs", skipped=1, errors=1, lines=lines)


def test_a_file_that_is_no_baseline_is_an_error(
    pytester: pytest.Pytester, marked: Marked, run_pytest: RunPytest
) -> None:
    (pytester.path / KEPT.parent).mkdir()
    (pytester.path / KEPT).write_text("{}")
    marked("'model.onnx'")
    run_pytest(errors=1, lines=["*model.onnx.json: not a valid baseline*"])


@pytest.mark.parametrize("name", ["one-thread", "one-thread.json"])
def test_a_baseline_can_have_a_name_of_its_own(
    pytester: pytest.Pytester, marked: Marked, run_pytest: RunPytest, name: str
) -> None:
    marked(f"'model.onnx', baseline={name!r}, {ONE_THREAD}")
    run_pytest(UPDATE, ONCE, passed=1)
    assert (pytester.path / "memory_baselines" / "one-thread.json").exists()
    run_pytest(passed=1)


def test_each_configuration_of_a_model_has_its_own(
    pytester: pytest.Pytester, marked: Marked, run_pytest: RunPytest
) -> None:
    marked("'model.onnx'", "'model.onnx', dims={'tokens': 512}, runs=2")
    run_pytest(UPDATE, ONCE, "--memdiag-models=model.onnx", passed=3)
    names = ["model.onnx.json", "model.onnx.runs=2,tokens=512.json"]
    assert sorted(path.name for path in (pytester.path / KEPT.parent).iterdir()) == names
    run_pytest("--memdiag-models=model.onnx", passed=3)


def test_one_name_for_two_configurations_is_an_error(marked: Marked, run_pytest: RunPytest) -> None:
    marked("'model.onnx', baseline='mine'", "'model.onnx', baseline='mine', runs=2")
    lines = ["*mine.json: another test uses this baseline with other options*"]
    run_pytest(UPDATE, ONCE, passed=1, errors=1, lines=lines)


def test_a_test_that_fails_leaves_its_baseline(
    pytester: pytest.Pytester, marked: Marked, run_pytest: RunPytest
) -> None:
    marked("'model.onnx', peak='1 MB'", "'model.onnx', runs=2 | assert False")
    lines = ["  the baseline was not updated: the budget is exceeded"]
    run_pytest(UPDATE, ONCE, failed=2, lines=lines)
    assert not (pytester.path / KEPT.parent).exists()
