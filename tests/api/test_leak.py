"""The course of `memdiag.leak` around its child: limits, batches, progress, and Ctrl-C."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memdiag
from memdiag.errors import MeasurementError, UsageError
from memdiag.growth.model_runs import RunPlan
from memdiag.growth.moment import MemoryMoment
from memdiag.records.growth import Moment, RunSample
from memdiag.runner.job import Job
from memdiag.runner.try_inputs import InputTrial
from tests.api.small_models import save_model

INTERRUPTED_AT = 45


class FakeRuns:
    """Stands for `ModelRuns`: each run lasts 0.3 s, and run 45 is interrupted."""

    onnxruntime = "1.32.0"
    device_notes = ()

    job: Job

    def __init__(self, job: Job, plan: RunPlan, scratch: Path) -> None:
        FakeRuns.job = job
        self.model = job.model
        self.plan = plan
        self.samples: list[RunSample] = []
        self.pid = 0

    def __enter__(self) -> "FakeRuns":
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: there is no child."""

    def run(self, times: int) -> None:
        done = len(self.samples)
        if done + times >= INTERRUPTED_AT:
            raise KeyboardInterrupt
        self.samples += [
            RunSample(run=run, resident_bytes=1 << 20, anonymous_bytes=0, duration_s=0.3)
            for run in range(done + 1, done + times + 1)
        ]

    def moment(self) -> MemoryMoment:
        run = len(self.samples)
        return MemoryMoment(moment=Moment(run=run, time_s=0.3 * run, resident_bytes=1 << 20))


@pytest.fixture
def fake_runs(monkeypatch: pytest.MonkeyPatch) -> type[FakeRuns]:
    monkeypatch.setattr("memdiag.api.leak.ModelRuns", FakeRuns)
    monkeypatch.setattr("memdiag.api.leak_inputs.try_once", lambda job, feeds: InputTrial(None))
    return FakeRuns


def test_an_interrupt_leaves_the_runs_until_then(
    sample_model: Callable[..., Path], fake_runs: type[FakeRuns]
) -> None:
    progress: list[tuple[int, int]] = []
    growth = memdiag.leak(
        sample_model("tied_if"),
        runs=100,
        on_progress=lambda each: progress.append((each.runs_done, each.runs_planned)),
    )
    # In batches of a second, of which the last one is lost.
    assert progress[:3] == [(4, 100), (7, 100), (10, 100)]
    assert growth.message == "interrupted after 42 runs"
    assert growth.runs == len(growth.samples) == progress[-1][0] == 42
    assert growth.verdict == "undecided"
    assert growth.sentence.startswith("undecided: too few readings")


@pytest.mark.parametrize(("limits", "timeout_s"), [({}, 1800.0), ({"duration_s": 3600.0}, 5400.0)])
def test_the_time_limit_is_beyond_the_duration(
    sample_model: Callable[..., Path],
    fake_runs: type[FakeRuns],
    limits: dict[str, float],
    timeout_s: float,
) -> None:
    memdiag.leak(sample_model("tied_if"), **limits)  # type: ignore[arg-type]
    assert fake_runs.job.limits.timeout_s == timeout_s


@pytest.mark.parametrize(
    ("trial", "error", "sentence"),
    [
        (
            InputTrial("bad node", has_session=False),
            MeasurementError,
            "the session cannot be created",
        ),
        (InputTrial("bad size"), UsageError, "it does not run with these inputs"),
    ],
)
def test_a_model_that_does_not_run_is_refused_with_the_reason(
    sample_model: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    trial: InputTrial,
    error: type[Exception],
    sentence: str,
) -> None:
    monkeypatch.setattr("memdiag.api.leak_inputs.try_once", lambda job, feeds: trial)
    monkeypatch.setattr("memdiag.api.leak_inputs.find_inputs", lambda *model, **sizes: None)
    with pytest.raises(error, match=rf"tied_if\.onnx: {sentence} \({trial.problem}\)\."):
        memdiag.leak(sample_model("tied_if"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"dims": {"n": (5, 1)}}, r"'n': 5..1 is not a range of sizes. Give the lowest size first"),
        ({"vary": ("none", "content")}, "none cannot be combined .*. Remove none."),
        ({"vary": ("size",)}, "unknown kind of variation 'size'. Choose from content, shape, none"),
        ({"runs": 39}, "runs must be at least 40"),
        ({"duration_s": 0.0}, "duration_s must be greater than 0"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        memdiag.leak("m.onnx", **arguments)


@pytest.mark.parametrize(
    ("element_type", "arguments", "is_noted"),
    [
        ("int32", {}, True),
        ("int32", {"vary": ["none"]}, False),
        ("int32", {"inputs": {"x": np.zeros(4, np.int32)}}, False),
        ("float", {}, False),
    ],
)
@pytest.mark.usefixtures("fake_runs")
def test_contents_that_cannot_vary_are_noted(
    tmp_path: Path, element_type: str, arguments: Any, is_noted: bool
) -> None:
    text = f"any ({element_type}[4] x) => ({element_type}[4] y) {{ y = Identity(x) }}"
    growth = memdiag.leak(
        save_model(tmp_path / "model.onnx", text), runs=INTERRUPTED_AT, **arguments
    )
    noted = [note for note in growth.notes if "the same contents: memdiag does not know" in note]
    assert len(noted) == is_noted
