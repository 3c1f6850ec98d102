"""Memory measured in fresh processes: what ends early gives no figures."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import parser

from memdiag.errors import MeasurementError
from memdiag.runner.job import Job
from memdiag.runner.run import Measurement, measure
from memdiag.verify import memory


@pytest.fixture
def job(tmp_path: Path) -> Job:
    path = tmp_path / "m.onnx"
    text = '<ir_version: 9, opset_import: ["" : 17]> g (float[1] x) => (float[1] y) { y = Abs(x) }'
    onnx.save(parser.parse_model(text), path)
    return Job(model=path, runs=None)


def test_ctrl_c_is_not_taken_for_a_model_that_fails(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(job: Job) -> Measurement:
        return replace(measure(job), interrupted=True)

    assert memory.measure_once(job).outcome.status == "completed"
    monkeypatch.setattr(memory, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        memory.measure_interleaved([job], 3)


def test_a_model_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"missing\.onnx: failed in parse"):
        memory.measure_once(Job(model=tmp_path / "missing.onnx", runs=None))
