"""A project with a small model, and pytest run on it in a process of its own."""

from collections.abc import Callable
from pathlib import Path

import pytest

RunPytest = Callable[..., pytest.RunResult]


@pytest.fixture
def model(pytester: pytest.Pytester, sample_model: Callable[..., Path]) -> Path:
    """The path of a model of one megabyte in the project, ``model.onnx``."""
    path = pytester.path / "model.onnx"
    path.symlink_to(sample_model("tied_if", 1.0))
    return path


@pytest.fixture
def run_pytest(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> RunPytest:
    """A function that runs pytest with the words given in the project's folder."""
    # Its turn is its own: what else measures on this machine does not hold it up.
    monkeypatch.setenv("TMPDIR", str(pytester.path))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def run(*words: object) -> pytest.RunResult:
        return pytester.runpytest_subprocess(
            "-p", "no:cacheprovider", *map(str, words), timeout=110
        )

    return run
