"""An environment without onnxruntime: what needs it says so, everything else works."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import memdiag
from memdiag.errors import UsageError
from memdiag.records.codec import encode
from tests.end_to_end.conftest import SampleModel
from tests.reports import profiles

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


RELEASE = ("--for-onnxruntime", "1.24.4")
QUICK = ("--runs", "1", "--format", "json")
COMMANDS: list[tuple[tuple[str, ...], tuple[int, str]]] = [
    (("profile", "model.onnx"), (2, "--python")),
    (("check", "model.onnx"), (2, "--for-onnxruntime")),
    (("estimate", "model.onnx"), (2, "--for-onnxruntime")),
    (("check", "model.onnx", *RELEASE), (1, "")),
    (("estimate", "model.onnx", *RELEASE, "--fit", "1GB", "--no-run"), (0, "")),
    (("report", "profile.json", "--format", "markdown"), (0, "")),
    (("profile", "model.onnx", "--python", sys.executable, "--xray=none", *QUICK), (0, "")),
    (("compare", "model.onnx", "--onnxruntime", sys.executable, "--repeats=1", *QUICK), (0, "")),
]
"""Commands with their exit code and, of those that need onnxruntime, the option that helps."""


@pytest.fixture
def folder(tmp_path: Path, sample_model: SampleModel) -> Path:
    """A folder with a model and a profile."""
    (tmp_path / "model.onnx").write_bytes(sample_model("tied_if").read_bytes())
    (tmp_path / "profile.json").write_bytes(encode(profiles.tied_if()))
    return tmp_path


def test_a_command_that_needs_it_says_so_and_others_work(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN_EACH, json.dumps([words for words, _ in COMMANDS])],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    for (_, (expected, option)), (code, output, errors) in zip(COMMANDS, results, strict=True):
        assert code == expected, errors
        assert bool(output) == (option == "")
        if option:
            sentence = "memdiag: onnxruntime is not installed in memdiag's environment."
            assert errors.startswith(sentence)
            assert "pip install 'memdiag[cpu]'" in errors
            assert option in errors
            assert errors.count("\n") == 1


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
