"""Results of chains of constants are stored, all of one graph from one process."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from memdiag.model.model_file import open_model
from memdiag.rewrites.catalog import store_folded_result
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.runner.session_server import SessionServer
from tests.rewrites.rewriting import assert_same_outputs, finding, random, text_model

W = random((8, 8))
X = random((3, 8))
CHAINS = """g (float[n, 8] x) => (float[n, 8] y) <float[8, 8] a, float[8, 8] b> {
    [first] s = Add(a, b)
    [second] t = Mul(s, a)
    [third] u = Neg(b)
    p = MatMul(x, s) q = MatMul(p, t) y = MatMul(q, u) }"""
NODES = ("first", "second", "third")


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of outputs of each process that evaluates chains."""
    started: list[int] = []

    class Counting(SessionServer):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(len(self.signature["outputs"]))

    monkeypatch.setattr(store_folded_result, "SessionServer", Counting)
    return started


def rewritten(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Return `model`, saved to `path`, with the results of the chains stored."""
    onnx.save(model, path)
    with open_model(path) as file:
        editor = ModelEditor(file)
        assert store_folded_result.apply(editor, finding(nodes=NODES))
        return editor.proto()


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_the_results_of_one_graph_come_from_one_process(tmp_path: Path, servers: list[int]) -> None:
    fixed = rewritten(text_model(CHAINS, a=W, b=W + 1), tmp_path / "m.onnx")
    assert servers == [3]
    assert operators(fixed) == ["MatMul"] * 3
    onnx.save(fixed, tmp_path / "fixed.onnx")
    assert_same_outputs(tmp_path / "m.onnx", tmp_path / "fixed.onnx", {"x": X})


def test_results_that_are_too_large_together_are_evaluated_alone(
    tmp_path: Path, servers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_folded_result, "_MAX_EVALUATED_BYTES", 2 * W.size * 8)
    fixed = rewritten(text_model(CHAINS, a=W, b=W + 1), tmp_path / "m.onnx")
    assert servers == [1, 1, 1]
    assert operators(fixed) == ["MatMul"] * 3


def test_a_result_that_the_runtime_cannot_evaluate_is_left_alone(
    tmp_path: Path, servers: list[int]
) -> None:
    # Mod of fractions needs fmod = 1.
    text = CHAINS.replace("u = Neg(b)", "u = Mod(b, a)")
    fixed = rewritten(text_model(text, a=np.abs(W) + 1, b=W + 2), tmp_path / "m.onnx")
    assert operators(fixed) == ["Mod", *["MatMul"] * 3]
    assert servers == [3, 1, 1, 1]
