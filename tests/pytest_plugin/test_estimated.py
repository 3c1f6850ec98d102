"""Markers with ``estimated=True``: a budget is judged without a run."""

from pathlib import Path

import pytest

import memdiag
from memdiag.records.estimate import EstimatedPoint
from tests.pytest_plugin.conftest import Marked, RunPytest

pytestmark = pytest.mark.usefixtures("model")

RELEASE = "'model.onnx', estimated=True, for_onnxruntime='1.32.0'"
OWN_CODE = " | print('its own code ran')"


@pytest.fixture(autouse=True)
def nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is profiled."""
    monkeypatch.setattr(memdiag, "profile", lambda *_, **__: pytest.fail("it was run"))


@pytest.fixture
def point(model: Path) -> EstimatedPoint:
    """The estimate of the model in the project."""
    return memdiag.estimate(model, for_onnxruntime="1.32.0", details=False).point


def test_within_its_budget_the_test_runs(
    marked: Marked, run_pytest: RunPytest, point: EstimatedPoint
) -> None:
    more = point.high_bytes - point.peak_bytes  # the size of a value that depends on a branch
    marked(f"{RELEASE}, peak={point.high_bytes}, steady={point.steady_bytes + more}{OWN_CODE}")
    lines = ["*its own code ran*", "model.onnx *within its budget, at *; estimated"]
    run_pytest("-s", "--strict-markers", passed=1, lines=lines)


def test_a_byte_above_its_budget_it_fails_before_it_runs(
    marked: Marked, run_pytest: RunPytest, point: EstimatedPoint
) -> None:
    marked(f"{RELEASE}, peak={point.peak_bytes - 1}{OWN_CODE}")
    lines = [
        "memory budget: model.onnx: peak 1 B over its budget (in the runs after the first)*",
        "  peak * budget *",
        "  largest parts of the peak in the runs after the first, as estimated: runtime *",
        "  try: memdiag estimate model.onnx --for-onnxruntime 1.32.0 (shows what takes *",
        "  an estimate for onnxruntime 1.32.0, not measured; the peak is expected between *",
    ]
    result = run_pytest("-s", failed=1, lines=lines)
    result.stdout.no_fnmatch_line("*its own code ran*")


def test_an_upper_bound_can_be_judged_instead(
    marked: Marked, run_pytest: RunPytest, point: EstimatedPoint
) -> None:
    marked(f"{RELEASE}, upper=True, peak={point.peak_bytes}")
    run_pytest(failed=1, lines=["  an upper bound for onnxruntime 1.32.0, not measured"])


def test_limits_of_the_project_that_can_be_estimated_count(
    pytester: pytest.Pytester, marked: Marked, run_pytest: RunPytest
) -> None:
    pytester.makepyprojecttoml('[tool.memdiag.budgets."*"]\nsteady = "1 MB"\ncopies = 1\n')
    marked(f"{RELEASE}, peak='10 GB'")
    run_pytest(failed=1, lines=["memory budget: model.onnx: steady * over its budget*"])


NOT_JUDGED = {
    RELEASE: 'memory_budget: estimated=True needs a limit, such as peak="1.2 GB".',
    f"{RELEASE}, copies=1": "cannot check the 'copies' budget: it cannot be estimated",
    f"{RELEASE}, peek='1 GB'": "memory_budget: unknown figure 'peek'. Use one of peak, ",
    f"{RELEASE}, peak='1 GB', timeout_s=1": "unknown figure 'timeout_s'. Use one of ",
    f"{RELEASE}, peak='1 GB', dims={{'nope': 1}}": "unknown dimension 'nope'",
    RELEASE.replace("1.32.0", "1.22.1") + ", peak='1 GB'": (
        "onnxruntime 1.22.1: memdiag predicts for 1.24 and newer."
    ),
    RELEASE.replace("True", "'yes'"): "memory_budget: estimated is True or False, not 'yes'.",
}  # fmt: skip


def test_what_cannot_be_judged_is_an_error(marked: Marked, run_pytest: RunPytest) -> None:
    marked(*NOT_JUDGED)
    lines = [f"*{words}*" for words in NOT_JUDGED.values()]
    result = run_pytest(errors=len(NOT_JUDGED), lines=lines)
    result.stdout.no_fnmatch_line("*Traceback*")


def test_another_interpreter_is_not_asked_for_its_release(
    marked: Marked, run_pytest: RunPytest
) -> None:
    marked("'model.onnx', estimated=True, peak='1 GB'", f"{RELEASE}, peak='1 GB'")
    lines = ['*Name its release: for_onnxruntime="1.24.4".*']
    run_pytest("--memdiag-python=./other", errors=1, passed=1, lines=lines)
