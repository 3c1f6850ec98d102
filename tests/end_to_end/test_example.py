"""The example project under ``docs``: its tests pass, and catch what they are there to catch."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.environments import ProvisionError
from benchmarks.runtimes import runtime

EXAMPLE = Path(__file__).parents[2] / "docs" / "example"
Finished = subprocess.CompletedProcess[str]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Finished]:
    """A function that runs Python with the words given in a copy of the example."""
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("models", "memory_baselines"))

    def python(*words: object) -> Finished:
        return subprocess.run(
            [sys.executable, *map(str, words)],
            cwd=folder,
            env={**os.environ, "TMPDIR": str(tmp_path), "PYTEST_ADDOPTS": "-p no:cacheprovider"},
            capture_output=True,
            text=True,
            timeout=250,
        )

    assert python("export.py").returncode == 0
    return python


def test_a_folded_transpose_is_caught(run: Callable[..., Finished]) -> None:
    words = ("-m", "pytest", "-k", "decoder", "--memdiag-processes=1")
    before = run(*words, "--memdiag-update-baseline")
    assert before.returncode == 0, before.stdout
    run("export.py", "folded")
    caught = run(*words)
    assert caught.returncode == 1
    # Its transposed copy takes 32 MiB; the budget leaves room for some of that.
    over = r"memory budget: models/decoder\.onnx: \d+(\.\d)? MiB over its budget in "
    assert re.search(over, caught.stdout), caught.stdout
    assert "try: memdiag fix models/decoder.onnx --only stored-transpose" in caught.stdout


@pytest.mark.slow
def test_another_runtime_is_caught(run: Callable[..., Finished]) -> None:
    try:
        older = runtime("1.24.4")
    except ProvisionError as error:
        pytest.skip(str(error))
    words = ("-m", "pytest", "-k", "branches")
    written = run(*words, "--memdiag-update-baseline", f"--memdiag-python={older}")
    assert written.returncode == 0, written.stdout
    caught = run(*words)
    assert caught.returncode == 1
    assert "memory baseline: models/branches.onnx: 3" in caught.stdout
    assert "; the baseline is of 1.24.4" in caught.stdout
    assert "new since the baseline: transposed copy of weight, 32 MiB" in caught.stdout
