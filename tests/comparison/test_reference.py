from collections.abc import Callable
from math import isinf
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from memdiag.comparison.reference import OutputComparison, ReferenceSession
from memdiag.errors import MeasurementError
from memdiag.runner.job import Feed, Job
from memdiag.verify.model_evaluator import InputSet

Judge = Callable[[str, str], OutputComparison]


def saved(path: Path, body: str) -> Path:
    text = f'<ir_version: 9, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) {{ {body} }}'
    onnx.save(parser.parse_model(text), path)
    return path


@pytest.fixture
def trials(tmp_path: Path) -> list[InputSet]:
    found = []
    for number in (1, 2):
        path = tmp_path / f"{number}.npy"
        np.save(path, np.full(4, number, np.float32))
        found.append(InputSet(str(number), (Feed(name="x", files=(path,)),), timed=True))
    return found


@pytest.fixture
def beside(trials: list[InputSet], tmp_path: Path) -> Judge:
    """A function (body of the first, body of the other) that returns what is found."""

    def judge(first: str, other: str) -> OutputComparison:
        jobs = [
            Job(model=saved(tmp_path / f"{name}.onnx", body), runs=None)
            for name, body in (("first", first), ("other", other))
        ]
        with ReferenceSession(jobs[0], trials, tmp_path / "outputs") as reference:
            return reference.compare(jobs[1], 1)

    return judge


def test_the_same_model_is_equal_and_about_as_fast(beside: Judge) -> None:
    found = beside("y = Abs(x)", "y = Abs(x)")
    assert found.largest is not None
    assert found.largest.relative == 0
    assert found.interleaved is not None
    assert found.interleaved.ratio.pairs >= 8


@pytest.mark.usefixtures("equal_latency")
def test_the_largest_difference_of_all_inputs_is_told(beside: Judge) -> None:
    found = beside("y = Abs(x)", "y = Sqrt(x)")
    assert found.largest is not None
    # Equal at 1; at 2 the root of 2 instead of 2.
    assert found.largest.relative == pytest.approx(1 - 2**-0.5, rel=1e-5)


@pytest.mark.usefixtures("equal_latency")
def test_values_that_are_no_numbers_are_as_different_as_can_be(beside: Judge) -> None:
    found = beside("y = Abs(x)", "m = Neg(x) y = Sqrt(m)")
    assert found.largest is not None
    assert isinf(found.largest.relative)
    assert found.largest.reason


@pytest.mark.usefixtures("equal_latency")
def test_random_outputs_are_known_and_not_compared(trials: list[InputSet], tmp_path: Path) -> None:
    job = Job(model=saved(tmp_path / "m.onnx", "y = RandomNormalLike(x)"), runs=None)
    with ReferenceSession(job, trials, tmp_path / "outputs") as reference:
        assert reference.unstable == {"y"}
        assert reference.compare(job, 0).largest is None


def test_what_does_not_run_is_an_error(trials: list[InputSet], tmp_path: Path) -> None:
    good = Job(model=saved(tmp_path / "good.onnx", "y = Abs(x)"), runs=None)
    bad = Job(model=saved(tmp_path / "bad.onnx", "y = Odd(x)"), runs=None)
    with pytest.raises(MeasurementError):
        ReferenceSession(bad, trials, tmp_path / "outputs")
    with (
        ReferenceSession(good, trials, tmp_path / "outputs") as reference,
        pytest.raises(MeasurementError),
    ):
        reference.compare(bad, 0)
