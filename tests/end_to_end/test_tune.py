"""memdiag tune as a user starts it."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

RunMemdiag = Callable[..., "CompletedProcess[str]"]
SampleModel = Callable[..., Path]
_PATIENCE_S = 300


@pytest.fixture
def model(sample_model: SampleModel, tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(sample_model("tied_if", 8).read_bytes())
    return path


def tuned(model: Path, *words: str, command: str = "tune") -> "CompletedProcess[str]":
    """Tune `model` from its own folder; a whole search takes long on a busy machine."""
    return subprocess.run(
        [sys.executable, "-m", "memdiag", command, model.name, "--sizes", "1", *words],
        cwd=model.parent,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
    )


def test_a_picture_does_not_replace_a_model(model: Path) -> None:
    before = model.read_bytes()
    finished = tuned(model, "--picture", model.name)
    assert finished.returncode == 2
    assert "a picture does not replace a model" in finished.stderr
    assert model.read_bytes() == before


@pytest.mark.slow
@pytest.mark.timeout(2 * _PATIENCE_S)
def test_the_answer_comes_first_and_the_program_last(model: Path) -> None:
    finished = tuned(model, "--max-slowdown", "10", "--picture", "p.svg", "--out", "out")
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    lines = finished.stdout.splitlines()
    assert lines[0].startswith("m.onnx: peak ")
    assert "→" in lines[0]
    program = finished.stdout[finished.stdout.index("import onnxruntime") :]
    assert "session = ort.InferenceSession(" in program
    start = next(i for i, line in enumerate(lines) if line.startswith("options"))
    assert max(map(len, lines[: start + 5])) <= 80
    assert (model.parent / "p.svg").read_bytes().startswith(b"<?xml")
    assert "out/   tune.html · tune.png · tune.md · tune.json" in lines
    assert lines[-1].startswith("session = ort.InferenceSession(")
    record = json.loads((model.parent / "out" / "tune.json").read_text())
    assert record["command"][1:3] == ["tune", "m.onnx"]


@pytest.mark.slow
@pytest.mark.timeout(2 * _PATIENCE_S)
@pytest.mark.measures
def test_the_record_holds_the_front_and_a_program_that_runs(model: Path) -> None:
    words = ("--max-slowdown", "10", "--format", "json", "--budget", "steady=1B")
    finished = tuned(model, *words, command="optimize")
    assert finished.returncode == 1  # nothing fits a byte
    record = json.loads(finished.stdout)
    assert record["schema"] == "memdiag.tuning/1"
    assert record["points"][0]["options"] == []
    assert any(point["on_front"] for point in record["points"])
    assert record["after"]["peak_bytes"] < record["before"]["peak_bytes"]
    program = [sys.executable, "-c", record["program"]]
    subprocess.run(program, cwd=model.parent, check=True, timeout=60)
    if "rewrite" in record["chosen"] or record["output_files"]:
        assert (model.parent / "m.optimized.onnx").exists()


@pytest.mark.usefixtures("heeding_ctrl_c")
def test_ctrl_c_prints_the_best_so_far(model: Path) -> None:
    ours, theirs = os.openpty()
    # Progress is shown where standard error is a terminal: it tells when the search has begun.
    with subprocess.Popen(
        [sys.executable, "-m", "memdiag", "tune", model.name, "--sizes", "1"],
        cwd=model.parent,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    ) as process:
        os.close(theirs)
        shown = b""
        while len(set(re.findall(rb"trying ([a-z-]+)", shown))) < 3:
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        printed = process.stdout.read()
    os.close(ours)
    assert process.returncode == 1
    assert printed.startswith("m.onnx: nothing was verified before the interruption.")
    assert "note: the search was interrupted; the result is the best so far" in printed
    assert "ort.InferenceSession" not in printed  # what was not compared is no program


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("missing.onnx",), "there is no such file"),
        (("m.onnx", "--budget", "speed=1"), "speed"),
        (("m.onnx", "--budget", "peak=lots"), "lots"),
        (("m.onnx", "--max-slowdown", "0"), "--max-slowdown must be"),
        (("m.onnx", "--sizes", "0"), "whole numbers from 1"),
        (("m.onnx", "--out", "m.onnx/reports"), "reports cannot be written there"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    memdiag: RunMemdiag, model: Path, words: tuple[str, ...], message: str
) -> None:
    finished = memdiag("tune", *words)
    assert finished.returncode == 2
    assert message in finished.stderr
    assert finished.stderr.count("\n") == 1
    assert finished.stdout == ""
    assert [path.name for path in model.parent.iterdir()] == ["m.onnx"]
