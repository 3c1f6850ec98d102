"""Texts as inputs of repeated runs: the leak of old releases."""

from pathlib import Path

import onnx
import pytest

import memdiag
from benchmarks.environments import ProvisionError
from benchmarks.runtimes import runtime
from memdiag.api.leak import LeakConfig, observe_model
from memdiag.api.leak_program import leak_program
from memdiag.runner.job import InputConfig, SessionConfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MODEL = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]>
m (string[n] x) => (int64[n] y) {
    y = ai.onnx.ml.LabelEncoder <keys_strings = ["a"], values_int64s = [1]> (x)
}"""

PROGRAM = """
import sys, time, uuid, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
make = {"list": list, "objects": lambda texts: numpy.array(texts, object), "array": numpy.array}
for _ in range(1000):
    session.run(None, {"x": make[sys.argv[2]]([uuid.uuid4().hex for _ in range(64)])})
    time.sleep(0.004)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "texts.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


@pytest.fixture
def old() -> Path:
    try:
        return runtime("1.20.1")
    except ProvisionError as error:
        pytest.skip(str(error))


def test_texts_leak_up_to_1_20(model: Path, old: Path) -> None:
    config = LeakConfig(
        session=SessionConfig(python=old), inputs=InputConfig(dims={"n": 256}), runs=200
    )
    growth = observe_model(model, config)
    assert (growth.verdict, growth.owner) == ("leak", "python")
    # A string has 49 bytes and its text, in steps of 16.
    assert 256 * 49 < growth.slope_bytes_per_run < 256 * 80
    assert memdiag.leak(model, dims={"n": 256}, runs=200).verdict == "flat"


@pytest.mark.parametrize(
    ("kind", "verdict"), [("list", "leak"), ("objects", "leak"), ("array", "flat")]
)
def test_a_program_leaks_lists_of_texts_but_not_arrays(
    model: Path, old: Path, kind: str, verdict: str
) -> None:
    command = [str(old), "-c", PROGRAM, str(model), kind]
    assert leak_program(command).growth.verdict == verdict
