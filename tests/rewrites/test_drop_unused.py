"""What no output depends on goes, with the nodes that lead nowhere; everything else stays."""

from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

from memdiag.rewrites.catalog import drop_unused
from tests.model_text import random, text_model
from tests.rewrites.rewriting import operators, refusal, rewrite, rewritten, stored

U = random((8, 8), 1)
MAIN = """g (float[n, 8] x) => (float[n, 8] y) <float[8, 8] w, float[8, 8] u> {
    y = MatMul(x, w) }"""
DEAD = """g (float[n, 8] x) => (float[n, 8] y) <float[8, 8] w, float[8, 8] u, float[8, 8] v> {
    half = Constant <value_float = 0.5> ()
    before = Mul(x, half)
    between = MatMul(before, u)
    after = MatMul(between, v)
    y = MatMul(x, w) }"""
BEFORE_IS_AN_OUTPUT = DEAD.replace("float[n, 8] y)", "float[n, 8] y, float[n, 8] before)")
BRANCHES = """g (float[n, 8] x, bool c) => (float[n, k] y) <float[8, 8] captured> {
    y = If (c) <
        then_branch = t () => (float[n, k] ty) <float[8, 8] u> { ty = Neg(x) },
        else_branch = e () => (float[n, k] ey) { v = Constant() d = MatMul(x, v) ey = Abs(x) }
    >
    nowhere = If (c) <
        then_branch = t2 () => (float[n, k] ty2) <float[8, 8] w> { ty2 = MatMul(x, w) },
        else_branch = e2 () => (float[n, k] ey2) { ey2 = MatMul(x, captured) }
    >
    next = Neg(nowhere) }"""
LOOP = """g (float[n, 8] x, int64 trips) => (float[n, 8] y) <float[8, 8] u> {
    true = Constant <value = bool {1}> ()
    y = Loop (trips, true, x) <body = b (int64 i, bool keep, float[n, 8] s) =>
        (bool keep_, float[n, 8] s_) {
        keep_ = Identity(keep)  s_ = Neg(s)  nowhere = MatMul(s, u) } > }"""
CALLED = """g (float[n, 8] x) => (float[n, 8] y) <float[8, 8] u> {
    nowhere = local.f(x, u)  y = Neg(x) }
    <domain: "local", opset_import: ["" : 17]> f (x, u) => (y) { y = MatMul(x, u) }"""
RETURNED_BY_A_BRANCH = """g (float[n, 8] x, bool c) => (float[k, 8] y) <float[8, 8] u> {
    z = Neg(u)
    y = If (c) <
        then_branch = t () => (float[k, 8] z) { other = Neg(x) },
        else_branch = e () => (float[k, 8] ey) { ey = Neg(x) }
    > }"""


def listed(names: str, ir: int = 10) -> ModelProto:
    """Return the model with some weights listed as inputs, too."""
    model = text_model(MAIN, ir)
    for name in names:
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 8]))
    return model


@pytest.mark.parametrize(
    ("model", "names", "kept", "left"),
    [
        (text_model(MAIN), "u", "w", "MatMul"),
        (
            text_model(MAIN.replace(", float[8, 8] u", "").replace("{", "{ u = Constant()"), u=U),
            "u",
            "w",
            "MatMul",
        ),
        (text_model(DEAD), "u v", "w", "MatMul"),
        (text_model(BEFORE_IS_AN_OUTPUT), "u", "w", "Constant MatMul Mul"),
        (
            text_model(BRANCHES, v=U),
            "If_0/then_branch/u If_0/else_branch/v If_1/then_branch/w captured",
            "",
            "Abs If Neg",
        ),
        (text_model(LOOP), "u", "", "Constant Identity Loop Neg"),
        (listed("wu", 3), "u", "w", "MatMul"),
        (text_model(MAIN.replace("x, w)", "x, w) unread = Neg(u)")), "u", "w", "MatMul"),
    ],
    ids=["weight", "Constant", "nodes", "before", "branches", "loop", "old inputs", "one node"],
)
def test_what_nothing_needs_goes(
    tmp_path: Path, model: ModelProto, names: str, kept: str, left: str
) -> None:
    fixed = rewritten(drop_unused, model, names, tmp_path)
    assert [one.name for one in stored(fixed)] == kept.split()
    assert operators(fixed) == left.split()


def test_inputs_before_version_four_are_constants(tmp_path: Path) -> None:
    fixed = rewrite(drop_unused, listed("wu", 3), "u", tmp_path)
    assert [one.name for one in onnx.load(fixed).graph.input] == ["x", "w"]


def custom() -> ModelProto:
    """Return a model in which a custom operator takes the weight."""
    model = text_model(DEAD)
    model.graph.node[3].domain = "elsewhere"
    model.opset_import.append(helper.make_opsetid("elsewhere", 1))
    return model


READ = MAIN.replace("y = MatMul(x, w)", "z = MatMul(x, w) y = MatMul(z, u)")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (text_model(READ), "depends"),
        (text_model(MAIN.replace("y) <", "y, float[8, 8] u) <")), "is an output"),
        (listed("u"), "callers"),
        (custom(), "elsewhere"),
        (text_model(CALLED), "local"),
        (text_model(RETURNED_BY_A_BRANCH), "subgraph"),
        (text_model(MAIN.replace(", float[8, 8] u", "")), "were removed"),
    ],
    ids=["read", "output", "overridable", "custom", "function", "returned", "gone"],
)
def test_near_misses(tmp_path: Path, model: ModelProto, words: str) -> None:
    assert words in refusal(drop_unused, model, "u", tmp_path)


@given(
    edges=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=10),
    outputs=st.sets(st.integers(0, 9), min_size=1, max_size=3),
)
def test_any_graph(tmp_path: Path, edges: list[tuple[int, int]], outputs: set[int]) -> None:
    """Node i adds two earlier values to a weight of its own."""
    sources = [
        [f"v{one % number}" if number else "x" for one in pair] for number, pair in enumerate(edges)
    ]
    nodes = [f"v{i} = Sum({one}, {other}, w{i})" for i, (one, other) in enumerate(sources)]
    shown = sorted({number % len(edges) for number in outputs})
    names = [f"w{number}" for number in range(len(edges))]
    model = text_model(
        f"g (float[4, 8] x) => ({', '.join(f'float[4, 8] v{number}' for number in shown)})"
        f" <{', '.join(f'float[4, 8] {name}' for name in names)}> {{ {' '.join(nodes)} }}"
    )
    needed, pending = set(), list(shown)
    while pending:
        number = pending.pop()
        if number not in needed:
            needed.add(number)
            pending += [each % number for each in edges[number]] if number else []
    if len(needed) == len(edges):
        assert "depends" in refusal(drop_unused, model, " ".join(names), tmp_path)
        return
    fixed = rewritten(drop_unused, model, " ".join(names), tmp_path)
    assert {one.name for one in stored(fixed)} == {f"w{number}" for number in needed}
