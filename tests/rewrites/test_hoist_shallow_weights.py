"""Weights that only bodies one level in read move; those that are read further in stay."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from memdiag.rewrites.catalog import hoist_shallow_weights as hoist
from tests.rewrites.rewriting import (
    Array,
    assert_same_outputs,
    finding,
    random,
    refusal,
    rewrite,
    taken,
    text_model,
)

MIB = 1 << 20
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
SHALLOW = ("If_0/then_branch/w", "If_0/else_branch/v")
DEEP = ("If_0/then_branch/w2", "If_0/then_branch/If_1/then_branch/w3")


def model(size: int = 8, equal: bool = False) -> ModelProto:
    weights = {
        name: random((size, size), 0 if equal else seed)
        for seed, name in enumerate(("w", "w2", "w3", "v"))
    }
    return text_model(NESTED.replace("8", str(size)), **weights)


def feeds(size: int = 8) -> list[dict[str, Array]]:
    return [
        {"x": random((rows, size), rows), "c": np.array(c), "d": np.array(d)}
        for rows in (1, 5)
        for c in (True, False)
        for d in (True, False)
    ]


def test_what_is_read_one_level_in_moves(tmp_path: Path) -> None:
    fixed = rewrite(hoist, model(), finding(*SHALLOW, *DEEP), tmp_path)
    assert [one.name for one in onnx.load(fixed).graph.initializer] == ["w", "v"]
    assert_same_outputs(tmp_path / "original.onnx", fixed, *feeds())


def test_equal_weights_that_move_become_one(tmp_path: Path) -> None:
    fixed = rewrite(hoist, model(equal=True), finding(*SHALLOW, *DEEP), tmp_path)
    assert len(onnx.load(fixed).graph.initializer) == 1
    branch = onnx.load(fixed).graph.node[0].attribute[0].g
    assert [one.name for one in branch.initializer] == ["w2"]
    assert_same_outputs(tmp_path / "original.onnx", fixed, *feeds())


def test_what_is_read_further_in_stays(tmp_path: Path) -> None:
    assert "read all of them" in refusal(hoist, model(), finding(*DEEP), tmp_path)


def test_without_such_weights_it_would_be_the_other_remedy(tmp_path: Path) -> None:
    found = refusal(hoist, model(), finding(*SHALLOW), tmp_path)
    assert "hoist-subgraph-weights" in found


def test_what_cannot_move_is_refused_with_the_reason(tmp_path: Path) -> None:
    old = model()
    old.ir_version = 3
    assert "version 4" in refusal(hoist, old, finding(*SHALLOW, *DEEP), tmp_path)


@pytest.mark.slow
def test_the_memory_that_it_spares(tmp_path: Path) -> None:
    fixed = rewrite(hoist, model(1024), finding(*SHALLOW, *DEEP), tmp_path)
    before, after = taken(tmp_path / "original.onnx"), taken(fixed)
    # Of two weights of 4 MiB, a stale copy and an original beside the packed one.
    assert before.steady_bytes - after.steady_bytes > 12 * MIB
