"""Outputs that are no regular files: refused in a sentence, and left as they are."""

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from memdiag.records.codec import encode
from tests.reports import profiles


@pytest.mark.parametrize(
    "words",
    [
        ("fix", "m.onnx", "-o", "pipe"),
        ("fix", "m.onnx", "-o", "link"),
        ("fix", "m.onnx", "-o", "folder"),
        ("profile", "m.onnx", "--out", "pipe"),
        ("profile", "m.onnx", "--update-baseline", "--baseline", "pipe"),
        ("profile", "m.onnx", "--update-baseline", "--baseline", "folder"),
        ("check", "m.onnx", "-o", "folder"),
        ("sweep", "m.onnx", "--out", "pipe"),
        ("sweep", "m.onnx", "--out", "link"),
        ("report", "p.json", "--out", "pipe"),
        ("report", "p.json", "--format", "markdown", "--out", "reports"),
    ],
    ids=" ".join,
)
def test_what_is_no_regular_file_is_refused_and_stays(
    memdiag: Callable[..., "subprocess.CompletedProcess[str]"],
    tmp_path: Path,
    sample_model: Callable[..., Path],
    words: tuple[str, ...],
) -> None:
    (tmp_path / "m.onnx").symlink_to(sample_model("tied_if"))
    (tmp_path / "p.json").write_bytes(encode(profiles.tied_if()))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "report.md").symlink_to("../pipe")
    before = sorted(tmp_path.rglob("*"))
    finished = memdiag(*words)
    assert finished.returncode == 2
    assert finished.stderr.startswith("memdiag: ")
    assert finished.stderr.count("\n") == 1
    assert "cannot be" in finished.stderr
    assert sorted(tmp_path.rglob("*")) == before
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)
    assert (tmp_path / "link").is_symlink()


def test_a_record_goes_into_a_pipe(
    memdiag: Callable[..., "subprocess.CompletedProcess[str]"],
    tmp_path: Path,
    sample_model: Callable[..., Path],
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        finished = memdiag("check", sample_model("tied_if"), "-o", pipe, "--quiet")
        assert finished.returncode == 1, finished.stderr
        assert reader.stdout is not None
        assert b"memdiag.check/1" in reader.stdout.read()
