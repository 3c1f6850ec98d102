"""Weights that only bodies one level in read move; those that are read further in stay."""

from pathlib import Path

import onnx
import pytest
from onnx import ModelProto

from memdiag.rewrites.catalog import hoist_shallow_weights as hoist
from tests.model_text import random, text_model
from tests.rewrites.rewriting import refusal, rewritten

NESTED = """g (float[n, 8] x, bool c, bool d) => (float[n, k] y) {
    y = If (c) <
        then_branch = t () => (float[n, k] ty) <float[8, 8] w, float[8, 8] w2> {
            r = MatMul(x, w)
            ty = If (d) <
                then_branch = tt () => (float[n, k] tty) <float[8, 8] w3> {
                    s = MatMul(r, w2) tty = MatMul(s, w3) },
                else_branch = te () => (float[n, k] tey) { tey = Neg(r) }
            > },
        else_branch = e () => (float[n, k] ey) <float[8, 8] v> { ey = MatMul(x, v) }
    > }"""
SHALLOW = "If_0/then_branch/w If_0/else_branch/v"
DEEP = "If_0/then_branch/w2 If_0/then_branch/If_1/then_branch/w3"
EQUAL = text_model(NESTED, **dict.fromkeys(("w", "w2", "w3", "v"), random((8, 8))))


@pytest.mark.parametrize(
    ("model", "moved", "kept"),
    [(text_model(NESTED), ["w", "v"], ["w2"]), (EQUAL, ["w"], ["w2"])],
    ids=["different", "equal"],
)
def test_what_is_read_one_level_in_moves(
    tmp_path: Path, model: ModelProto, moved: list[str], kept: list[str]
) -> None:
    graph = onnx.load(rewritten(hoist, model, f"{SHALLOW} {DEEP}", tmp_path)).graph
    assert [one.name for one in graph.initializer] == moved
    assert [one.name for one in graph.node[0].attribute[0].g.initializer] == kept


@pytest.mark.parametrize(
    ("ir", "names", "reason"),
    [
        (10, DEEP, "read all of them"),
        (10, SHALLOW, "hoist-subgraph-weights"),  # without others it would be that remedy
        (3, f"{SHALLOW} {DEEP}", "version 4"),
    ],
)
def test_what_stays(tmp_path: Path, ir: int, names: str, reason: str) -> None:
    assert reason in refusal(hoist, text_model(NESTED, ir), names, tmp_path)
