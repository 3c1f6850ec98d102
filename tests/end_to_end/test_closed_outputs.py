"""Outputs that are closed, full, or that nobody reads: one sentence, and nothing is lost."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.conftest import RunMemdiag

SampleModel = Callable[..., Path]
MEMDIAG = f"{sys.executable} -m memdiag"


@pytest.fixture
def model(sample_model: SampleModel, tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(sample_model("plain_mlp").read_bytes())
    return path


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line, shell=True, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (
            "check model.onnx --format json >/dev/full",
            2,
            "memdiag: standard output: cannot be written (No space left on device).",
        ),
        (
            "check model.onnx >/dev/full",
            2,
            "memdiag: standard output: cannot be written (No space left on device).",
        ),
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


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("model.onnx", "memdiag: model.onnx: a record does not replace a model."),
        ("pipe", "memdiag: pipe: cannot be written (no process reads from it)."),
    ],
)
def test_the_output_cannot_be_written(
    memdiag: RunMemdiag, output: str, message: str, model: Path
) -> None:
    before = model.read_bytes()
    os.mkfifo(model.with_name("pipe"))
    done = memdiag("check", "model.onnx", "-o", output)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(message)
    assert len(done.stderr.splitlines()) == 1
    assert model.read_bytes() == before


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
        "--version | true",
        "check missing.onnx 2>/dev/full",
        "unknown 2>/dev/full",
    ],
)
def test_what_nobody_reads_is_an_error_and_no_finding(line: str, model: Path) -> None:
    done = shell(f"bash -o pipefail -c '{MEMDIAG} {line}'", model.parent)
    assert done.returncode == 2, done.stderr
    assert done.stderr == ""
