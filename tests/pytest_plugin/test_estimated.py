"""Markers with ``estimated=True``: a budget is judged without a run."""

from pathlib import Path

import pytest

import memdiag
from memdiag.records.estimate import EstimatedPoint
from tests.pytest_plugin.conftest import RunPytest

MARKED = """
import pytest

@pytest.mark.memory_budget("model.onnx", estimated=True, {arguments})
def test_model():
    print("its own code ran")
"""


@pytest.fixture(autouse=True)
def nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model is profiled."""
    monkeypatch.setattr(memdiag, "profile", lambda *_, **__: pytest.fail("it was run"))


@pytest.fixture
def point(model: Path) -> EstimatedPoint:
    """The estimate of the model in the project."""
    return memdiag.estimate(model, for_onnxruntime="1.32.0", details=False).point


def marked(pytester: pytest.Pytester, arguments: str) -> None:
    pytester.makepyfile(MARKED.format(arguments=f'for_onnxruntime="1.32.0", {arguments}'))


def test_within_its_budget_the_test_runs(
    pytester: pytest.Pytester, run_pytest: RunPytest, point: EstimatedPoint
) -> None:
    more = point.high_bytes - point.peak_bytes  # the size of a value that depends on a branch
    marked(pytester, f"peak={point.high_bytes}, steady={point.steady_bytes + more}")
    result = run_pytest("-s", "--strict-markers")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["*its own code ran*", "model.onnx *within its budget, at *; estimated"]
    )


def test_a_byte_above_its_budget_it_fails_before_it_runs(
    pytester: pytest.Pytester, run_pytest: RunPytest, point: EstimatedPoint
) -> None:
    marked(pytester, f"peak={point.peak_bytes - 1}")
    result = run_pytest("-s")
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*its own code ran*")
    result.stdout.fnmatch_lines(
        [
            "memory budget: model.onnx: peak 1 B over its budget (in the runs after the first)*",
            "  peak * budget *",
            "  largest parts of the peak in the runs after the first, as estimated: runtime *",
            "  try: memdiag estimate model.onnx --for-onnxruntime 1.32.0 (shows what takes *",
            "  an estimate for onnxruntime 1.32.0, not measured; the peak is expected between *",
        ]
    )


def test_an_upper_bound_can_be_judged_instead(
    pytester: pytest.Pytester, run_pytest: RunPytest, point: EstimatedPoint
) -> None:
    marked(pytester, f"upper=True, peak={point.peak_bytes}")
    result = run_pytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["  an upper bound for onnxruntime 1.32.0, not measured"])


@pytest.mark.usefixtures("model")
def test_limits_of_the_project_that_can_be_estimated_count(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    pytester.makepyprojecttoml(
        """
        [tool.memdiag.budgets."*"]
        steady = "1 MB"
        copies = 1
        """
    )
    marked(pytester, 'peak="10 GB"')
    result = run_pytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["memory budget: model.onnx: steady * over its budget*"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", '*memory_budget: estimated=True needs a limit, such as peak="1.2 GB".*'),
        ("copies=1", "*cannot check the 'copies' budget: it cannot be estimated*"),
        ('peek="1 GB"', "*memory_budget: unknown figure 'peek'. Use one of peak, *"),
        ('peak="1 GB", timeout_s=1', "*memory_budget: unknown figure 'timeout_s'. Use one of *"),
        ('peak="1 GB", dims={"nope": 1}', "*unknown dimension 'nope'*"),
    ],
)
@pytest.mark.usefixtures("model")
def test_what_cannot_be_judged_is_an_error(
    pytester: pytest.Pytester, run_pytest: RunPytest, arguments: str, words: str
) -> None:
    marked(pytester, arguments)
    result = run_pytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([words])
    result.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.usefixtures("model")
def test_another_interpreter_is_not_asked_for_its_release(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    pytester.makepyfile(MARKED.format(arguments='peak="1 GB"'))
    result = run_pytest("--memdiag-python=./other")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(['*Name its release: for_onnxruntime="1.24.4".*'])
    marked(pytester, 'peak="1 GB"')
    run_pytest("--memdiag-python=./other").assert_outcomes(passed=1)


@pytest.mark.usefixtures("model")
def test_a_release_without_predictions_is_an_error(
    pytester: pytest.Pytester, run_pytest: RunPytest
) -> None:
    pytester.makepyfile(MARKED.format(arguments='peak="1 GB", for_onnxruntime="1.22.1"'))
    result = run_pytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*onnxruntime 1.22.1: memdiag predicts for 1.24 and newer.*"])


@pytest.mark.usefixtures("model")
def test_it_is_true_or_false(pytester: pytest.Pytester, run_pytest: RunPytest) -> None:
    pytester.makepyfile(MARKED.replace("estimated=True", 'estimated="yes"').format(arguments=""))
    result = run_pytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*memory_budget: estimated is True or False, not 'yes'.*"])
