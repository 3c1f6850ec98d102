"""Several sessions in one child, with weights of their own and with shared ones."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from memdiag.runner.job import Feed, Job, SessionConfig
from memdiag.runner.run import Measurement, measure
from memdiag.runner.session_server import SessionServer
from memdiag.tuning.options import tuning_options
from memdiag.tuning.prepared_models import PreparedModels
from memdiag.units import MIB

SampleModel = Callable[..., Path]
BY_NAME = {one.name: one for one in tuning_options()}
WEIGHTS = 16_000_000


@pytest.fixture
def job(sample_model: SampleModel, tmp_path: Path) -> Job:
    """A model of 16 MB, its weights outside and nothing packed."""
    model = sample_model("plain_mlp", 16, external=True)
    width = onnx.load(model, load_external_data=False).graph.initializer[0].dims[0]
    file = tmp_path / "x.npy"
    np.save(file, np.ones((1, width), np.float32))
    feeds = (Feed(name="x", files=(file,)),)
    off = {"session.disable_prepacking": "1"}
    return Job(model=model, feeds=feeds, runs=2, session=SessionConfig(options=off))


def taken(job: Job) -> tuple[int, Measurement]:
    """Return the resident bytes above the baseline in the end, and all that was seen."""
    seen = measure(job)
    assert seen.outcome.status == "completed", seen.outcome.message
    assert seen.steady is not None
    assert seen.baseline is not None
    return seen.steady.rss_bytes - seen.baseline.rss_bytes, seen


def test_sessions_with_weights_of_their_own_take_them_each(job: Job) -> None:
    one, _ = taken(job)
    three, seen = taken(replace(job, session=replace(job.session, sessions=3)))
    assert 2 * WEIGHTS - 4 * MIB < three - one < 2 * WEIGHTS + 8 * MIB
    # The others come after the first one's phases, which are told as if it were alone.
    assert len([phase for phase in seen.phases if phase.name == "parse"]) == 1
    assert len(seen.runs) == 2


def test_sessions_that_share_take_the_weights_once(job: Job, tmp_path: Path) -> None:
    shared = PreparedModels(tmp_path).prepare(job, (BY_NAME["share-weights"],))
    one, _ = taken(shared)
    three, _ = taken(replace(shared, session=replace(shared.session, sessions=3)))
    assert three - one < WEIGHTS / 4


def test_shared_weights_give_the_same_outputs(job: Job, tmp_path: Path) -> None:
    shared = PreparedModels(tmp_path).prepare(job, (BY_NAME["share-weights"],))
    saved = []
    for index, each in enumerate((job, shared)):
        with SessionServer(replace(each, runs=None), [job.feeds]) as server:
            (files,) = server.save(0, tmp_path / str(index)).values()
            saved.append(np.load(files[0]))
    np.testing.assert_array_equal(*saved)


def test_a_file_of_shared_weights_that_is_gone_is_named(job: Job, tmp_path: Path) -> None:
    shared = PreparedModels(tmp_path).prepare(job, (BY_NAME["share-weights"],))
    wrong = tuple(
        replace(weight, path=tmp_path / "gone.data") for weight in shared.session.shared_weights
    )
    seen = measure(replace(shared, session=replace(shared.session, shared_weights=wrong)))
    assert seen.outcome.status == "failed"
    assert "gone.data" in seen.outcome.message
