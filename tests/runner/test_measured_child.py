import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from memdiag.errors import MeasurementError
from memdiag.records.profile import Phase, PhaseName
from memdiag.runner.job import Job
from memdiag.runner.measured_child import (
    AtBaseline,
    AtFailure,
    AtPhaseEnd,
    AtSteady,
    ChildPause,
    ChildProgress,
    MeasuredChild,
    Measurement,
)
from memdiag.runner.observer import PsutilObserver
from memdiag.runner.phase_tracker import MAX_NEIGHBOUR_S
from tests.runner.conftest import is_alive, running_scripts
from tests.waiting import wait_until

MB = 1_000_000
SLACK = 3 * MB  # what the interpreter itself may allocate, and the kernel's lazy counters

MakeJob = Callable[..., Job]


SESSION: list[dict[str, object]] = [
    {"log": "Dynamic block base set to 0"},
    {"keep": 20},
    {"sleep": 0.02},
    {"log": "Initializing session."},
    {"sleep": 0.01},
    {"log": "Applying graph transformer ConstantFolding on step 1."},
    {"spike": 60},
    {"keep": 10},
    {"sleep": 0.01},
    {"log": "GraphTransformer ConstantFolding modified: 1 with status: OK"},
    {"sleep": 0.01},
    {"log": "SaveMLValueNameIndexMapping"},
    {"sleep": 0.01},
    {"log": "Saving initialized tensors."},
    {"log": "Done saving initialized tensors"},
    {"keep": 30},
    {"sleep": 0.01},
    {"log": "Session successfully initialized."},
]


def phase(measured: Measurement, name: str) -> Phase:
    (found,) = [phase for phase in measured.phases if phase.name == name]
    return found


def near(value: int, megabytes: float) -> bool:
    return abs(value - megabytes * MB) < SLACK


