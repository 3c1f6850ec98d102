"""Several processes, sessions and callers of a model, as the kernel counts them."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from memdiag.api.workers import wanted_workers
from memdiag.attribution.search_target import search_target
from memdiag.deploy.workers import Wanted, WorkerTrials
from memdiag.errors import MeasurementError, UsageError
from memdiag.model.model_file import open_model
from memdiag.records.workers import ForkAfter, Workers
from memdiag.runner.job import Job, Limits, SessionConfig
from memdiag.tuning.options import tuning_options
from memdiag.tuning.prepared_models import PreparedModels
from memdiag.units import MIB

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")

SampleModel = Callable[..., Path]
MODEL_MIB = 16
PINNED = {"MALLOC_MMAP_THRESHOLD_": "131072"}
"""malloc returns the weights that were packed, so that each process has one copy of them."""


def measured(model: Path, scratch: Path, wanted: Wanted, **session: object) -> Workers:
    job = Job(model=model, runs=None, session=SessionConfig(environment=PINNED, **session))  # type: ignore[arg-type] # of the tests
    models = PreparedModels(scratch)
    save = next(each for each in tuning_options() if each.name == "save-prepacked")
    with open_model(model) as file:
        trials = WorkerTrials(job, [search_target(file)], lambda: models.prepare(job, (save,)))
        return trials.measure(wanted)


def added(found: Workers) -> int:
    """Return what all owners have together of the proportional sets."""
    return sum(owner.proportional_bytes for owner in found.owners)


def test_two_processes_have_two_copies_and_share_one_if_it_is_saved(
    sample_model: SampleModel, tmp_path: Path
) -> None:
    found = measured(sample_model("plain_mlp", MODEL_MIB), tmp_path, Wanted(processes=2))
    one, both = found.one.together, found.asked.together
    assert len(found.asked.each) == 2
    assert both.pss_bytes == sum(each.pss_bytes for each in found.asked.each)
    # Every weight is private in both processes; libraries are shared.
    assert both.uss_bytes < both.pss_bytes < both.rss_bytes
    assert found.one_more_bytes == both.pss_bytes - one.pss_bytes
    # Processes of other tests share the libraries as well, now more and now fewer of them.
    assert MODEL_MIB * MIB < found.one_more_bytes < 1.1 * one.pss_bytes
    private = sum(weight.private_bytes for weight in found.weights)
    assert private == pytest.approx(2 * MODEL_MIB * MIB, rel=0.05)
    assert all(weight.copies == 2 for weight in found.weights if weight.bytes > MIB)
    # What the owners have adds up to what the kernel counts.
    assert added(found) == pytest.approx(found.proportional_bytes, rel=0.01)
    saved, callers = found.alternatives
    assert (saved.processes, saved.shares_prepacked) == (2, True)
    assert both.pss_bytes - saved.together.pss_bytes > 0.8 * MODEL_MIB * MIB
    assert (callers.processes, callers.callers) == (1, 2)
    assert callers.together.pss_bytes < 1.2 * one.pss_bytes
    assert found.notes == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fork_after", "copies"),
    [pytest.param("import", 2, id="after the import"), pytest.param("load", 0, id="after loading")],
)
def test_forks_share_what_was_there_before(
    sample_model: SampleModel, tmp_path: Path, fork_after: ForkAfter, copies: int
) -> None:
    wanted = Wanted(processes=2, fork_after=fork_after)
    found = measured(sample_model("plain_mlp", MODEL_MIB), tmp_path, wanted)
    private = sum(weight.private_bytes for weight in found.weights)
    assert private == pytest.approx(copies * MODEL_MIB * MIB, abs=2 * MIB)
    forks = sum(each.pss_bytes for each in found.asked.each)
    assert added(found) == pytest.approx(found.proportional_bytes, rel=0.01)
    assert found.asked.together.pss_bytes > forks  # the process that was forked from
    # One more fork costs its own memory, and none of what is shared.
    assert (found.one_more_bytes > MODEL_MIB * MIB) == bool(copies)


@pytest.mark.slow
def test_sessions_take_as_much_each_and_callers_nothing_of_the_weights(
    sample_model: SampleModel, tmp_path: Path
) -> None:
    model = sample_model("plain_mlp", MODEL_MIB)
    sessions = measured(model, tmp_path, Wanted(sessions=3))
    assert sessions.one_more_bytes > 0.9 * MODEL_MIB * MIB
    assert all(weight.copies >= 3 for weight in sessions.weights if weight.bytes > 3 * MIB)
    callers = measured(model, tmp_path, Wanted(callers=3))
    assert callers.one_more_bytes < MODEL_MIB * MIB / 4


def test_a_worker_that_fails_or_takes_too_long_leaves_no_process(
    sample_model: SampleModel, tmp_path: Path
) -> None:
    before = {each.pid for each in psutil.Process().children(recursive=True)}
    job = Job(model=tmp_path / "missing.onnx", runs=None)
    for wanted in (Wanted(processes=2), Wanted(processes=2, fork_after="import")):
        with pytest.raises(MeasurementError, match=r"a worker failed: .*missing\.onnx"):
            WorkerTrials(job, [], lambda: job).measure(wanted)
    slow = replace(job, model=sample_model("plain_mlp"), limits=Limits(timeout_s=0.01))
    with pytest.raises(MeasurementError, match="did not finish in time"):
        WorkerTrials(slow, [], lambda: slow).measure(Wanted(processes=2))
    after = {each.pid for each in psutil.Process().children(recursive=True)}
    assert after <= before
    assert os.getpid() not in after


def test_more_than_the_machine_has_is_refused(
    sample_model: SampleModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("memdiag.deploy.workers.available_bytes", lambda: 64 * MIB)
    with pytest.raises(UsageError, match=r"the workers would take about .* Ask for fewer"):
        measured(sample_model("plain_mlp", MODEL_MIB), tmp_path, Wanted(processes=2))


@pytest.mark.parametrize(
    ("numbers", "fork_after", "execution_mode", "message"),
    [
        ((0, 1, 1), None, None, "processes must be at least 1"),
        ((1, 0, 1), None, None, "sessions must be at least 1"),
        ((1, 1, 0), None, None, "concurrency must be at least 1"),
        ((1, 1, 1), "import", None, "needs several processes"),
        ((2, 1, 1), "load", "parallel", "Leave that option out"),
    ],
)
def test_what_cannot_be_arranged_is_refused(
    numbers: tuple[int, int, int],
    fork_after: ForkAfter | None,
    execution_mode: str | None,
    message: str,
) -> None:
    processes, sessions, concurrency = numbers
    with pytest.raises(UsageError, match=message):
        wanted_workers(
            processes=processes,
            sessions=sessions,
            concurrency=concurrency,
            fork_after=fork_after,
            execution_mode=execution_mode,
        )


def test_one_of_each_is_the_profile_itself() -> None:
    single = wanted_workers(
        processes=1, sessions=1, concurrency=1, fork_after=None, execution_mode=None
    )
    assert single is None
    forked = wanted_workers(
        processes=2, sessions=1, concurrency=1, fork_after="load", execution_mode="sequential"
    )
    assert forked == Wanted(processes=2, fork_after="load")
