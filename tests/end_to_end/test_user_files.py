"""No command removes a file that memdiag did not make, in any folder that it writes to."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from memdiag.cli.commands import COMMAND_NAMES
from memdiag.temporary_names import own_prefix, temporary_file_owner
from tests.end_to_end.conftest import SampleModel
from tests.user_names import user_names

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NAMES = 1000
SLEEPING = [sys.executable, "-c", "import time; time.sleep(600)"]
PROGRAM = (
    "import onnxruntime, numpy, time\n"
    "session = onnxruntime.InferenceSession('models/model.onnx')\n"
    "types = {'tensor(bool)': bool, 'tensor(float)': numpy.float32}\n"
    "feeds = {each.name: numpy.zeros([1 if isinstance(n, str) else n for n in each.shape],"
    " types[each.type]) for each in session.get_inputs()}\n"
    "end = time.monotonic() + 8\n"
    "while time.monotonic() < end: session.run(None, feeds)\n"
)
MODEL = "models/model.onnx"
SEARCH = ["--sizes", "1", "--time-limit", "20", "--out", "out"]
RUNS: dict[str, list[list[str]]] = {
    "check": [["check", MODEL, "-o", "out/check.json"]],
    "compare": [["compare", "out/profile.json", "out/profile.json", "--out", "out"]],
    "estimate": [["estimate", MODEL, "--out", "out"]],
    "explain": [["explain", "MD101"]],
    "fix": [["fix", MODEL, "-o", "models/fixed.onnx", *SEARCH]],
    "leak": [
        ["leak", MODEL, "--runs", "40", "--out", "out"],
        ["leak", "--out", "out", "--", sys.executable, "program.py"],
    ],
    "limit": [["limit", MODEL, "--at", "400MiB", "--out", "out"]],
    "profile": [
        ["profile", MODEL, "--runs", "2", "--out", "out"],
        ["profile", MODEL, "--baseline", "baselines/m.json", "--update-baseline", "--out", "out"],
    ],
    "report": [["report", "out/profile.json"]],
    "run": [["run", "--out", "out", "--", sys.executable, "program.py"]],
    "sweep": [["sweep", MODEL, "--runs", "1", "--out", "out"]],
    "watch": [["watch", "PID", "--for", "1s", "--out", "out"]],
    "xray": [["xray", "PID", "-o", "out/xray.json"]],
}
WRITTEN = (
    "scratch",
    "out",
    "out/records",
    "out/model",
    "models",
    "baselines",
    "cache",
    "cache/models",
    "cache/runtimes",
    ".",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, sample_model: SampleModel) -> Path:
    """A folder with the model and the program, and files of the user wherever memdiag writes."""
    folder = tmp_path_factory.mktemp("user")
    for name in WRITTEN:
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / MODEL).write_bytes(sample_model("subgraph_weights", 4).read_bytes())
    (folder / "program.py").write_text(PROGRAM)
    for path in user_files(folder):
        if path.suffix:
            path.write_text(path.name)
        else:
            path.mkdir()
            (path / "file").write_text(path.name)
            os.utime(path, (0, 0))
    return folder


def user_files(folder: Path) -> Iterator[Path]:
    for seed, name in enumerate(WRITTEN):
        yield from (folder / name / each for each in user_names(NAMES, seed))


def changed_files(folder: Path) -> list[Path]:
    contents = (path if path.suffix else path / "file" for path in user_files(folder))
    return [path for path in contents if not path.exists() or path.read_text() != content_of(path)]


def content_of(path: Path) -> str:
    return path.parent.name if path.name == "file" else path.name


def test_every_command_is_tried() -> None:
    assert list(RUNS) == list(COMMAND_NAMES)


# A profile first: other commands read it.
@pytest.mark.parametrize("command", sorted(RUNS, key=lambda name: name != "profile"))
def test_files_of_the_user_stay(command: str, folder: Path) -> None:
    environment = {
        **os.environ,
        "TMPDIR": str(folder / "scratch"),
        "MEMDIAG_CACHE": str(folder / "cache"),
    }
    with subprocess.Popen(SLEEPING) as sleeping:
        try:
            for words in RUNS[command]:
                words = [str(sleeping.pid) if word == "PID" else word for word in words]
                done = subprocess.run(
                    [sys.executable, "-m", "memdiag", *words],
                    cwd=folder,
                    env=environment,
                    capture_output=True,
                    text=True,
                )
                assert done.returncode in (0, 1), done.stderr
        finally:
            sleeping.kill()
    assert changed_files(folder) == []
    left = [path for path in folder.rglob("*") if temporary_file_owner(path.name) is not None]
    assert left == []


def test_a_file_of_an_ended_process_goes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: ended.pid)
        left = folder / "scratch" / f"{own_prefix()}abc"
    left.mkdir()
    test_files_of_the_user_stay("profile", folder)
    assert not left.exists()