def quietly(job: Job) -> Measurement:
    """Measure until each boundary was seen at once, as it is unless another process has our CPU."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        measured = MeasuredChild(job).run()
        if (measured.sampling.boundary_lag_s or 0.0) < MAX_NEIGHBOUR_S:
            return measured
        time.sleep(0.5)  # who has our CPU may have it for some seconds
    raise AssertionError("the machine was never quiet enough for exact boundaries")


@pytest.mark.measures
def test_each_phase_has_the_memory_that_it_took(fake_job: MakeJob) -> None:
    measured = quietly(fake_job({"create": SESSION, "run": [{"spike": 15}]}))
    assert measured.outcome.status == "completed"
    assert measured.baseline is not None
    baseline = measured.baseline.rss_bytes
    assert near(phase(measured, "parse").net_rss_bytes, 20)
    fold = phase(measured, "constant_fold")
    assert near(fold.net_rss_bytes, 10)
    assert near(fold.peak_rss_bytes - baseline, 80)
    assert near(phase(measured, "initialize").peak_rss_bytes - baseline, 30)
    assert near(phase(measured, "prepack").net_rss_bytes, 30)
    assert near(phase(measured, "first_run").peak_rss_bytes - baseline, 75)
    assert near(phase(measured, "steady").peak_rss_bytes - baseline, 75)
    assert measured.steady is not None
    assert near(measured.steady.rss_bytes - baseline, 60)
    assert [found.name for found in measured.phases if found.peak_kind != "exact"] == []
    assert len(measured.runs) == 3


@pytest.mark.measures
def test_samples_come_every_millisecond_and_end_with_the_last_run(fake_job: MakeJob) -> None:
    measured = MeasuredChild(fake_job({"create": [{"sleep": 0.3}], "run": []})).run()
    assert measured.sampling.method == "proc"
    assert measured.sampling.period_s <= 0.001
    assert measured.samples.t_s[-1] <= measured.spans[-1].end_s


def test_each_run_has_its_own_peak_and_its_time(fake_job: MakeJob) -> None:
    measured = MeasuredChild(fake_job({"run": [{"keep": 8}, {"spike": 15}]})).run()
    first, _, last = measured.runs
    assert near(last.rss_bytes - first.rss_bytes, 16)  # growth from run to run
    ends = [run.end_s for run in measured.runs if run.end_s is not None]
    assert len(ends) == 3
    assert ends == sorted(ends)
    steady = measured.spans[-1]
    assert steady.start_s < ends[0]
    assert ends[-1] <= steady.end_s
    peaks = [run.peak_rss_bytes or 0 for run in measured.runs]
    for run, peak in zip(measured.runs, peaks, strict=True):
        assert near(peak - run.rss_bytes, 15)
    assert steady.peak_rss_bytes >= max(peaks)
    assert steady.peak_kind == "exact"


def test_no_run_stops_after_session_creation(fake_job: MakeJob) -> None:
    measured = MeasuredChild(
        fake_job({"create": SESSION, "run": [{"raise": "it ran"}]}, runs=None)
    ).run()
    assert measured.outcome.status == "completed"
    assert measured.outcome.phase == "prepack"
    assert measured.steady is None
    assert {"first_run", "steady"}.isdisjoint(found.name for found in measured.phases)


def test_an_error_of_the_runtime_is_an_outcome_with_its_phase(fake_job: MakeJob) -> None:
    script = [*SESSION[:6], {"raise": "node X\n failed"}]
    measured = MeasuredChild(fake_job({"create": script})).run()
    assert measured.outcome.status == "failed"
    assert measured.outcome.phase == "constant_fold"
    assert measured.outcome.message == "node X failed"
    assert near(phase(measured, "parse").net_rss_bytes, 20)


@pytest.mark.parametrize(
    ("last", "ending", "words"),
    [
        ({"signal": "SIGKILL"}, ("killed", "sigkill"), "killed by the system"),
        ({"signal": "SIGSEGV"}, ("killed", "crash"), "was ended by SIGSEGV"),
        ({"exit": 7}, ("failed", ""), "exit code 7: terminate called"),
    ],
)
def test_a_child_that_dies_leaves_the_profile_up_to_then(
    fake_job: MakeJob, last: dict[str, object], ending: tuple[str, str], words: str
) -> None:
    script = [*SESSION[:7], {"sleep": 0.02}, {"say": "terminate called"}, last]
    measured = MeasuredChild(fake_job({"create": script})).run()
    assert (measured.outcome.status, measured.outcome.cause) == ending
    assert measured.outcome.phase == "constant_fold"
    assert words in measured.outcome.message
    fold = phase(measured, "constant_fold")
    assert fold.peak_kind == "sampled"  # the mark went with the process
    assert near(phase(measured, "parse").net_rss_bytes, 20)


def test_a_child_that_hangs_is_ended_and_leaves_no_process(fake_job: MakeJob) -> None:
    script = [*SESSION[:4], {"sleep": 600}]
    measured = MeasuredChild(fake_job({"create": script}, timeout_s=5.0)).run()
    assert measured.outcome.status == "timeout"
    assert measured.outcome.phase == "optimize"
    assert running_scripts() == []


def test_a_child_above_its_limit_is_ended(fake_job: MakeJob) -> None:
    script = [*SESSION[:4], {"keep": 300}, {"sleep": 600}]
    measured = MeasuredChild(fake_job({"create": script}, memory_limit_bytes=200 * MB)).run()
    assert measured.outcome.status == "limit"
    assert measured.outcome.phase == "optimize"
    assert "first reading above the limit of 191 MiB (200 MB), " in measured.outcome.message
    assert measured.outcome.message.endswith("The peak of a whole run is not known")


def test_a_spike_above_the_limit_counts_even_if_no_sample_saw_it(fake_job: MakeJob) -> None:
    job = fake_job({"create": SESSION}, memory_limit_bytes=80 * MB)
    measured = MeasuredChild(job).run()
    assert measured.outcome.status == "limit"
    assert measured.outcome.phase in ("constant_fold", "optimize")


@pytest.mark.parametrize(
    ("script", "options", "message"),
    [
        (
            {"import": [{"raise": "no such library"}]},
            {},
            "cannot import onnxruntime (no such library)",
        ),
        ({}, {"python": Path("/bin/false")}, "the process ended with exit code 1"),
    ],
)
def test_a_child_without_the_runtime_fails_at_its_start(
    fake_job: MakeJob, script: dict[str, object], options: dict[str, Path], message: str
) -> None:
    outcome = MeasuredChild(fake_job(script, **options)).run().outcome
    assert (outcome.status, outcome.phase) == ("failed", "start")
    assert message in outcome.message


def test_an_interpreter_that_is_none_is_a_measurement_error(fake_job: MakeJob) -> None:
    job = fake_job({}, python=Path("/no/such/python"))
    for entering in ((), ("/bin/sh", "-c", 'exec "$@"', "sh")):
        with pytest.raises(MeasurementError, match="cannot be started as a Python interpreter"):
            MeasuredChild(replace(job, entering=entering)).run()


@pytest.mark.usefixtures("heeding_ctrl_c")
def test_ctrl_c_ends_the_child_and_keeps_what_was_seen(fake_job: MakeJob) -> None:
    job = fake_job({"create": [*SESSION[:4], {"sleep": 600}]})

    def interrupt(progress: ChildProgress) -> None:
        if progress.phase == "optimize":
            os.kill(os.getpid(), signal.SIGINT)

    measured = MeasuredChild(job, on_progress=interrupt).run()
    assert measured.interrupted
    assert (measured.outcome.status, measured.outcome.cause) == ("killed", "interrupt")
    assert measured.outcome.phase == "optimize"
    assert near(phase(measured, "parse").net_rss_bytes, 20)
    assert running_scripts() == []


def test_the_child_dies_with_its_parent(fake_job: MakeJob) -> None:
    job = fake_job({"create": [{"sleep": 600}]})
    code = f"""
