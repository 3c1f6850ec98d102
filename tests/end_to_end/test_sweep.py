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

import pyarrow.dataset
import pytest

from memdiag.api.load import load_profile
from memdiag.cli.commands import sweep
from tests.end_to_end.conftest import Finished, RunMemdiag
from tests.sweeps.test_model_sources import write_model


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """A folder with two models, of which one has another name as well, and a damaged one."""
    for number, name in enumerate(("a", "b")):
        write_model(tmp_path / "zoo" / f"{name}.onnx", number)
    (tmp_path / "zoo" / "c.onnx").write_bytes((tmp_path / "zoo" / "a.onnx").read_bytes())
    (tmp_path / "zoo" / "damaged.onnx").write_text("no model")
    return tmp_path / "zoo"


def jobs(store: Path) -> dict[str, dict[str, Any]]:
    """Return the row of each job by the name of its model, its sizes and its options."""
    found = pyarrow.dataset.dataset(store / "profiles.parquet", partitioning="hive")
    rows = [row for row in found.to_table().to_pylist() if row["phase"] == "all"]
    by_job = {
        " ".join(filter(None, (row["model"], row["dims"], row["options"]))): row for row in rows
    }
    assert len(by_job) == len(rows)
    return by_job


def record_of(store: Path, row: dict[str, Any]) -> Path:
    key: str = row["key"]
    return store / "records" / key[:2] / f"{key}.json"


@pytest.mark.usefixtures("jobs_in_this_process")
def test_a_folder_is_measured_once_and_then_only_what_is_new(
    memdiag: RunMemdiag, zoo: Path, tmp_path: Path
) -> None:
    store = tmp_path / "sweep"

    def run(*words: str) -> Finished:
        return memdiag("sweep", "zoo", "missing.onnx", "--runs", 1, *words)

    def written() -> dict[str, int]:
        return {name: record_of(store, row).stat().st_mtime_ns for name, row in jobs(store).items()}

    first = run()
    assert (first.returncode, first.stderr) == (0, "")
    rows = {row["model"]: row for row in jobs(store).values()}
    assert {name: row["status"] for name, row in rows.items()} == {
        "a.onnx": "completed",
        "b.onnx": "completed",
        "damaged.onnx": "failed",
        "missing.onnx": "unreadable",
    }
    assert rows["a.onnx"]["steady_bytes"] > rows["a.onnx"]["baseline_bytes"] > 0
    assert rows["a.onnx"]["estimated_peak_bytes"] > 0
    assert rows["a.onnx"]["latency_s"] is None
    profile = load_profile(record_of(store, rows["a.onnx"]))
    assert profile.outcome.status == "completed"
    assert not any("memory limit" in note for note in profile.notes)
    assert "not an ONNX model" in rows["damaged.onnx"]["sentence"]
    assert "No such file" in rows["missing.onnx"]["sentence"]
    assert "c.onnx: the same content as a.onnx" in first.stdout
    assert first.stdout.startswith("2 jobs of 4 models on onnxruntime ")
    assert "at default sizes (--dim); 2 failed." in " ".join(first.stdout.split())
    assert "a.onnx" in (store / "index.html").read_text()

    write_model(zoo / "new.onnx", 7)
    write_model(tmp_path / "missing.onnx", 8)
    before = written()
    second = run("--budget", "steady=1KB", "--against", "sweep")
    assert second.returncode == 1, second.stderr
    assert second.stdout.startswith("4 models exceed the budget in 4 jobs: ")
    assert "a.onnx" in second.stdout
    assert "steady" in second.stdout
    statuses = {row["model"]: row["status"] for row in jobs(store).values()}
    names = ("a.onnx", "b.onnx", "damaged.onnx", "missing.onnx", "new.onnx")
    assert statuses == {**dict.fromkeys(names, "completed"), "damaged.onnx": "failed"}
    after = written()
    assert {name for name in before if after[name] != before[name]} == {"missing.onnx"}
    formats = {name: run("--format", name).stdout for name in sweep.MACHINE_FORMAT_NAMES}
    assert all("a.onnx" in text for name, text in formats.items() if name != "github")
    assert "::warning" in formats["github"]
    one = memdiag("sweep", "zoo/b.onnx", "--runs", 1, "--format", "junit")
    cases = [case.get("name") for case in ET.fromstring(one.stdout).iter("testcase")]
    assert cases == ["b.onnx"]
    assert run("--retry-failed").returncode == 0
    again = written()
    assert {name for name in after if again[name] != after[name]} == {"damaged.onnx"}
    assert jobs(store).keys() == after.keys()


@pytest.mark.usefixtures("jobs_in_this_process")
def test_sizes_and_options_are_combined(memdiag: RunMemdiag, zoo: Path, tmp_path: Path) -> None:
    option = "session.disable_prepacking"
    done = memdiag(
        *("sweep", zoo / "a.onnx", "--runs", 1, "--dim", "batch=1,3"),
        *("--session-option", f"{option}=0", "--session-option", f"{option}=1"),
    )
    assert done.returncode == 0, done.stderr
    assert {*jobs(tmp_path / "sweep")} == {
        f"a.onnx batch={size} {option}={value}" for size in (1, 3) for value in (0, 1)
    }


def test_nothing_that_can_be_done_is_an_error(memdiag: RunMemdiag, tmp_path: Path) -> None:
    assert memdiag("sweep", "missing.onnx").returncode == 2
    (row,) = jobs(tmp_path / "sweep").values()
    assert row["status"] == "unreadable"


def test_after_kill_9_the_sweep_goes_on_and_nothing_is_there_twice(tmp_path: Path) -> None:
    for number in range(3):
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
    rows = jobs(tmp_path / "sweep").values()
    assert sorted(row["model"] for row in rows) == ["0.onnx", "1.onnx", "2.onnx"]
    assert all(row["status"] == "completed" for row in rows)
    assert {path: path.stat().st_mtime_ns for path in done} == done
    keys = {json.loads(path.read_bytes())["key"] for path in records.glob("*/*.json")}
    assert keys == {row["key"] for row in rows}
