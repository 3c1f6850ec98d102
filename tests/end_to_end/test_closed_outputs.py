"""Outputs that are closed, full, or that nobody reads: one sentence, and nothing is lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import RunMemdiag, SampleModel

MEMDIAG = f"{sys.executable} -m memdiag"


@pytest.fixture
def model(sample_model: SampleModel, tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(sample_model("plain_mlp").read_bytes())
    return path


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line, shell=True, cwd=folder, capture_output=True, text=True, timeout=120)


FULL = "memdiag: standard output: cannot be written (No space left on device)."


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("check model.onnx --format json >/dev/full", 2, FULL),
        ("check model.onnx >/dev/full", 2, FULL),
        ("check model.onnx >&-", 0, ""),
        ("check model.onnx <&- >&- 2>&-", 0, ""),
    ],
)
@pytest.mark.usefixtures("model")
def test_the_standard_output_cannot_be_written(
    line: str, code: int, message: str, tmp_path: Path
) -> None:
    done = shell(f"{MEMDIAG} {line}", tmp_path)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(message)
    assert len(done.stderr.splitlines()) == bool(message)


def test_a_pipe_that_nobody_reads_is_refused(
    memdiag: RunMemdiag, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memdiag.records.files.MAX_READER_WAIT_S", 0.1)
    os.mkfifo(model.with_name("pipe"))
    done = memdiag("check", "model.onnx", "-o", "pipe")
    assert done.returncode == 2
    sentence = "cannot be written (no process reads from it). Choose another file or free space."
    assert done.stderr == f"memdiag: pipe: {sentence}\n"


def test_a_record_goes_into_a_pipe(memdiag: RunMemdiag, model: Path) -> None:
    pipe = model.with_name("pipe")
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        finished = memdiag("check", model, "-o", pipe, "--quiet")
        assert finished.returncode == 0, finished.stderr
        assert reader.stdout is not None
        assert b"memdiag.check/1" in reader.stdout.read()


@pytest.mark.usefixtures("model")
def test_a_terminal_of_unknown_width_gets_the_answer(memdiag: RunMemdiag) -> None:
    usual = memdiag("check", "model.onnx", "-q")
    done = memdiag("check", "model.onnx", "-q", COLUMNS="0")
    assert done.returncode == usual.returncode
    assert len(done.stdout.splitlines()) == len(usual.stdout.splitlines()) > 0


@pytest.mark.parametrize(
    "line",
    [
        "check model.onnx | true",
        "--help | true",
        pytest.param("--version | true", marks=pytest.mark.slow),
        "check missing.onnx 2>/dev/full",
        "unknown 2>/dev/full",
    ],
)
def test_what_nobody_reads_is_an_error_and_no_finding(line: str, model: Path) -> None:
    done = shell(f"bash -o pipefail -c '{MEMDIAG} {line}'", model.parent)
    assert done.returncode == 2, done.stderr
    assert done.stderr == ""
