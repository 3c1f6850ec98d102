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
from tests.model_text import random, text_model
from tests.rewrites.rewriting import assert_same_outputs, finding, operators, saved

W = random((8, 8))
CHAINS = """g (float[n, 8] x) => (float[n, 8] y) <float[8, 8] a, float[8, 8] b> {
    [first] s = Add(a, b)
    [second] t = Mul(s, a)
    [third] u = Neg(b)
    p = MatMul(x, s) q = MatMul(p, t) y = MatMul(q, u) }"""
# Mod of fractions needs fmod = 1.
REFUSED = CHAINS.replace("u = Neg(b)", "u = Mod(b, a)")
STORED = "MatMul MatMul MatMul"


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


@pytest.mark.parametrize(
    ("text", "limit", "left", "started"),
    [
        (CHAINS, None, STORED, [3]),
        (CHAINS, 2 * W.size * 8, STORED, [1, 1, 1]),
        (REFUSED, None, f"{STORED} Mod", [3, 1, 1, 1]),
    ],
    ids=["one process", "too large together", "one that is refused"],
)
def test_results_come_from_as_few_processes_as_possible(
    tmp_path: Path,
    servers: list[int],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    limit: int | None,
    left: str,
    started: list[int],
) -> None:
    if limit is not None:
        monkeypatch.setattr(store_folded_result, "_MAX_EVALUATED_BYTES", limit)
    path = saved(text_model(text, a=np.abs(W) + 1, b=W + 2), tmp_path)
    with open_model(path) as file:
        editor = ModelEditor(file)
        assert store_folded_result.apply(editor, finding(nodes=("first", "second", "third")))
        fixed = tmp_path / "fixed.onnx"
        onnx.save(editor.proto(), fixed)
    assert servers == started
    assert operators(fixed) == left.split()
    if text != REFUSED:
        assert_same_outputs(path, fixed, {"x": random((3, 8))})
