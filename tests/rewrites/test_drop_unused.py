"""What no output depends on goes, with the nodes that lead nowhere; everything else stays."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

from memdiag.rewrites.catalog import drop_unused
from tests.rewrites.rewriting import (
    assert_same_outputs,
    finding,
    random,
    refusal,
    rewrite,
    runs_on,
    stored,
    taken,
    tensor,
    text_model,
)

MIB = 1 << 20
W, U, V = (random((8, 8), seed) for seed in range(3))
X = {rows: random((rows, 8), rows) for rows in (1, 5)}
FEEDS = tuple({"x": x} for x in X.values())
MAIN = """g (float[n, 8] x) => (float[n, 8] y) <float[8, 8] w, float[8, 8] u> {
    y = MatMul(x, w) }"""
DEAD = """g (float[n, 8] x) => (float[n, 8] y) <float[8, 8] w, float[8, 8] u, float[8, 8] v> {
    half = Constant <value_float = 0.5> ()
    before = Mul(x, half)
    between = MatMul(before, u)
    after = MatMul(between, v)
    y = MatMul(x, w) }"""


def operators(path: Path) -> list[str]:
    """Return the operators of the main graph."""
    return [node.op_type for node in onnx.load(path).graph.node]


def test_a_weight_that_nobody_reads(tmp_path: Path) -> None:
    fixed = rewrite(drop_unused, text_model(MAIN, w=W, u=U), finding("u"), tmp_path)
    assert [one.name for one in stored(fixed)] == ["w"]
    assert_same_outputs(tmp_path / "original.onnx", fixed, *FEEDS)


def test_a_constant_that_nobody_reads(tmp_path: Path) -> None:
    text = MAIN.replace(", float[8, 8] u", "").replace("{", "{ u = Constant()")
    fixed = rewrite(drop_unused, text_model(text, w=W, u=U), finding("u"), tmp_path)
    assert operators(fixed) == ["MatMul"]
    assert_same_outputs(tmp_path / "original.onnx", fixed, *FEEDS)


def test_nodes_that_lead_nowhere(tmp_path: Path) -> None:
    model = text_model(DEAD, w=W, u=U, v=V)
    fixed = rewrite(drop_unused, model, finding("u", "v"), tmp_path)
    assert [one.name for one in stored(fixed)] == ["w"]
    assert operators(fixed) == ["MatMul"]
    assert_same_outputs(tmp_path / "original.onnx", fixed, *FEEDS)


def test_what_follows_goes_and_what_comes_before_for_others_stays(tmp_path: Path) -> None:
    text = DEAD.replace("float[n, 8] y)", "float[n, 8] y, float[n, 8] before)")
    model = text_model(text, w=W, u=U, v=V)
    fixed = rewrite(drop_unused, model, finding("u"), tmp_path)
    assert [one.name for one in stored(fixed)] == ["w"]
    assert sorted(operators(fixed)) == ["Constant", "MatMul", "Mul"]
    assert_same_outputs(tmp_path / "original.onnx", fixed, *FEEDS)


def test_weights_of_branches_and_branches_that_nobody_needs(tmp_path: Path) -> None:
    model = text_model(
        """g (float[n, 8] x, bool c) => (float[n, k] y) <float[8, 8] captured> {
        y = If (c) <
            then_branch = t () => (float[n, k] ty) <float[8, 8] u> { ty = Neg(x) },
            else_branch = e () => (float[n, k] ey) { v = Constant() d = MatMul(x, v) ey = Abs(x) }
        >
        nowhere = If (c) <
            then_branch = t2 () => (float[n, k] ty2) <float[8, 8] w> { ty2 = MatMul(x, w) },
            else_branch = e2 () => (float[n, k] ey2) { ey2 = MatMul(x, captured) }
        >
        next = Neg(nowhere) }""",
        captured=W,
        u=U,
        v=V,
        w=W + 1,
    )
    of = finding("If_0/then_branch/u", "If_0/else_branch/v", "If_1/then_branch/w", "captured")
    fixed = rewrite(drop_unused, model, of, tmp_path)
    assert stored(fixed) == []
    assert operators(fixed) == ["If"]
    feeds = ({"x": x, "c": np.array(c)} for x in X.values() for c in (True, False))
    assert_same_outputs(tmp_path / "original.onnx", fixed, *feeds)


def test_inputs_before_version_four_are_constants(tmp_path: Path) -> None:
    model = text_model(MAIN, 3, w=W, u=U)
    for name in "wu":
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 8]))
    fixed = rewrite(drop_unused, model, finding("u"), tmp_path)
    assert [one.name for one in onnx.load(fixed).graph.input] == ["x", "w"]
    assert_same_outputs(tmp_path / "original.onnx", fixed, *FEEDS)


def _overridable() -> ModelProto:
    model = text_model(MAIN, w=W, u=U)
    model.graph.input.append(helper.make_tensor_value_info("u", TensorProto.FLOAT, [8, 8]))
    return model


def _custom() -> ModelProto:
    model = text_model(DEAD, w=W, u=U, v=V)
    model.graph.node[3].domain = "elsewhere"
    model.opset_import.append(helper.make_opsetid("elsewhere", 1))
    return model


def _called() -> ModelProto:
    return text_model(
        """g (float[n, 8] x) => (float[n, 8] y) <float[8, 8] u> {
            nowhere = local.f(x, u)  y = Neg(x) }
        <domain: "local", opset_import: ["" : 17]> f (x, u) => (y) { y = MatMul(x, u) }""",
        u=U,
    )


def _returned_by_a_branch() -> ModelProto:
    return text_model(
        """g (float[n, 8] x, bool c) => (float[k, 8] y) <float[8, 8] u> {
        z = Neg(u)
        y = If (c) <
            then_branch = t () => (float[k, 8] z) { other = Neg(x) },
            else_branch = e () => (float[k, 8] ey) { ey = Neg(x) }
        > }""",
        u=U,
    )


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (text_model(MAIN.replace("x, w)", "x, w) unread = Neg(u)"), w=W, u=U), None),
        (text_model(MAIN.replace("y = MatMul(x, w)", "z = MatMul(x, w) y = MatMul(z, u)"),
                    w=W, u=U), "depends"),
        (text_model(MAIN.replace("y) <", "y, float[8, 8] u) <"), w=W, u=U), "is an output"),
        (_overridable(), "callers"),
        (_custom(), "elsewhere"),
        (_called(), "local"),
        (_returned_by_a_branch(), "subgraph"),
        (text_model(MAIN.replace(", float[8, 8] u", ""), w=W), "were removed"),
    ],
    ids=["none", "read", "output", "overridable", "custom", "function", "returned", "gone"],
)  # fmt: skip
def test_near_misses(tmp_path: Path, model: ModelProto, words: str | None) -> None:
    if words is None:
        rewrite(drop_unused, model, finding("u"), tmp_path)
    else:
        assert words in refusal(drop_unused, model, finding("u"), tmp_path)


def test_a_body_that_reads_it_for_nothing_is_not_an_output(tmp_path: Path) -> None:
    model = text_model(
        """g (float[n, 8] x, int64 trips) => (float[n, 8] y) <float[8, 8] u> {
        true = Constant <value = bool {1}> ()
        y = Loop (trips, true, x) <body = b (int64 i, bool keep, float[n, 8] s) =>
            (bool keep_, float[n, 8] s_) {
            keep_ = Identity(keep)  s_ = Neg(s)  nowhere = MatMul(s, u) } > }""",
        u=U,
    )
    fixed = rewrite(drop_unused, model, finding("u"), tmp_path)
    assert stored(fixed) == []
    body = onnx.load(fixed).graph.node[1].attribute[0].g
    assert [node.op_type for node in body.node] == ["Identity", "Neg"]
    feeds = ({**feed, "trips": np.array(3)} for feed in FEEDS)
    assert_same_outputs(tmp_path / "original.onnx", fixed, *feeds)


@given(
    edges=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=10),
    outputs=st.sets(st.integers(0, 9), min_size=1, max_size=3),
)
def test_any_graph(tmp_path: Path, edges: list[tuple[int, int]], outputs: set[int]) -> None:
    """Node i adds two earlier values to a weight of its own."""
    nodes, weights = [], []
    for number, (one, other) in enumerate(edges):
        inputs = [f"v{one % number}" if number else "x", f"v{other % number}" if number else "x"]
        nodes.append(helper.make_node("Sum", [*inputs, f"w{number}"], [f"v{number}"]))
        weights.append(tensor(random((4, 8), number), f"w{number}"))
    given_out = sorted({number % len(edges) for number in outputs})
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])],
        [helper.make_tensor_value_info(f"v{n}", TensorProto.FLOAT, [4, 8]) for n in given_out],
        weights,
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])
    needed, pending = set(), list(given_out)
    while pending:
        number = pending.pop()
        if number not in needed:
            needed.add(number)
            pending += [each % number for each in edges[number]] if number else []
    of = finding(*(f"w{number}" for number in range(len(edges))))
    if len(needed) == len(edges):
        assert "depends" in refusal(drop_unused, model, of, tmp_path)
        return
    fixed = rewrite(drop_unused, model, of, tmp_path)
    assert {one.name for one in stored(fixed)} == {f"w{number}" for number in needed}
    assert_same_outputs(tmp_path / "original.onnx", fixed, {"x": random((4, 8), 99)})


@pytest.mark.slow
def test_the_memory_that_it_spares(tmp_path: Path) -> None:
    model = text_model(
        DEAD.replace("8", "2048"), w=W.repeat(256, 0).repeat(256, 1),
        u=random((2048, 2048)), v=random((2048, 2048), 1),
    )  # fmt: skip
    fixed = rewrite(drop_unused, model, finding("u", "v"), tmp_path)
    before, after = taken(tmp_path / "original.onnx"), taken(fixed)
    assert before.steady_bytes - after.steady_bytes > 30 * MIB
    assert before.peak_bytes - after.peak_bytes > 30 * MIB


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.20.1", "1.24.4"])
def test_older_runtimes(tmp_path: Path, version: str) -> None:
    model = text_model(DEAD, w=W, u=U, v=V)
    assert runs_on(version, rewrite(drop_unused, model, finding("u", "v"), tmp_path))
