"""An environment without onnxruntime: what needs it says so, everything else works."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import memdiag
from memdiag.errors import UsageError
from memdiag.records.codec import encode
from tests.end_to_end.conftest import SampleModel
from tests.reports import profiles

ONCE = ("--runs", "1", "--format", "json")

# With None in its place a module is neither found nor imported.
RUN_EACH = """
import contextlib, io, json, sys
sys.modules["onnxruntime"] = None
from memdiag.cli.app import parse_command_line, run_guarded
for words in json.loads(sys.argv[1]):
    sys.argv = ["memdiag", *words]
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        command = parse_command_line()
        code = run_guarded(command.module.run, command.options)
    for stream in streams:
        stream.flush()
    print(json.dumps([code, *(stream.buffer.getvalue().decode() for stream in streams)]))
"""


def run_each(folder: Path, commands: Sequence[Sequence[str]]) -> list[tuple[int, str, str]]:
    """Run commands one after the other in one process; return exit code and output of each."""
    done = subprocess.run(
        [sys.executable, "-c", RUN_EACH, json.dumps(commands)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.fixture
def folder(tmp_path: Path, sample_model: SampleModel) -> Path:
    """A folder with a model and a profile."""
    (tmp_path / "model.onnx").write_bytes(sample_model("tied_if").read_bytes())
    (tmp_path / "profile.json").write_bytes(encode(profiles.tied_if()))
    return tmp_path


def test_a_command_that_needs_it_says_so_in_one_sentence(folder: Path) -> None:
    commands = [["profile", "model.onnx"], ["check", "model.onnx"], ["estimate", "model.onnx"]]
    done = run_each(folder, commands)
    for (code, output, errors), otherwise in zip(
        done, ("--python", "--for-onnxruntime", "--for-onnxruntime"), strict=True
    ):
        assert code == 2
        assert output == ""
        assert errors.startswith("memdiag: onnxruntime is not installed in memdiag's environment.")
        assert "pip install 'memdiag[cpu]'" in errors
        assert otherwise in errors
        assert errors.count("\n") == 1


def test_a_command_that_does_not_need_it_works(folder: Path) -> None:
    commands = [
        ["check", "model.onnx", "--for-onnxruntime", "1.24.4"],
        ["estimate", "model.onnx", "--for-onnxruntime", "1.24.4", "--fit", "1GB", "--no-run"],
        ["report", "profile.json", "--format", "markdown"],
        ["profile", "model.onnx", "--python", sys.executable, "--xray=none", *ONCE],
        ["compare", "model.onnx", "--onnxruntime", sys.executable, "--repeats", "1", *ONCE],
    ]
    done = run_each(folder, commands)
    assert len(done) == len(commands)
    for (code, _, errors), words in zip(done, commands, strict=True):
        assert code in ((0, 1) if words[0] == "check" else (0,)), errors
        assert "onnxruntime is not installed" not in errors


def test_functions_that_need_it_say_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    model = folder / "model.onnx"
    calls: list[Callable[[], object]] = [
        lambda: memdiag.profile(model),
        lambda: memdiag.check(model),
        lambda: memdiag.estimate(model),
        lambda: memdiag.fix(model),
        lambda: memdiag.compare(model, model),
        lambda: memdiag.compare(model, optimizers=["all"]),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="onnxruntime is not installed"):
            call()
    assert memdiag.check(model, for_onnxruntime="1.24.4")
    record = folder / "profile.json"
    assert memdiag.compare(record, record).kind == "profiles"
