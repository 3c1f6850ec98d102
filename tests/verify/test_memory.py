"""Memory measured in fresh processes: what ends early gives no figures."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from memdiag.errors import MeasurementError
from memdiag.records.profile import Outcome
from memdiag.runner.job import Job
from memdiag.runner.measured_child import MeasuredChild, Measurement
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
    run = MeasuredChild.run

    def interrupted(self: MeasuredChild) -> Measurement:
        return replace(run(self), interrupted=True)

    assert memory.measure_once(job).measurement.outcome.status == "completed"
    monkeypatch.setattr(MeasuredChild, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        memory.measure_interleaved([job], 3)


@pytest.mark.parametrize(("kills", "completes"), [(0, True), (1, True), (2, False)])
def test_a_process_that_was_killed_once_is_started_again(
    kills: int, completes: bool, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "killed by the system (SIGKILL; …)"
    killed = Outcome(status="killed", phase="start", message=reason, cause="sigkill")
    pending = [killed] * kills
    run = MeasuredChild.run

    def measured(self: MeasuredChild) -> Measurement:
        seen = run(self)
        return replace(seen, outcome=pending.pop()) if pending else seen

    monkeypatch.setattr(MeasuredChild, "run", measured)
    if completes:
        assert memory.measure_once(job).measurement.outcome.status == "completed"
    else:
        with pytest.raises(MeasurementError, match=r"SIGKILL; …\)\. Free memory, and run"):
            memory.measure_once(job)


def test_a_model_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"missing\.onnx: failed in parse: .*Check with"):
        memory.measure_once(Job(model=tmp_path / "missing.onnx", runs=None))


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no tmpfs here")
def test_weights_on_a_tmpfs_count_as_mapped() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
        g (float[1] x) => (float[2097152] y) { y = Add(w, x) }"""
    model = parser.parse_model(text)
    weight = numpy_helper.from_array(np.ones(2097152, np.float32), "w")
    model.graph.initializer.append(weight)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder, "m.onnx")
        onnx.save(model, path, save_as_external_data=True, location="m.onnx.data")
        seen = memory.MeasuredProcess(MeasuredChild(Job(model=path, runs=1)).run())
        figures = memory.median_figures([seen], disk_bytes=1)
    assert figures.file_and_shared_bytes > 7 << 20
