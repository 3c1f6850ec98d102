"""Trying inputs in a child: the first that runs, all that run, and children that end."""

from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from memdiag.runner import try_inputs as module
from memdiag.runner.job import Feed, Job
from memdiag.runner.try_inputs import InputTrial, inputs_that_run, try_inputs, try_once

MODEL = """<ir_version: 9, opset_import: ["" : 17]> g (float[n] x) => (float[k, 3] y) {
    s = Constant <value_ints = [-1, 3]> ()
    y = Reshape(x, s)
}"""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    path = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(MODEL), path)
    return Job(model=path, runs=None)


def feeds(folder: Path, *sizes: int) -> list[list[Feed]]:
    candidates = []
    for size in sizes:
        path = folder / f"{size}.npy"
        np.save(path, np.zeros(size, np.float32))
        candidates.append([Feed(name="x", files=(path,))])
    return candidates


def test_the_first_that_runs_and_all_that_run(job: Job, tmp_path: Path) -> None:
    candidates = feeds(tmp_path, 4, 3, 5, 6)
    assert try_inputs(job, candidates) == 1
    assert inputs_that_run(job, candidates) == [1, 3]
    assert inputs_that_run(job, candidates, needs_first=True) == []
    assert inputs_that_run(job, candidates[1:], needs_first=True) == [0, 2]
    assert inputs_that_run(job, candidates[:1]) == []
    assert inputs_that_run(job, []) == []


def test_a_candidate_that_ends_the_child_does_not_hide_the_next(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates = feeds(tmp_path, 3, 6, 9)
    input_trials = module._input_trials

    def ending(job: Job, left: Sequence[Sequence[Feed]]) -> Generator[InputTrial]:
        trials = list(input_trials(job, left))
        names = [candidate[0].files[0].name for candidate in left]
        yield from trials[: names.index("6.npy")] if "6.npy" in names else trials

    monkeypatch.setattr(module, "_input_trials", ending)
    assert inputs_that_run(job, candidates) == [0, 2]
    assert inputs_that_run(job, candidates[1:], needs_first=True) == []


def test_a_trial_has_the_reason_of_onnxruntime(job: Job, tmp_path: Path) -> None:
    bad, good = feeds(tmp_path, 4, 3)
    assert try_once(job, good) == InputTrial(None)
    trial = try_once(job, bad)
    assert trial.has_session
    assert "input tensor cannot be reshaped" in str(trial.problem)


def test_a_model_without_a_session_runs_with_nothing(tmp_path: Path) -> None:
    path = tmp_path / "unknown.onnx"
    onnx.save(parser.parse_model(MODEL.replace("Reshape", "Unknown")), path)
    job = Job(model=path, runs=None)
    candidates = feeds(tmp_path, 3, 6)
    trial = try_once(job, candidates[0])
    assert not trial.has_session
    assert "Unknown" in str(trial.problem)
    assert try_inputs(job, candidates) is None
    assert inputs_that_run(job, candidates) == []
