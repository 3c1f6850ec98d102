"""Execution on a cluster: the same results as on this machine, also if workers are lost."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import distributed
import pytest

from memdiag.errors import MeasurementError, UsageError
from memdiag.records.sweep_job import JobResult
from memdiag.runner.machine import machine_class
from memdiag.sweeps.dask_execution import LOCAL_CLUSTER, DaskExecution, classes_of
from memdiag.sweeps.local_execution import LocalExecution
from memdiag.sweeps.model_sources import find_sweep_models
from memdiag.sweeps.plan import JobSettings, PlannedJob, plan_jobs
from memdiag.units import GIB, MIB
from tests.sweeps.test_model_sources import write_model


@pytest.fixture
def jobs(tmp_path: Path) -> list[PlannedJob]:
    """Jobs on small models, and one that fails."""
    for number in range(3):
        write_model(tmp_path / f"{number}.onnx", number)
    (tmp_path / "damaged.onnx").write_text("no model")
    settings = JobSettings(runs=1, timeout_s=60)
    models = find_sweep_models([str(tmp_path)])
    planned = plan_jobs(models, {"1.32.0": ""}, dims={}, options={}, settings=settings)
    return [PlannedJob(job=job, needed_bytes=256 * MIB) for job in planned]


def outcomes(results: Iterable[JobResult]) -> list[tuple[str, str, str]]:
    return sorted((result.key, result.status, result.sentence) for result in results)


def test_a_cluster_has_the_results_of_one_machine_after_its_workers_were_killed(
    jobs: list[PlannedJob],
) -> None:
    with LocalExecution(processes=2, memory_bytes=4 * GIB) as local:
        expected = outcomes(local.run(jobs))
    assert [status for _, status, _ in expected].count("completed") == 3
    environment = dict(os.environ)
    with DaskExecution(LOCAL_CLUSTER, processes=2, memory_bytes=4 * GIB) as cluster:
        assert cluster.machine_classes() == (machine_class(),)
        assert cluster.machines == 1
        estimates = cluster.estimate([each.job for each in jobs])
        assert [each is not None for each in estimates] == [True] * 3 + [False]
        found: list[JobResult] = []
        for result in cluster.run(jobs):
            if not found:
                workers = cluster._client.run(os.getpid)
                os.kill(next(iter(workers.values())), signal.SIGKILL)
            found.append(result)
    assert outcomes(found) == expected
    assert os.environ == environment
    assert not any(result.is_alone for result in found)


def test_workers_that_were_lost_have_no_class_and_workers_without_memdiag_are_refused() -> None:
    answers = ["b", "a", "b", ConnectionResetError("lost")]
    assert classes_of(answers, on=LOCAL_CLUSTER) == ("a", "b")
    assert classes_of([ConnectionResetError("lost")], on=LOCAL_CLUSTER) == (machine_class(),)
    with pytest.raises(UsageError, match="Install the same version of memdiag there"):
        classes_of(["a", ModuleNotFoundError("no memdiag")], on=LOCAL_CLUSTER)


def test_without_a_scheduler_a_sentence_says_how_to_start_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("memdiag.sweeps.dask_execution.CONNECT_S", 1)
    with pytest.raises(UsageError, match=r"no scheduler answers.*dask scheduler"):
        DaskExecution("dask://127.0.0.1:1", processes=1, memory_bytes=GIB)


def test_a_cluster_that_starts_workers_only_for_work_is_asked_for_one(
    jobs: list[PlannedJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    with distributed.LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=0, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        on = f"dask://{cluster.scheduler_address.removeprefix('tcp://')}"
        with DaskExecution(on, processes=1, memory_bytes=GIB) as execution:
            monkeypatch.setattr("memdiag.sweeps.dask_execution.WORKER_S", 1)
            with pytest.raises(UsageError, match=r"no worker after 1 s\. Start one with dask"):
                execution.machine_classes()
            monkeypatch.undo()
            cluster.adapt(minimum=0, maximum=1)
            assert execution.machine_classes() == (machine_class(),)
            assert [result.status for result in execution.run(jobs[:1])] == ["completed"]


def test_without_distributed_a_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"pip install 'memdiag\[dask\]'"):
        DaskExecution(LOCAL_CLUSTER, processes=1, memory_bytes=1)


def test_a_scheduler_that_goes_away_is_one_sentence(
    jobs: list[PlannedJob], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("memdiag.sweeps.dask_execution.CONNECT_S", 3)
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    with subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", "0", "--no-dashboard"],
        stderr=subprocess.PIPE,
        text=True,
    ) as scheduler:
        assert scheduler.stderr is not None
        address = ""
        for line in scheduler.stderr:
            if "Scheduler at:" in line:
                address = line.split("tcp://")[1].strip()
                break
        threading.Thread(target=scheduler.stderr.read, daemon=True).start()
        with DaskExecution(f"dask://{address}", processes=1, memory_bytes=GIB) as cluster:
            threading.Timer(0.5, scheduler.kill).start()
            with pytest.raises(MeasurementError, match="the scheduler is gone"):
                list(cluster.run(jobs))
    assert not caplog.records
