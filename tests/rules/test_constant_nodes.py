from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.model_text import Array, tensor, text_model
from tests.rules.building import MIB, Make, branches, constant, rows
from tests.rules.examining import findings, found

RULE = "constant-nodes"
FUNCTION = '<domain: "local", opset_import: ["" : 17]> F (a) => (b)'


def calling(calls: int, array: Array, body: str = "b = Gather(w, a)") -> onnx.ModelProto:
    """Return a model that calls a function, which reads its weight, so many times."""
    nodes = " ".join(f"y{call} = local.F(rows)" for call in range(calls))
    outputs = ", ".join(f"float[2, m] y{call}" for call in range(calls))
    graph = f"g (int64[2] rows) => ({outputs}) {{ {nodes} }}"
    return text_model(f"{graph} {FUNCTION} {{ w = Constant() {body} }}", w=array)


def two_constants() -> onnx.ModelProto:
    """Return a model with constants of 64 and 68 MiB."""
    text = """g (int64[2] rows) => (float[2, m] y, float[2, m] z) {
        w = Constant() y = Gather(w, rows) v = Constant() z = Gather(v, rows) }"""
    arrays = {"w": np.zeros((16, MIB), np.float32), "v": np.zeros((17, MIB), np.float32)}
    return text_model(text, **arrays)


def test_two_constants_are_there_twice_but_for_the_largest(tmp_path: Path) -> None:
    fields = {"bytes": 0, "peak_bytes": 64 * MIB, "phase": "parse", "weights": ("v", "w")}
    found(RULE, two_constants(), tmp_path, **fields)


def test_of_subgraphs_the_largest_counts(tmp_path: Path) -> None:
    arrays = [np.zeros((size, MIB), np.float32) for size in (16, 17)]
    found(RULE, branches(arrays, make=constant), tmp_path, peak_bytes=68 * MIB)


def test_each_call_of_a_function_keeps_a_copy(tmp_path: Path) -> None:
    model = calling(3, np.zeros((4, MIB // 4), np.float32))
    fields = {"weights": ("local::F/w",), "graph": "local::F", "bytes": 8 * MIB}
    found(RULE, model, tmp_path, copies=[("original", 3, 12 * MIB)], **fields)


@pytest.mark.parametrize("make", [constant, tensor], ids=["one constant", "an initializer"])
def test_one_constant_costs_what_an_initializer_does(tmp_path: Path, make: Make) -> None:
    assert not findings(RULE, rows(np.zeros((17, MIB), np.float32), make=make), tmp_path)


@pytest.mark.parametrize(
    "model",
    [
        calling(1, np.zeros((4, MIB // 4), np.float32)),
        calling(4, np.zeros((4, 1024), np.float32)),
        calling(3, np.zeros((1024, 1024), np.float32), "b = MatMul(a, w)"),
    ],
    ids=["one call", "small", "packed"],
)
def test_functions_that_cost_nothing(tmp_path: Path, model: onnx.ModelProto) -> None:
    assert not findings(RULE, model, tmp_path)
