"""Each element type of ONNX as input and output: it runs, or a sentence says that it does not."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import memdiag
from memdiag.errors import UsageError
from memdiag.model.tensor_types import ELEMENT_TYPES
from memdiag.records.profile import Outcome
from memdiag.runner.job import Feed, Job
from memdiag.runner.session_server import SessionServer
from memdiag.verify.outputs import compare_outputs

MESSAGES = {
    "complex64": "complex64",
    "int4": "Identity",
    "float8e8m0": "Identity",
    "float6e2m3": "tensor type 27",
}
"""What a failed profile's message names: onnxruntime has no such tensors, or no kernel for them."""
ALIKE = {"complex128", "uint4", "uint2", "int2", "float4e2m1", "float6e3m2"}


def identity(path: Path, *types: int) -> Path:
    """Save a model that returns its inputs, one of each of `types`."""
    version = 25 if any(kind > TensorProto.FLOAT4E2M1 for kind in types) else 21
    graph = helper.make_graph(
        [helper.make_node("Identity", [f"x{kind}"], [f"y{kind}"]) for kind in types],
        "g",
        [helper.make_tensor_value_info(f"x{kind}", kind, [3]) for kind in types],
        [helper.make_tensor_value_info(f"y{kind}", kind, [3]) for kind in types],
    )
    opsets = [helper.make_opsetid("", version)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def outcome_of(path: Path, **options: Any) -> Outcome:
    return memdiag.profile(path, runs=1, xray="none", **options).outcome


@pytest.mark.parametrize("has_text", [True, False], ids=["text", "numbers"])
def test_all_other_types_run(has_text: bool, tmp_path: Path) -> None:
    # Text does not run next to types that numpy lacks.
    types = [
        element.number
        for element in ELEMENT_TYPES.values()
        if element.name not in {*MESSAGES, *ALIKE} and (element.name == "string") == has_text
    ]
    path = identity(tmp_path / "m.onnx", *types)
    outcome = outcome_of(path)
    assert outcome.status == "completed", outcome.message


@pytest.mark.parametrize("name", MESSAGES)
def test_a_sentence_names_a_type_that_does_not_run(name: str, tmp_path: Path) -> None:
    (number,) = [each.number for each in ELEMENT_TYPES.values() if each.name == name]
    path = identity(tmp_path / "m.onnx", number)
    outcome = outcome_of(path)
    assert outcome.status == "failed"
    assert outcome.phase in ("start", "parse", "optimize")
    assert MESSAGES[name] in outcome.message
    assert "\n" not in outcome.message


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (
            "(int4[4] x) => (float[4] y) <float s = {2}> { y = DequantizeLinear(x, s) }",
            "ones, as bits",
        ),
        (
            "(float[4] x) => (int4[4] y) <float s = {2}, int4 z = {0}>"
            " { y = QuantizeLinear(x, s, z) }",
            "standard normal",
        ),
    ],
)
def test_int4_runs_where_an_operator_takes_it(text: str, note: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    header = '<ir_version: 10, opset_import: ["" : 21]> g '
    onnx.save(onnx.parser.parse_model(header + text), path)
    result = memdiag.profile(path, runs=1, xray="none")
    assert result.outcome.status == "completed", result.outcome.message
    assert [value.note for value in result.inputs] == [note]


BFLOAT16 = np.array([1.5, -2, 3e38], ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    "array", [BFLOAT16, BFLOAT16.view(np.uint16), BFLOAT16.view("V2")], ids=["own", "bits", "npy"]
)
def test_bfloat16_may_be_given(array: np.ndarray, tmp_path: Path) -> None:
    path = identity(tmp_path / "m.onnx", TensorProto.BFLOAT16)
    np.save(tmp_path / "x.npy", array)
    for value in (array, tmp_path / "x.npy"):
        outcome = outcome_of(path, inputs={"x16": value})
        assert outcome.status == "completed", outcome.message


@pytest.mark.parametrize(
    ("number", "array"),
    [
        (TensorProto.BFLOAT16, np.ones(3, np.float32)),
        (TensorProto.BFLOAT16, np.ones(3, np.float16)),
        (TensorProto.UINT16, BFLOAT16),
        (TensorProto.FLOAT8E5M2, np.ones(3, ml_dtypes.float8_e4m3fn)),
    ],
)
def test_an_array_of_another_type_is_refused(
    number: int, array: np.ndarray, tmp_path: Path
) -> None:
    path = identity(tmp_path / "m.onnx", number)
    with pytest.raises(UsageError, match="but the model expects"):
        outcome_of(path, inputs={f"x{number}": array})


def test_outputs_of_such_types_are_compared(tmp_path: Path) -> None:
    types = (TensorProto.BFLOAT16, TensorProto.FLOAT8E5M2, TensorProto.INT8)
    path = identity(tmp_path / "m.onnx", *types)

    def feeds(number: int) -> list[Feed]:
        arrays: dict[int, np.ndarray] = {
            TensorProto.BFLOAT16: BFLOAT16.view(np.uint16) + number,
            TensorProto.FLOAT8E5M2: np.full(3, 0x3C + number, np.uint8),
            TensorProto.INT8: np.ones(3, np.int8),
        }
        made = []
        for kind, array in arrays.items():
            file = tmp_path / f"{number}-{kind}.npy"
            np.save(file, array)
            bits = None if kind == TensorProto.INT8 else kind
            made.append(Feed(name=f"x{kind}", files=(file,), onnx_type=bits))
        return made

    with SessionServer(Job(model=path), [feeds(0), feeds(1)]) as server:
        assert min(server.run(0, 2)) > 0
        before = server.save(0, tmp_path / "a")
        again = server.save(0, tmp_path / "b")
        other = server.save(1, tmp_path / "c")
    (file,) = before["y16"]
    assert np.load(file).tolist() == BFLOAT16.astype(np.float32).tolist()
    assert [output.relative for output in compare_outputs(before, again)] == [0, 0, 0]
    relative = {output.output: output.relative for output in compare_outputs(before, other)}
    assert 0 < relative["y16"] < 0.01
    assert relative[f"y{TensorProto.FLOAT8E5M2}"] == float("inf")
    assert relative["y3"] == 0


def test_text_beside_such_an_output_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = identity(tmp_path / "m.onnx", TensorProto.STRING, TensorProto.BFLOAT16)
    outcome = outcome_of(path)
    assert outcome.status == "failed"
    assert outcome.message.startswith("input 'x8' is text or a sequence, which onnxruntime does")
