"""The files that options need: what is written, what is kept, and what is told of it."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest

from memdiag.errors import MeasurementError
from memdiag.runner.job import Job
from memdiag.tuning.prepared_models import PreparedModels
from memdiag.tuning.tuning_options import tuning_options
from memdiag.units import MIB
from tests.model_text import random, text_model, with_weights

SampleModel = Callable[..., Path]
BY_NAME = {one.name: one for one in tuning_options()}
SAVE = BY_NAME["save-prepacked"]


def test_a_job_without_such_options_stays_as_it_is(tmp_path: Path) -> None:
    files = PreparedModels(tmp_path)
    job = Job(model=tmp_path / "m.onnx")
    assert files.prepare(job, (BY_NAME["arena-off"],)) is job
    assert list(tmp_path.iterdir()) == []


def test_without_room_or_after_an_error_nothing_is_left(
    tmp_path: Path, sample_model: SampleModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(job: Job, path: Path) -> str:
        path.write_bytes(b"half of it")
        return "No space left on device"

    job = Job(model=sample_model("plain_mlp", 1))
    models = PreparedModels(tmp_path)
    monkeypatch.setattr("memdiag.tuning.prepared_models.save_optimized_model", failing)
    with pytest.raises(MeasurementError, match="No space left"):
        models.prepare(job, (SAVE,))
    assert list(tmp_path.iterdir()) == []
    usage = SimpleNamespace(free=MIB)  # the model needs about twice as much
    monkeypatch.setattr("memdiag.tuning.prepared_models.shutil.disk_usage", lambda _: usage)
    with pytest.raises(MeasurementError, match=r"MiB of free space .* TMPDIR"):
        models.prepare(job, (SAVE,))
    assert [*(tmp_path / "written").iterdir()] == []


def test_a_model_is_saved_once_for_the_same_settings(
    tmp_path: Path, sample_model: SampleModel
) -> None:
    files = PreparedModels(tmp_path)
    plain = Job(model=sample_model("plain_mlp", 1))
    first = files.prepare(plain, (SAVE,))
    assert first.model.stat().st_size < first.model.with_name("model.onnx.data").stat().st_size
    written = first.model.stat().st_mtime_ns
    elsewhere = BY_NAME["malloc-arenas"].added_to(plain)
    assert files.prepare(elsewhere, (SAVE,)).model.stat().st_mtime_ns == written
    assert files.saved_count == 1
    other = BY_NAME["optimization-basic"].added_to(plain)
    assert files.prepare(other, (SAVE,)).model.stat().st_mtime_ns != written
    assert files.saved_count == 2


def test_a_model_that_cannot_be_saved_is_said_to_be_so(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(text_model("g (float[3] x) => (float[3] y) { y = Odd(x) }"), path)
    with pytest.raises(MeasurementError, match=r"cannot save its optimized model \(.*Odd"):
        PreparedModels(tmp_path).prepare(Job(model=path), (SAVE,))


def old(folder: Path, ir_version: int = 3) -> Path:
    """Write a model that lists its initializers, of which the runtime folds one, as inputs."""
    text = """g (float[2, 64] x, float[64, 500] w, float[500, 64] v) => (float[2, 500] y) {
        t = Transpose <perm = [1, 0]> (v) s = Add(w, t) y = MatMul(x, s) }"""
    proto = with_weights(text, ir_version, 9, w=random((64, 500)), v=random((500, 64), 1))
    path = folder / "old.onnx"
    onnx.save(proto, path)
    return path


def test_what_an_old_model_lists_as_input_is_not_asked_for(tmp_path: Path) -> None:
    path = old(tmp_path)
    saved = PreparedModels(tmp_path).prepare(Job(model=path), (SAVE,)).model
    onnx.checker.check_model(saved)
    results = []
    for model in (path, saved):
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        assert [each.name for each in session.get_inputs()] == ["x"]
        results.append(session.run(None, {"x": random((2, 64), 2)})[0])
    np.testing.assert_array_equal(*results)


def test_what_can_be_fed_stays_an_input(tmp_path: Path) -> None:
    path = old(tmp_path, ir_version=4)
    saved = PreparedModels(tmp_path).prepare(Job(model=path), (SAVE,)).model
    session = onnxruntime.InferenceSession(saved, providers=["CPUExecutionProvider"])
    assert {each.name for each in session.get_overridable_initializers()} == {"w", "v"}
