import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, parser

from memdiag.errors import MeasurementError
from memdiag.runner.job import Deadline, Feed, Job, TimeLimitReached
from memdiag.runner.session_server import SessionServer
from tests.runner.conftest import running_scripts


def save(path: Path, body: str) -> Path:
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {body}')
    helper.set_model_props(model, {"author": "a test"})
    onnx.save(model, path)
    return path


@pytest.fixture
def feed(tmp_path: Path) -> Callable[..., Feed]:
    def make(name: str, array: np.ndarray) -> Feed:
        path = tmp_path / f"{name}-{array.size}.npy"
        np.save(path, array)
        return Feed(name=name, files=(path,))

    return make


def test_a_session_runs_when_asked(tmp_path: Path, feed: Callable[..., Feed]) -> None:
    model = save(tmp_path / "m.onnx", "g (float[n] x) => (float[n] y) { y = Add(x, x) }")
    one, two = feed("x", np.ones(3, np.float32)), feed("x", np.full(5, 2, np.float32))
    with SessionServer(Job(model=model), [[one], [two]]) as server:
        assert server.signature["inputs"] == [["x", "tensor(float)", ["n"]]]
        assert server.signature["metadata"] == {"author": "a test"}
        assert len(server.run(0, 4)) == 4
        assert min(server.run(1, 2)) > 0
        saved = server.save(1, tmp_path / "out")
        (file,) = saved["y"]
        assert np.load(file).tolist() == [4.0] * 5
        assert np.load(server.save(0, tmp_path / "again")["y"][0]).tolist() == [2.0] * 3


def test_strings_and_sequences_are_saved(tmp_path: Path, feed: Callable[..., Feed]) -> None:
    model = save(
        tmp_path / "m.onnx",
        """g (float[4] x, string[2] s) => (seq(float[m]) parts, string[2] t) {
            n = Constant <value_ints = [2, 2]> ()
            parts = SplitToSequence(x, n)
            t = Identity(s)
        }""",
    )
    feeds = [feed("x", np.arange(4, dtype=np.float32)), feed("s", np.array(["ab", "c"]))]
    with SessionServer(Job(model=model), [feeds]) as server:
        saved = server.save(0, tmp_path / "out")
    assert [np.load(path).tolist() for path in saved["parts"]] == [[0, 1], [2, 3]]
    assert np.load(saved["t"][0]).tolist() == ["ab", "c"]


def test_a_model_that_is_refused_is_one_sentence(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", "g (float[n] x) => (float[n] y) { y = Nonsense(x) }")
    with pytest.raises(MeasurementError, match=r"onnxruntime refused it: .*Nonsense"):
        SessionServer(Job(model=model), [])


def test_a_run_that_fails_is_told(tmp_path: Path, feed: Callable[..., Feed]) -> None:
    model = save(tmp_path / "m.onnx", "g (float[3] x) => (float[3] y) { y = Abs(x) }")
    feeds = [feed("x", np.ones(4, np.float32))]
    with (
        SessionServer(Job(model=model), [feeds]) as server,
        pytest.raises(MeasurementError, match="invalid dimensions"),
    ):
        server.run(0)


def test_a_child_that_is_killed_is_told(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", "g (float[3] x) => (float[3] y) { y = Abs(x) }")
    with SessionServer(Job(model=model), [[]]) as server:
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(MeasurementError, match="ended without an error message"):
            server.run(0)


def test_a_session_that_hangs_is_ended_at_the_deadline(fake_job: Callable[..., Job]) -> None:
    job = fake_job({"create": [{"sleep": 600}]}, deadline=Deadline(time.monotonic() + 1))
    with pytest.raises(TimeLimitReached):
        SessionServer(job, [])
    assert running_scripts() == []
