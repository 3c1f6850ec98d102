"""The store: what is added is there once, whoever adds it and whenever a sweep was killed."""

import os
import re
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.dataset
import pytest

from memdiag.errors import RecordError, ReportError, UsageError
from memdiag.records.sweep_job import JobResult
from memdiag.sweeps.store import (
    DATASET_COLUMNS,
    PARTITION_COLUMNS,
    SweepStore,
    latency_s,
    require_pyarrow,
)
from memdiag.sweeps.summary import summarize_sweep
from tests.reports import checks
from tests.sweeps.results import MACHINE, failed, job, result


def rows(folder: Path, dataset: str = "profiles") -> list[dict[str, Any]]:
    found = pyarrow.dataset.dataset(folder / f"{dataset}.parquet", partitioning="hive")
    listed: list[dict[str, Any]] = found.to_table().to_pylist()
    return listed


def whole(folder: Path) -> list[dict[str, Any]]:
    return [row for row in rows(folder) if row["phase"] == "all"]


def statuses(folder: Path) -> dict[str, str]:
    return {row["model"]: row["status"] for row in whole(folder)}


def store_of(folder: Path, *results: JobResult) -> SweepStore:
    store = SweepStore(folder)
    for each in results:
        store.add(each)
    store.flush()
    return store


def test_a_result_becomes_a_row_for_the_job_and_each_phase(tmp_path: Path) -> None:
    options = {"b": "2", "a": "1"}
    alone = result(job(dims={"seq": 16, "batch": 4}, options=options), is_alone=True)
    store_of(tmp_path, alone)
    profile = alone.profile
    assert profile is not None
    assert profile.attribution is not None
    assert [row["phase"] for row in rows(tmp_path)] == ["all", *(p.name for p in profile.phases)]
    (row,) = whole(tmp_path)
    assert row.keys() == {*DATASET_COLUMNS["profiles.parquet"], *PARTITION_COLUMNS}
    assert row["dims"] == "batch=4,seq=16"
    assert row["options"] == "a=1,b=2"
    assert (row["onnxruntime"], row["machine"]) == ("1.32.0", MACHINE)
    assert row["peak_bytes"] == profile.peak_rss_bytes
    assert row["baseline_bytes"] == profile.baseline_rss_bytes
    assert row["latency_s"] == latency_s(profile)
    assert row["started_at"].isoformat() == "2026-01-31T12:00:00+00:00"
    copies = rows(tmp_path, "copies")
    assert len(copies) == len(profile.attribution.copies)
    assert sum(row["bytes"] for row in copies) > 0
    (found,) = rows(tmp_path, "findings")
    finding = profile.findings[0]
    assert (found["rule"], found["remedy"]) == (finding.name, finding.remedies[0])
    assert (found["bytes_steady"], found["bytes_peak"]) == (finding.bytes, finding.peak_bytes)


def test_refuted_findings_have_no_row(tmp_path: Path) -> None:
    profile = result().profile
    assert profile is not None
    refuted = checks.finding(evidence="refuted")
    both = msgspec.structs.replace(profile, findings=(refuted, checks.finding(name="other")))
    store_of(tmp_path, result(profile=both))
    assert [row["rule"] for row in rows(tmp_path, "findings")] == ["other"]


def test_latencies_of_jobs_beside_others_are_left_out(tmp_path: Path) -> None:
    store_of(tmp_path, result(), failed(job("b.onnx")))
    assert [row["latency_s"] for row in whole(tmp_path)] == [None, None]
    assert statuses(tmp_path) == {"a.onnx": "completed", "b.onnx": "failed"}
    assert {row["sentence"] for row in whole(tmp_path)} == {"", "parse: not a model"}


def test_the_first_result_of_a_job_wins(tmp_path: Path) -> None:
    first, second = SweepStore(tmp_path), SweepStore(tmp_path)
    assert first.add(result())
    assert not second.add(failed())
    first.flush()
    second.flush()
    assert [row["status"] for row in whole(tmp_path)] == ["completed"]
    assert first.result(result().key) == result()


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "other"},
        {"onnxruntime": "1.24.4"},
        {"dims": {"batch": 2}},
        {"options": {"a": "1"}},
        {"runs": 3},
    ],
)
def test_jobs_differ_by_all_that_figures_depend_on(change: dict[str, Any]) -> None:
    assert job(**change).key(MACHINE) != job().key(MACHINE)


def test_jobs_differ_by_machine_and_way_of_measuring_and_not_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = job().key(MACHINE)
    assert job().key("other") != key
    assert job("b.onnx", digest=job().digest).key(MACHINE) == key
    monkeypatch.setattr("memdiag.records.sweep_job.MEASURING_VERSION", 99)
    assert job().key(MACHINE) != key


def test_rows_that_a_killed_sweep_did_not_write_are_added_once(tmp_path: Path) -> None:
    store_of(tmp_path, result())
    killed = SweepStore(tmp_path)
    killed.add(result(job("b.onnx")))
    broken = killed.folder / "records" / "ff" / f"ff{30 * '0'}.json"
    broken.parent.mkdir(exist_ok=True)
    broken.write_text("{")
    assert SweepStore(tmp_path).repair() == 1
    assert SweepStore(tmp_path).repair() == 0
    killed.flush()  # it was slow, not killed
    assert sorted(row["model"] for row in whole(tmp_path)) == ["a.onnx", "b.onnx"]
    assert not broken.exists()


