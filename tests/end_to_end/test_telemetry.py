"""No command lets onnxruntime write to the home folder, or upload anything."""

import os
from pathlib import Path

import pytest

from tests.end_to_end.conftest import RunMemdiag, SampleModel

pytestmark = pytest.mark.timeout(300)


ONCE = ["--repeats", "1", "--runs", "1"]
COMMANDS = {
    "profile": ["profile", "MODEL", "--runs", "1", "--format", "json"],
    "check": ["check", "MODEL"],
    "fix": ["fix", "MODEL", "-o", "fixed.onnx", "--sizes", "1", "--only", "subgraph-weights"],
    "compare": ["compare", "MODEL", "--optimizers", "onnxruntime-basic", *ONCE],
}


@pytest.fixture
def home(user_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty home of the user that this process now is the process of."""
    for name in os.environ.keys() - user_environment.keys():
        monkeypatch.delenv(name)
    for name, text in user_environment.items():
        monkeypatch.setenv(name, text)
    return Path(user_environment["HOME"])


def files_in(home: Path) -> list[str]:
    return [str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()]


@pytest.mark.usefixtures("equal_latency", "one_process_each", "records_only")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_leaves_no_telemetry(
    command: str,
    memdiag: RunMemdiag,
    memdiag_process: RunMemdiag,
    sample_model: SampleModel,
    home: Path,
) -> None:
    model = sample_model("subgraph_weights")
    words = [model if word == "MODEL" else word for word in COMMANDS[command]]
    # The process of memdiag itself is the same for all commands; the children are real ones.
    run = memdiag_process if command == "profile" else memdiag
    done = run(*words)
    assert done.returncode in (0, 1), done.stderr
    assert files_in(home) == []
