"""memdiag fix as a user starts it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import psutil
import pytest

RunMemdiag = Callable[..., "CompletedProcess[str]"]
SampleModel = Callable[..., Path]


@pytest.fixture
def tied(sample_model: SampleModel, tmp_path: Path) -> Path:
    path = tmp_path / "tied.onnx"
    path.write_bytes(sample_model("tied_if", 4).read_bytes())
    return path


@pytest.mark.slow
def test_fix_says_what_it_did_and_writes_the_model(
    memdiag: RunMemdiag, sample_model: SampleModel, tmp_path: Path
) -> None:
    model = sample_model("subgraph_weights", 8)
    finished = memdiag("fix", model, "-o", "out.onnx", "--max-slowdown", "10")
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    lines = finished.stdout.splitlines()
    assert any(line.startswith("applied ") for line in lines)
    for label in ("peak", "steady", "  anonymous", "load", "latency with", "onnxruntime: verified"):
        assert any(line.startswith(label) for line in lines), label
    assert lines[-1].startswith("wrote out.onnx")
    assert (tmp_path / "out.onnx").exists()
    assert max(map(len, lines)) <= 80


@pytest.mark.slow
def test_the_record_follows_the_contract(
    memdiag: RunMemdiag, sample_model: SampleModel, tmp_path: Path
) -> None:
    words = ("-o", "out.onnx", "--max-slowdown", "10", "--sizes", "1", "--format", "json")
    record = json.loads(memdiag("fix", sample_model("subgraph_weights", 8), *words).stdout)
    assert record["output"] == "out.onnx"
    assert (tmp_path / "out.onnx").exists()
    assert record["schema"] == "memdiag.fix/1"
    assert {"output", "remedies", "before", "after"} <= {*record}
    assert {"name", "rule", "status", "reason"} <= {*record["remedies"][0]}
    for side in ("before", "after"):
        assert {
            "peak_bytes",
            "steady_bytes",
            "anonymous_bytes",
            "load_s",
            "latency_s",
        } <= {*record[side]}
    assert record["verified_on"] == [record["onnxruntime"]]
    assert record["oldest_onnxruntime"] == "1.20.0"


def test_nothing_to_fix_is_no_error(memdiag: RunMemdiag, sample_model: SampleModel) -> None:
    finished = memdiag("fix", sample_model("plain_mlp"), "-o", "out.onnx")
    assert finished.returncode == 0
    assert "nothing to fix was found" in " ".join(finished.stdout.split())


def test_the_reports_are_written_where_they_were_asked_for(
    memdiag: RunMemdiag, sample_model: SampleModel, tmp_path: Path
) -> None:
    model = sample_model("tied_if")
    finished = memdiag("fix", model, "--dry-run", "--out", "some/reports")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1] == (
        "some/reports/   fix.html · fix.png · fix.md · fix.json"
    )
    record = json.loads((tmp_path / "some" / "reports" / "fix.json").read_text())
    assert record["command"] == [
        "memdiag", "fix", str(model), "--dry-run", "--out", "some/reports",
    ]  # fmt: skip
    assert memdiag("fix", model, "--dry-run").returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["some"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("missing.onnx",), "there is no such file"),
        (("tied.onnx", "-o", "tied.onnx"), "the original's own file"),
        (("tied.onnx", "--only", "nonsense"), "unknown rule"),
        (("tied.onnx", "--out", "tied.onnx/reports"), "reports cannot be written there"),
        (
            ("tied.onnx", "--check-with", "nothing", "--sizes", "1"),
            "cannot be started as a Python interpreter",
        ),
        (("tied.onnx", "-o", "/proc/nothing/out.onnx", "--max-slowdown", "10"), "cannot be"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    memdiag: RunMemdiag, tied: Path, words: tuple[str, ...], message: str
) -> None:
    finished = memdiag("fix", *words)
    assert finished.returncode == 2
    assert message in finished.stderr
    assert finished.stderr.count("\n") == 1
    assert [path.name for path in tied.parent.iterdir()] == ["tied.onnx"]


@pytest.mark.usefixtures("heeding_ctrl_c")
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_interruption_leaves_no_file_and_no_process(
    tied: Path, tmp_path_factory: pytest.TempPathFactory, number: signal.Signals
) -> None:
    scratch = tmp_path_factory.mktemp("scratch")
    with subprocess.Popen(
        [sys.executable, "-m", "memdiag", "fix", str(tied), "--sizes", "1"],
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + 60
        while not list(tied.parent.glob(".memdiag-*")) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.5)  # by now a candidate is checked, measured or raced
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        answer, message = process.communicate()
    assert (process.returncode, message) == (1, "")
    assert "untried" in answer
    assert "Nothing was written. Run it again." in " ".join(answer.split())
    _, alive = psutil.wait_procs(started, timeout=10)
    assert started
    assert alive == []
    assert [path.name for path in tied.parent.iterdir()] == ["tied.onnx"]
    assert list(scratch.glob("memdiag-*")) == []
