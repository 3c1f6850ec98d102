"""memdiag killed at any moment leaves no process, and its next call removes its files."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from memdiag.fixing.model_writer import ModelWriter
from memdiag.model.model_file import open_model
from tests.end_to_end.conftest import RunMemdiag
from tests.waiting import wait_until

SampleModel = Callable[..., Path]

pytestmark = pytest.mark.timeout(300)
MEMDIAG = [sys.executable, "-m", "memdiag"]
COMMANDS = {
    "profile": ["profile", "model.onnx", "--out", "out"],
    "fix": ["fix", "model.onnx", "-o", "fixed.onnx", "--sizes", "1", "--only", "rewrites"],
}


def left_in(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir() if one.name.startswith(("memdiag-", ".memdiag-"))]


@pytest.fixture
def killed(
    sample_model: SampleModel,
    tmp_path: Path,
    memdiag: RunMemdiag,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[list[str], float], None]]:
    """A function that starts a command and kills it at some moment of its work."""
    model = tmp_path / "model.onnx"
    model.write_bytes(sample_model("subgraph_weights", 4).read_bytes())
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch)}

    def kill(words: list[str], after_s: float) -> None:
        process = subprocess.Popen(
            [*MEMDIAG, *words],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with process:
            wait_until(lambda: os.listdir(scratch))
            time.sleep(after_s)
            children = psutil.Process(process.pid).children(recursive=True)
            process.kill()
        # It may have ended by itself, but then there was nothing to kill.
        assert process.returncode in (-signal.SIGKILL, 0)
        _, alive = psutil.wait_procs(children, timeout=20)
        assert alive == []

    yield kill
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    done = memdiag("profile", "model.onnx", "--no-run", "--xray=none", "--out", ".")
    assert done.returncode == 0, done.stderr
    assert left_in(scratch) == []
    with open_model(model) as file:  # as the next fix does
        ModelWriter(file, tmp_path / "fixed.onnx").check_writable()
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    ("command", "after_s"),
    [
        ("profile", 0.3),
        ("fix", 0.8),
        *(
            pytest.param(command, after_s, marks=pytest.mark.slow)
            for command in COMMANDS
            for after_s in (0.0, 0.5, 1.0, 1.5)
        ),
    ],
)
def test_nothing_stays_of_a_killed_call(
    command: str, after_s: float, killed: Callable[[list[str], float], None]
) -> None:
    killed(COMMANDS[command], after_s)
