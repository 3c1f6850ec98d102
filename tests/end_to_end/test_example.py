"""The example project under ``docs``: its tests pass, and catch what they are there to catch."""

import re
import runpy
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.environments import ProvisionError
from benchmarks.runtimes import runtime

EXAMPLE = Path(__file__).parents[2] / "docs" / "example"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def export(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that exports the models of a copy of the example, in the current folder."""
    ignored = shutil.ignore_patterns("models", "memory_baselines")
    shutil.copytree(EXAMPLE, pytester.path, ignore=ignored, dirs_exist_ok=True)
    monkeypatch.setenv("TMPDIR", str(pytester.path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:cacheprovider")

    def run(*words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["export.py", *words])
        runpy.run_path(str(pytester.path / "export.py"), run_name="__main__")

    run()
    return run


def test_a_folded_transpose_is_caught(
    pytester: pytest.Pytester, export: Callable[..., None]
) -> None:
    words = ("-k", "decoder", "--memdiag-repeats=1")
    before = pytester.runpytest_inprocess(*words, "--memdiag-update-baseline")
    before.assert_outcomes(passed=1, deselected=1)
    export("folded")
    caught = pytester.runpytest_inprocess(*words)
    caught.assert_outcomes(failed=1, deselected=1)
    # Its transposed copy takes 32 MiB; the budget leaves room for some of that.
    over = r"memory budget: models/decoder\.onnx: peak \d+(\.\d)? MiB over its budget "
    caught.stdout.re_match_lines([f".*{over}"])
    caught.stdout.fnmatch_lines(["*try: memdiag fix models/decoder.onnx --only stored-transpose*"])


@pytest.mark.slow
@pytest.mark.usefixtures("export")
def test_another_runtime_is_caught(pytester: pytest.Pytester) -> None:
    try:
        older = runtime("1.24.4")
    except ProvisionError as error:
        pytest.skip(str(error))
    words = ("-k", "branches")
    pytester.runpytest_inprocess(
        *words, "--memdiag-update-baseline", f"--memdiag-python={older}"
    ).assert_outcomes(passed=1, deselected=1)
    caught = pytester.runpytest_inprocess(*words)
    caught.assert_outcomes(failed=1, deselected=1)
    printed = caught.stdout.str()
    # The peak may be over its baseline as well, by a few MiB.
    assert re.search(r"memory baseline: models/branches\.onnx: (steady )?3\d MiB over", printed)
    assert "; the baseline is of 1.24.4" in printed
    assert "new since the baseline: transposed copy of weight, 32 MiB" in printed
