"""Pipes in place of input files: refused in a sentence, never waited for."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memdiag.records.codec import encode
from tests.reports import profiles

LONGEST_S = 60
"""What a command may take on a busy machine; one that waits for a pipe takes for ever."""


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """Fail a test that waits."""

    def fail(*_: object) -> None:
        raise TimeoutError("it waits for a pipe")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(LONGEST_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "words",
    [
        ("profile", "m.onnx", "--input", "pipe"),
        ("profile", "m.onnx", "--input", "x=pipe"),
        ("profile", "m.onnx", "--baseline", "pipe"),
        ("profile", "genai"),
        ("fix", "m.onnx", "--input", "pipe"),
        ("check", "pipe.onnx"),
        ("compare", "p.json", "pipe.json"),
        ("report", "pipe.json"),
        ("sweep", "pipe.toml", "--out", "new"),
        ("sweep", "m.onnx", "--out", "store"),
        ("sweep", "m.onnx", "--out", "locked"),
    ],
    ids=" ".join,
)
def test_a_pipe_is_refused(
    memdiag: Callable[..., "subprocess.CompletedProcess[str]"],
    tmp_path: Path,
    sample_model: Callable[..., Path],
    words: tuple[str, ...],
) -> None:
    (tmp_path / "m.onnx").symlink_to(sample_model("tied_if"))
    (tmp_path / "p.json").write_bytes(encode(profiles.tied_if()))
    for folder in ("genai", "store", "locked"):
        (tmp_path / folder).mkdir()
    pipes = ("pipe", "pipe.json", "pipe.toml", "pipe.onnx", "store/store.json", "locked/.lock")
    for pipe in (*pipes, "genai/genai_config.json"):
        os.mkfifo(tmp_path / pipe)
    finished = memdiag(*words)
    assert finished.returncode == 2
    assert finished.stderr.startswith("memdiag: ")
    assert finished.stderr.count("\n") == 1
    assert any(words in finished.stderr for words in ("not a regular file", "No such device"))


def test_pipes_beside_what_is_read_are_passed_over(
    memdiag: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "profile.json").write_bytes(encode(profiles.tied_if()))
    os.mkfifo(tmp_path / "folder" / "fix.json")
    for name in ("folder", "folder/profile.json"):
        finished = memdiag("report", name, "--format", "markdown")
        assert finished.returncode == 0, finished.stderr


def test_settings_in_a_pipe_are_refused(
    memdiag: Callable[..., "subprocess.CompletedProcess[str]"],
    tmp_path: Path,
    sample_model: Callable[..., Path],
) -> None:
    os.mkfifo(tmp_path / "pyproject.toml")
    finished = memdiag("check", sample_model("tied_if"))
    assert finished.returncode == 2
    assert "pyproject.toml: cannot be read (not a regular file)" in finished.stderr
