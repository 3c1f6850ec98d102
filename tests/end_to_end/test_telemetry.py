"""No command lets onnxruntime write to the home folder, or upload anything."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from memdiag.ort.releases import TELEMETRY_SINCE
from memdiag.ort.runtime import Runtime

pytestmark = pytest.mark.timeout(300)

SampleModel = Callable[..., Path]

ONCE = ["--processes", "1", "--runs", "1", "--xray=none"]
COMMANDS = {
    "profile": ["profile", "MODEL", "--runs", "1", "--out", "out"],
    "check": ["check", "MODEL"],
    "fix": ["fix", "MODEL", "-o", "fixed.onnx", "--sizes", "1", "--only", "subgraph-weights"],
    "tune": ["tune", "MODEL", "--only", "arena-off", "--sizes", "1"],
    "compare": ["compare", "MODEL", "--optimizers", "onnxruntime-basic", *ONCE],
}


def written_by(
    words: list[str], model: Path, folder: Path, environment: dict[str, str]
) -> list[str]:
    """Run a command as a user with an empty home, and return the files in it afterwards."""
    words = [str(model) if word == "MODEL" else word for word in words]
    done = subprocess.run(
        [sys.executable, "-m", "memdiag", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode in (0, 1), done.stderr
    home = Path(environment["HOME"])
    return [str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()]


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_command_leaves_no_telemetry(
    words: list[str],
    sample_model: SampleModel,
    tmp_path: Path,
    user_environment: dict[str, str],
) -> None:
    assert written_by(words, sample_model("subgraph_weights"), tmp_path, user_environment) == []


@pytest.mark.skipif(Runtime.installed() < TELEMETRY_SINCE, reason="it has no telemetry")
@pytest.mark.parametrize("command", ["profile", pytest.param("tune", marks=pytest.mark.slow)])
def test_telemetry_is_on_where_it_is_asked_for(
    command: str, sample_model: SampleModel, tmp_path: Path, user_environment: dict[str, str]
) -> None:
    words = [*COMMANDS[command], "--telemetry"]
    written = written_by(words, sample_model("plain_mlp"), tmp_path, user_environment)
    assert any("Microsoft" in name for name in written)
