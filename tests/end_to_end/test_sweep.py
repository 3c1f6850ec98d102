"""`memdiag sweep` as users start it: a folder of models, one store, and what is new each time."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import onnx
import pyarrow.dataset
import pytest

from memdiag.api.load import load_profile
from memdiag.cli.commands import sweep
from tests.end_to_end.conftest import Finished, RunMemdiag


def write_model(path: Path, constant: float) -> None:
    text = (
        '<ir_version: 9, opset_import: ["" : 17]>'
        f"g (float[batch, 4] x) => (float[batch, 4] y) <float[1] c = {{{constant}}}>"
        "{ y = Add(x, c) }"
    )
    path.parent.mkdir(exist_ok=True)
    onnx.save(onnx.parser.parse_model(text), path)


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """A folder with two models, of which one has another name as well, and a damaged one."""
    for number, name in enumerate(("a", "b")):
        write_model(tmp_path / "zoo" / f"{name}.onnx", number)
    (tmp_path / "zoo" / "c.onnx").write_bytes((tmp_path / "zoo" / "a.onnx").read_bytes())
    (tmp_path / "zoo" / "damaged.onnx").write_text("no model")
    return tmp_path / "zoo"


def jobs(store: Path) -> list[dict[str, Any]]:
    found = pyarrow.dataset.dataset(store / "profiles.parquet", partitioning="hive")
    rows: list[dict[str, Any]] = found.to_table().to_pylist()
    return [row for row in rows if row["phase"] == "all"]


def test_a_folder_is_measured_once_and_then_only_what_is_new(
    memdiag: RunMemdiag, zoo: Path, tmp_path: Path
) -> None:
    def run(*words: str) -> Finished:
        return memdiag("sweep", "zoo", "missing.onnx", "--runs", 1, *words)

    first = run()
    assert (first.returncode, first.stderr) == (0, "")
    rows = {row["model"]: row for row in jobs(tmp_path / "sweep")}
    assert {name: row["status"] for name, row in rows.items()} == {
        "a.onnx": "completed",
        "b.onnx": "completed",
        "damaged.onnx": "failed",
        "missing.onnx": "unreadable",
    }
    assert rows["a.onnx"]["steady_bytes"] > rows["a.onnx"]["baseline_bytes"] > 0
    assert rows["a.onnx"]["estimated_peak_bytes"] > 0
    assert rows["a.onnx"]["latency_s"] is None
    key = rows["a.onnx"]["key"]
    profile = load_profile(tmp_path / "sweep" / "records" / key[:2] / f"{key}.json")
    assert profile.outcome.status == "completed"
    assert not any("memory limit" in note for note in profile.notes)
    assert "not an ONNX model" in rows["damaged.onnx"]["sentence"]
    assert "No such file" in rows["missing.onnx"]["sentence"]
    assert "c.onnx: the same content as a.onnx" in first.stdout

    assert first.stdout.startswith("2 jobs of 4 models on onnxruntime ")
    assert "at default sizes (--dim); 2 failed." in " ".join(first.stdout.split())
    assert "a.onnx" in (tmp_path / "sweep" / "index.html").read_text()

    write_model(zoo / "new.onnx", 7)
    write_model(tmp_path / "missing.onnx", 8)
    stored = (tmp_path / "sweep" / "records").rglob("*.json")
    records = {path: path.stat().st_mtime_ns for path in stored}
    second = run("--budget", "steady=1KB", "--against", "sweep")
    assert second.returncode == 1, second.stderr
    assert second.stdout.startswith("4 models exceed the budget in 4 jobs: ")
    assert "a.onnx" in second.stdout
    assert "steady" in second.stdout
    found = jobs(tmp_path / "sweep")
    assert sorted(row["model"] for row in found) == [
        "a.onnx",
        "b.onnx",
        "damaged.onnx",
        "missing.onnx",
        "new.onnx",
    ]
    assert {row["model"] for row in found if row["status"] == "completed"} == {
        "a.onnx",
        "b.onnx",
        "missing.onnx",
        "new.onnx",
    }
    formats = {name: run("--format", name).stdout for name in sweep.MACHINE_FORMAT_NAMES}
    assert all("a.onnx" in text for name, text in formats.items() if name != "github")
    assert "::warning" in formats["github"]
    one = memdiag("sweep", "zoo/b.onnx", "--runs", 1, "--format", "junit")
    cases = [case.get("name") for case in ET.fromstring(one.stdout).iter("testcase")]
    assert cases == ["b.onnx"]
    unchanged = [path for path, at in records.items() if path.exists()]
    assert len(unchanged) == len(records) - 1  # but for the model that was missing
    assert all(path.stat().st_mtime_ns == records[path] for path in unchanged)


def test_sizes_and_options_are_combined(memdiag: RunMemdiag, zoo: Path, tmp_path: Path) -> None:
    option = "session.disable_prepacking"
    done = memdiag(
        *("sweep", zoo / "a.onnx", "--runs", 1, "--dim", "batch=1,3"),
        *("--session-option", f"{option}=0", "--session-option", f"{option}=1"),
    )
    assert done.returncode == 0, done.stderr
    rows = jobs(tmp_path / "sweep")
    assert {(row["dims"], row["options"]) for row in rows} == {
        (f"batch={size}", f"{option}={value}") for size in (1, 3) for value in (0, 1)
    }
    done = memdiag("sweep", zoo / "a.onnx", "--runs", 1, "--dim", "bacth=2")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no model has a free dimension 'bacth'. Did you mean 'batch'?" in done.stderr


def test_nothing_that_can_be_done_is_an_error(memdiag: RunMemdiag, tmp_path: Path) -> None:
    done = memdiag("sweep", "missing.onnx")
    assert done.returncode == 2
    (row,) = jobs(tmp_path / "sweep")
    assert row["status"] == "unreadable"
    for words, message in [
        (("--budget", "copies=2x"), "copies cannot be a multiple of the weights"),
        (("--onnxruntime", "abc"), "'abc' is neither a version"),
        (("--against", "zoo"), "zoo: there is no store of sweeps"),
        (("--dim", "batch=4..1"), "4..1 is not a range of sizes"),
    ]:
        done = memdiag("sweep", "missing.onnx", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr


def test_after_kill_9_the_sweep_goes_on_and_nothing_is_there_twice(tmp_path: Path) -> None:
    for number in range(4):
        write_model(tmp_path / "zoo" / f"{number}.onnx", number)
    words = [sys.executable, "-m", "memdiag", "sweep", "zoo", "--runs", "1", "--jobs", "2"]
    records = tmp_path / "sweep" / "records"
    killed = subprocess.Popen(words, cwd=tmp_path, start_new_session=True)
    deadline = time.monotonic() + 100
    while not list(records.glob("*/*.json")):
        assert time.monotonic() < deadline
        assert killed.poll() is None
        time.sleep(0.05)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    done = {path: path.stat().st_mtime_ns for path in records.glob("*/*.json")}
    # Two at once, which share what is left.
    both = [subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(100) for process in both] == [0, 0]
    rows = jobs(tmp_path / "sweep")
    assert sorted(row["model"] for row in rows) == [f"{number}.onnx" for number in range(4)]
    assert all(row["status"] == "completed" for row in rows)
    assert {path: path.stat().st_mtime_ns for path in done} == done
    keys = {json.loads(path.read_bytes())["key"] for path in records.glob("*/*.json")}
    assert keys == {row["key"] for row in rows}


def test_failed_jobs_are_done_again_on_request(memdiag: RunMemdiag, tmp_path: Path) -> None:
    (tmp_path / "damaged.onnx").write_text("no model")
    write_model(tmp_path / "zoo" / "sound.onnx", 1)
    words = ["sweep", "zoo", "damaged.onnx", "--runs", 1]

    def keys_by_model() -> dict[str, str]:
        assert memdiag(*words).returncode == 0
        return {row["model"]: row["key"] for row in jobs(tmp_path / "sweep")}

    keys = keys_by_model()
    records = {
        model: tmp_path / "sweep" / "records" / key[:2] / f"{key}.json"
        for model, key in keys.items()
    }
    written = {model: path.stat().st_mtime_ns for model, path in records.items()}
    assert keys_by_model() == keys
    assert {model: path.stat().st_mtime_ns for model, path in records.items()} == written
    words.append("--retry-failed")
    assert keys_by_model() == keys
    again = {model for model, path in records.items() if path.stat().st_mtime_ns != written[model]}
    assert again == {"damaged.onnx"}
    assert len(jobs(tmp_path / "sweep")) == 2
