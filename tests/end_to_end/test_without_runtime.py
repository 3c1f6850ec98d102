"""An environment without onnxruntime: what needs it says so, everything else works."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import memdiag
from memdiag.errors import UsageError
from memdiag.records.codec import encode

# With None in its place a module is neither found nor imported.
WITHOUT = "import sys; sys.modules['onnxruntime'] = None; "
ONCE = ("--runs", "1", "--xray=none", "--out", "again")
MAIN = "from memdiag.cli import main; main()"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT + MAIN, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, sample_model: Callable[..., Path]) -> Path:
    """A folder with a model and a profile of it."""
    home = tmp_path_factory.mktemp("without")
    (home / "model.onnx").write_bytes(sample_model("tied_if").read_bytes())
    profile = memdiag.profile(home / "model.onnx", runs=1, xray="none")
    (home / "profile.json").write_bytes(encode(profile))
    return home


@pytest.mark.parametrize(
    ("words", "otherwise"),
    [
        (["profile", "model.onnx"], "--python"),
        (["check", "model.onnx"], "--for-onnxruntime"),
    ],
)
def test_a_command_that_needs_it_says_so_in_one_sentence(
    folder: Path, words: list[str], otherwise: str
) -> None:
    done = run(folder, *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("memdiag: onnxruntime is not installed in memdiag's environment.")
    assert "pip install 'memdiag[cpu]'" in done.stderr
    assert otherwise in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["check", "model.onnx", "--for-onnxruntime", "1.24.4"],
        ["inspect", "model.onnx"],
        ["report", "profile.json", "--out", "again"],
        ["profile", "model.onnx", "--python", sys.executable, *ONCE],
        ["compare", "model.onnx", "--environment", sys.executable, "--processes", "1", *ONCE],
    ],
    ids=lambda words: words[0],
)
def test_a_command_that_does_not_need_it_works(folder: Path, words: list[str]) -> None:
    done = run(folder, *words)
    assert done.returncode in ((0, 1) if words[0] == "check" else (0,)), done.stderr
    assert "onnxruntime is not installed" not in done.stderr


def test_functions_that_need_it_say_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    model = folder / "model.onnx"
    calls: list[Callable[[], object]] = [
        lambda: memdiag.profile(model),
        lambda: memdiag.check(model),
        lambda: memdiag.fix(model),
        lambda: memdiag.fix(model, dry_run=True),
        lambda: memdiag.tune(model),
        lambda: memdiag.compare(model, model),
        lambda: memdiag.compare(model, optimizers=["all"]),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="onnxruntime is not installed"):
            call()
    assert memdiag.check(model, for_onnxruntime="1.24.4")
    record = folder / "profile.json"
    assert memdiag.compare(record, record).kind == "profiles"