import pathlib
from memdiag.runner.job import Job, SessionConfig
from memdiag.runner.measured_child import MeasuredChild
session = SessionConfig(environment={dict(job.session.environment)!r})
MeasuredChild(Job(model=pathlib.Path("m"), session=session)).run()
"""
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        wait_until(lambda: running_scripts(parent.pid))
        (child,) = running_scripts(parent.pid)
        parent.kill()
    wait_until(lambda: not is_alive(child.pid))


def test_progress_tells_the_phases_in_order_and_warnings_are_kept(fake_job: MakeJob) -> None:
    seen: list[ChildProgress] = []
    script = {"create": [*SESSION, {"warn": "an odd weight"}]}
    measured = MeasuredChild(
        fake_job(script, memory_limit_bytes=2000 * MB), on_progress=seen.append
    ).run()
    assert measured.outcome.status == "completed"  # below its limit
    assert measured.warnings == ("an odd weight",)
    phases = list(dict.fromkeys(progress.phase for progress in seen))
    assert phases[-2:] == ["first_run", "steady"]
    assert "parse" in phases
    assert all(progress.rss_bytes > 0 for progress in seen[1:])


def test_without_proc_figures_are_sampled_and_said_to_be(fake_job: MakeJob) -> None:
    steps = [{"log": "Initializing session."}, {"sleep": 0.05}, {"keep": 30}, {"sleep": 0.1}]
    measured = MeasuredChild(fake_job({"create": steps}), observer=PsutilObserver).run()
    assert measured.sampling.method == "psutil"
    assert {found.peak_kind for found in measured.phases} == {"sampled"}
    optimize = phase(measured, "optimize")
    assert optimize.end.anonymous_bytes is None
    assert near(optimize.net_rss_bytes, 30)


def test_the_moments_come_in_order_with_the_facts_of_the_log(fake_job: MakeJob) -> None:
    log_lines = [
        "Initializing session.",
        "Creating BFCArena for Cpu with following configs: none",
        "GraphTransformer ConstantFolding modified: 1 with status: OK",
        "Removing initializer 'w'. It is no longer used by any node.",
        "Done saving initialized tensors",
        "Reserving memory in BFCArena for Cpu size: 4096",
        "Session successfully initialized.",
    ]
    job = fake_job({"create": [{"log": line} for line in log_lines]})
    pauses: list[ChildPause] = []
    measured = MeasuredChild(job, pauses.append).run()
    assert measured.outcome.status == "completed"
    first, last = pauses
    assert isinstance(first, AtBaseline)
    assert isinstance(last, AtSteady)
    assert last.log.changed == {"ConstantFolding"}
    assert last.log.removed == {"w": "ConstantFolding"}
    assert last.log.removed_all
    assert last.log.reserved == {4096: 1}


def test_the_time_of_an_inspection_belongs_to_no_phase(fake_job: MakeJob) -> None:
    phases = ["parse", "optimize", "constant_fold", "initialize", "prepack", "first_run"]
    job = fake_job({"create": SESSION, "run": []})
    for _ in range(3):  # a busy machine may read the lines of two ends at once
        ended: list[PhaseName] = []

        def on_pause(pause: ChildPause, ended: list[PhaseName] = ended) -> None:
            time.sleep(0.5)
            if isinstance(pause, AtPhaseEnd):
                assert psutil.Process(pause.pid).status() == psutil.STATUS_STOPPED
                ended.append(pause.phase)

        measured = MeasuredChild(job, on_pause, phase_ends=True).run()
        assert measured.outcome.status == "completed"
        assert measured.spans[-1].end_s < 0.5 * len(ended)
        if list(dict.fromkeys(ended)) == phases:
            return
    assert list(dict.fromkeys(ended)) == phases


def test_an_interrupt_at_a_pause_keeps_what_was_measured(fake_job: MakeJob) -> None:
    def on_pause(pause: ChildPause) -> None:
        if isinstance(pause, AtPhaseEnd) and pause.phase == "prepack":
            os.kill(os.getpid(), signal.SIGINT)

    measured = MeasuredChild(fake_job({"create": SESSION}), on_pause, phase_ends=True).run()
    assert measured.interrupted
    assert measured.outcome.status == "killed"
    assert "prepack" in [phase.name for phase in measured.phases]
    assert running_scripts() == []


@pytest.mark.parametrize(
    ("failing", "records_device", "expected"),
    [("run", True, 1), ("create", True, 0), ("run", False, 0)],
)
def test_a_run_that_fails_on_a_device_is_a_pause(
    failing: str, records_device: bool, expected: int, fake_job: MakeJob
) -> None:
    pauses: list[AtFailure] = []

    def on_pause(pause: ChildPause) -> None:
        if isinstance(pause, AtFailure):
            assert psutil.pid_exists(pause.pid)
            pauses.append(pause)

    script = {"providers": ["CUDAExecutionProvider"], failing: [{"raise": "too large"}]}
    job = fake_job(script, records_device=records_device)
    measured = MeasuredChild(job, on_pause).run()
    assert measured.outcome.message == "too large"
    assert len(pauses) == expected
    assert running_scripts() == []


def test_a_measurement_until_now_does_not_disturb_the_rest(fake_job: MakeJob) -> None:
    early: list[Measurement] = []
    child = MeasuredChild(fake_job({"create": [*SESSION, {"sleep": 0.3}]}))

    def save(now_s: float) -> None:
        if not early and child.measurement_until_now("why").phases[-1].name == "prepack":
            early.append(child.measurement_until_now("why"))

    measured = child.run(on_sample=save)
    assert measured.outcome.status == "completed"
    (until_then,) = early
    assert (until_then.outcome.status, until_then.outcome.message) == ("killed", "why")
    assert until_then.outcome.phase == "prepack"
    count = len(until_then.spans)
    assert until_then.spans[: count - 1] == measured.spans[: count - 1]
    assert until_then.spans[-1].end_s <= measured.spans[count - 1].end_s
    assert measured.phases[-1].name == "steady"
