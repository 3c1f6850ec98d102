"""Flags and ini options: either alone, both, and neither; and the plugin switched off."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pytest_plugin.conftest import RunPytest

pytestmark = pytest.mark.usefixtures("measured_once")

BUDGETS = """
[tool.memdiag.budgets."*"]
peak = "100 MB"
[tool.memdiag.budgets."models/large*"]
peak = "1 MB"
"""


@pytest.fixture
def models(pytester: pytest.Pytester, sample_model: Callable[..., Path]) -> Path:
    folder = pytester.mkdir("models")
    for name in ("large.onnx", "small.onnx"):
        (folder / name).symlink_to(sample_model("tied_if", 1.0))
    (pytester.path / "pyproject.toml").write_text(BUDGETS)
    return folder


@pytest.mark.usefixtures("models")
def test_flags_alone(run_pytest: RunPytest) -> None:
    lines = [
        "models/large.onnx::memory_budget FAILED*",
        "models/small.onnx::memory_budget PASSED*",
        "models/large.onnx * over its budget*",
        "models/small.onnx * within its budget, at *",
    ]
    words = ("-v", "--memdiag-models=models/*.onnx", "--memdiag-repeats=1")
    run_pytest(*words, passed=1, failed=1, lines=lines)


@pytest.mark.usefixtures("models")
def test_the_ini_file_alone(run_pytest: RunPytest, pytester: pytest.Pytester) -> None:
    pytester.makeini(
        "[pytest]\nmemdiag_models = models/small.onnx\nmemdiag_baselines = kept\n"
        "memdiag_repeats = 1\nmemdiag_parallel = true\nmemdiag_tolerance = 5%\n"
    )
    run_pytest("--memdiag-update-baseline", passed=1)
    assert (pytester.path / "kept" / "models" / "small.onnx.json").exists()


@pytest.mark.usefixtures("models")
def test_a_flag_comes_before_the_ini_file(run_pytest: RunPytest, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmemdiag_models = models/large.onnx\nmemdiag_repeats = none\n")
    run_pytest("--memdiag-models=models/small.onnx", "--memdiag-repeats=1", passed=1)


@pytest.mark.usefixtures("models")
def test_other_tests_are_collected_beside_and_the_marker_selects(
    run_pytest: RunPytest, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile("def test_other(): ...")
    run_pytest("--memdiag-models=models/small.onnx", passed=2)
    words = ("--memdiag-models=models/small.onnx", "-m", "memory_budget")
    run_pytest(*words, passed=1, deselected=1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--memdiag-models=nothing/*.onnx", "*no file matches 'nothing/[*].onnx' in *"),
        ("--memdiag-repeats=0", "*--memdiag-repeats: '0' is not a whole number from 1*"),
        ("-pno:memdiag --memdiag-repeats=1", "*unrecognized arguments: --memdiag-repeats=1*"),
    ],
)
def test_what_means_nothing_ends_pytest(
    run_pytest: RunPytest, pytester: pytest.Pytester, words: str, message: str
) -> None:
    pytester.makepyfile("def test_other(): ...")
    result = run_pytest(*words.split())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


@pytest.mark.usefixtures("models")
def test_a_model_without_any_budget_is_an_error(
    run_pytest: RunPytest, pytester: pytest.Pytester
) -> None:
    (pytester.path / "pyproject.toml").write_text("[tool.memdiag]\n")
    lines = ["*models/small.onnx: there is no budget or baseline*"]
    run_pytest("--memdiag-models=models/small.onnx", errors=1, lines=lines)


def test_the_plugin_can_be_switched_off(run_pytest: RunPytest, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_other(request): assert 'memdiag' not in request.fixturenames")
    run_pytest("-p", "no:memdiag", passed=1)


def test_where_nothing_is_asked_for_nothing_is_said_nor_imported(
    run_pytest: RunPytest, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_other():
            heavy = {"msgspec", "numpy", "onnx", "onnxruntime", "psutil", "matplotlib"}
            assert not heavy & sys.modules.keys()
            assert "memdiag.pytest_plugin" in sys.modules
        """
    )
    run_pytest(process=True, passed=1).stdout.no_fnmatch_line("*(memdiag)*")