def test_repair_removes_no_file_of_a_user(tmp_path: Path) -> None:
    store_of(tmp_path, result())
    [rows_file] = (tmp_path / "profiles.parquet").glob("*/*/*.parquet")
    [record] = (tmp_path / "records").glob("*/*.json")
    users = [
        record.with_name("notes.json"),
        rows_file.with_name("copy of rows.parquet"),
        tmp_path / "profiles.parquet" / "notes.txt",
    ]
    for path in users:
        path.write_text("mine")
    rows_file.write_bytes(rows_file.read_bytes()[:300])
    assert SweepStore(tmp_path).repair() == 1
    assert not rows_file.exists()
    assert all(path.read_text() == "mine" for path in users)


@pytest.mark.parametrize(
    "name", ["records", "records/{key}", "copies.parquet", "findings.parquet/{release}"]
)
def test_a_folder_of_a_store_that_is_a_link_is_refused(tmp_path: Path, name: str) -> None:
    folder, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    store_of(folder, result())
    elsewhere.mkdir()
    (elsewhere / f"{32 * '0'}.json").write_text("{")
    link = folder / name.format(key=result().key[:2], release="onnxruntime=1.2")
    if link.exists():
        link.rename(tmp_path / "moved")
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(elsewhere)
    with pytest.raises(RecordError, match=f"^{re.escape(str(link))}: .* cannot be a link"):
        SweepStore(folder).repair()
    assert len(list(elsewhere.iterdir())) == 1


def test_a_store_may_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to("store")
    store_of(tmp_path / "link", result())
    assert SweepStore(tmp_path / "link").repair() == 0
    assert len(whole(tmp_path / "store")) == 1


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:300])


def _overwrite(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:4] + b"\xff" * 60 + data[64:])  # the footer is whole


def _replace(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize("damage", [_truncate, _overwrite, _replace])
@pytest.mark.parametrize("dataset", DATASET_COLUMNS)
def test_rows_of_a_damaged_file_are_refused_and_written_again(
    tmp_path: Path, dataset: str, damage: Callable[[Path], None]
) -> None:
    def all_rows() -> list[list[dict[str, Any]]]:
        return [rows(tmp_path, name.removesuffix(".parquet")) for name in DATASET_COLUMNS]

    store_of(tmp_path, result())
    before = all_rows()
    [file] = (tmp_path / dataset).glob("*/*/*.parquet")
    damage(file)
    if dataset != "copies.parquet":  # which the summary does not read
        with pytest.raises(RecordError, match=r"its rows cannot be read|not a regular file"):
            summarize_sweep(tmp_path)
    opened = SweepStore(tmp_path)
    assert (opened.repair(), opened.repair()) == (1, 0)
    assert all_rows() == before


def test_threads_and_batches_add_each_job_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memdiag.sweeps.store.MAX_PENDING", 3)
    results = [failed(job(f"{number}.onnx")) for number in range(8)]

    def add() -> None:
        store = SweepStore(tmp_path)
        for each in results:
            store.add(each)
        store.flush()

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(row["model"] for row in whole(tmp_path)) == [f"{n}.onnx" for n in range(8)]


def test_removed_jobs_have_no_rows_and_can_be_added_again(tmp_path: Path) -> None:
    first, second = failed(), failed(job("b.onnx"))
    store = store_of(tmp_path, first, second)
    store.remove([first.key])
    assert not store.has(first.key)
    assert [row["model"] for row in whole(tmp_path)] == ["b.onnx"]
    store.add(result())
    store.flush()
    assert statuses(tmp_path) == {"a.onnx": "completed", "b.onnx": "failed"}


def test_a_store_of_a_newer_memdiag_is_refused(tmp_path: Path) -> None:
    SweepStore(tmp_path)
    SweepStore(tmp_path)  # of this version
    (tmp_path / "store.json").write_text('{"version": 2}')
    with pytest.raises(RecordError, match=r"is of another memdiag \(its version is 2, not 1\)"):
        SweepStore(tmp_path)
    (tmp_path / "store.json").write_text("[]")
    with pytest.raises(RecordError, match="not a store of sweeps"):
        SweepStore(tmp_path)


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="cannot be a store"):
        SweepStore(tmp_path / "file")


def test_a_full_disk_is_one_sentence_and_loses_nothing(
    tmp_path: Path, file_size_limit: Callable[[int], AbstractContextManager[None]]
) -> None:
    store = store_of(tmp_path, failed())
    message = r"Free space.*stored stay done"
    with file_size_limit(1000), pytest.raises(ReportError, match=message):
        store.add(result(job("b.onnx")))
    store.add(result(job("b.onnx")))
    store.flush()
    assert len(whole(tmp_path)) == 2
    assert not list(tmp_path.glob(".memdiag-*"))


def test_without_pyarrow_a_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install 'memdiag\[sweep\]'"):
        require_pyarrow()
