"""memdiag fix as a user starts it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.conftest import RunMemdiag, SampleModel


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
    words = ("-o", "out.onnx", "--max-slowdown", "10", "--only", "weight-in-branches", "--out", "r")
    finished = memdiag("fix", model, *words)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    lines = finished.stdout.splitlines()
    for label in ("Why  ", "Do  ", "changes  ", "Files      wrote out.onnx", "r/   fix.html"):
        assert any(line.startswith(label) for line in lines), label
    program = finished.stdout[finished.stdout.index("import onnxruntime") :]
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "out.onnx").exists()
    assert max(map(len, lines)) <= 80
    assert len(lines) - len(program.splitlines()) <= 30


@pytest.mark.slow
def test_the_record_follows_the_contract(
    memdiag: RunMemdiag, sample_model: SampleModel, tmp_path: Path
) -> None:
    words = ("-o", "out.onnx", "--max-slowdown", "10", "--sizes", "1", "--format", "json")
    only = ("--only", "rewrites", "--budget", "steady=1B")
    finished = memdiag("fix", sample_model("subgraph_weights", 8), *words, *only)
    assert finished.returncode == 1  # nothing fits a byte
    record = json.loads(finished.stdout)
    assert record["output_files"][0] == "out.onnx"
    assert (tmp_path / "out.onnx").exists()
    assert record["schema"] == "memdiag.fix/1"
    assert {"points", "remedies", "before", "after", "program"} <= {*record}
    assert {"name", "rule", "status", "reason"} <= {*record["remedies"][0]}
    for side in ("before", "after"):
        assert {"peak_bytes", "steady_bytes", "anonymous_bytes", "load_s", "latency_s"} <= {
            *record[side]
        }
    assert record["oldest_onnxruntime"] == "1.20.0"


def test_nothing_to_fix_is_no_error(memdiag: RunMemdiag, sample_model: SampleModel) -> None:
    finished = memdiag("fix", sample_model("plain_mlp"), "--only", "stored-transpose")
    assert finished.returncode == 0
    assert "the defaults are the best that was found" in " ".join(finished.stdout.split())


def test_the_reports_are_written_where_they_were_asked_for(
    memdiag: RunMemdiag, sample_model: SampleModel, tmp_path: Path
) -> None:
    model = sample_model("tied_if")
    finished = memdiag("fix", model, "--time-limit", "1ms", "--out", "some/reports")
    assert finished.returncode == 1, finished.stderr  # there was no time to try anything
    assert finished.stdout.splitlines()[-1] == (
        "some/reports/   fix.html · fix.png · fix.md · fix.json"
    )
    record = json.loads((tmp_path / "some" / "reports" / "fix.json").read_text())
    assert record["command"] == [
        "memdiag", "fix", str(model), "--time-limit", "1ms", "--out", "some/reports",
    ]  # fmt: skip
    assert memdiag("fix", model, "--time-limit", "1ms").returncode == 1
    assert [path.name for path in tmp_path.iterdir()] == ["some"]


@pytest.mark.usefixtures("heeding_ctrl_c")
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_interruption_leaves_no_file_and_no_process(
    tied: Path, tmp_path_factory: pytest.TempPathFactory, number: signal.Signals
) -> None:
    scratch = tmp_path_factory.mktemp("scratch")
    with subprocess.Popen(
        [sys.executable, "-m", "memdiag", "fix", str(tied), "--sizes", "1", "--only", "rewrites"],
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
    assert "nothing was verified before the interruption" in " ".join(answer.split())
    assert "Run it again." in answer
    _, alive = psutil.wait_procs(started, timeout=10)
    assert started
    assert alive == []
    assert [path.name for path in tied.parent.iterdir()] == ["tied.onnx"]
    assert list(scratch.glob("memdiag-*")) == []


@pytest.mark.usefixtures("heeding_ctrl_c")
def test_ctrl_c_prints_the_best_so_far(tied: Path) -> None:
    ours, theirs = os.openpty()
    # Progress is shown where standard error is a terminal: it tells when the search has begun.
    words = ("--sizes", "1", "--only", "arena-off,disable-prepacking,optimization-off")
    with subprocess.Popen(
        [sys.executable, "-m", "memdiag", "fix", tied.name, *words],
        cwd=tied.parent,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    ) as process:
        os.close(theirs)
        shown = b""
        while len(set(re.findall(rb"trying ([a-z-]+)", shown))) < 2:
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        printed = process.stdout.read()
    os.close(ours)
    assert process.returncode == 1
    assert printed.startswith("tied.onnx: nothing was verified before the interruption.")
    assert "ort.InferenceSession" not in printed  # what was not compared is no program
