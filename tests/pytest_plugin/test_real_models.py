"""Real models keep to their own baselines, and a limit a little below is exceeded."""

from pathlib import Path

import pytest

from tests.pytest_plugin.conftest import RunPytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NAMES = ("light_resnet50", "minilm_int8", "ocr_recognition", "silero_vad")


def test_they_take_again_what_they_took(
    pytester: pytest.Pytester, run_pytest: RunPytest, real_models: dict[str, Path]
) -> None:
    for name in NAMES:
        (pytester.path / f"{name}.onnx").symlink_to(real_models[name])
    (pytester.path / "pyproject.toml").write_text(
        '[tool.memdiag.budgets."light_resnet50.onnx"]\npeak = "240 MB"\n'
        '[tool.memdiag.budgets."minilm_int8.onnx"]\npeak = "200 MB"\n'
    )
    words = ("--memdiag-models=*.onnx", "-k", "not minilm")
    run_pytest(*words, "--memdiag-update-baseline").assert_outcomes(passed=3, deselected=1)
    run_pytest(*words).assert_outcomes(passed=3, deselected=1)
    result = run_pytest("--memdiag-models=minilm_int8.onnx")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["memory budget: minilm_int8.onnx: * MiB over its budget*"])
