"""Weights of branches and bodies move to the main graph, whatever they are called there."""

from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto

from memdiag.rewrites.catalog import hoist_subgraph_weights as hoist
from memdiag.verify.outputs import Bound
from tests.model_text import Array, declared, random, tensor, text_model
from tests.rewrites.rewriting import refusal, rewritten, stored, weights

W, V = random((8, 8)), random((8, 8), 1)
BRANCHES = """g (float[n, 8] x, bool c) => (float[n, k] y) {
    y = If (c) <
        then_branch = t () => (float[n, k] ty) <float[8, 8] w> { ty = MatMul(x, w) },
        else_branch = e () => (float[n, k] ey) { v = Constant() r = MatMul(x, v) ey = Neg(r) }
    > }"""
LOOP = """g (float[n, 8] x, int64 trips) => (float[n, 8] y, float[m, n, 8] all) <float[8, 8] u> {
    true = Constant <value = bool {1}> ()
    first = MatMul(x, u)
    y, all = Loop (trips, true, first) <body = b (int64 i, bool keep, float[n, 8] s) =>
        (bool keep_, float[n, 8] s_, float[n, 8] scanned) <float[8, 8] w> {
        keep_ = Identity(keep)  s_ = MatMul(s, w)  scanned = Neg(s_) } > }"""
SCAN = """g (float[n, 8] s, float[m, 8, 8] xs) => (float[n, 8] y, float[m, n, 8] all) {
    y, all = Scan <num_scan_inputs = 1, body = b (float[n, 8] state, float[8, 8] x) =>
        (float[n, 8] state_, float[n, 8] scanned) <float[8, 8] w> {
        p = MatMul(state, w)  state_ = MatMul(p, x)  scanned = Neg(p) } > (s, xs) }"""
TWO_LEVELS = """g (float[n, 8] x, bool c, bool d) => (float[n, k] y) {
    y = If (c) <
        then_branch = t () => (float[n, k] ty) <float[8, 8] w> {
            r = MatMul(x, w)
            ty = If (d) <
                then_branch = tt () => (float[n, k] tty) <float[8, 8] w2> { tty = MatMul(r, w2) },
                else_branch = te () => (float[n, k] tey) { tey = MatMul(r, w) }
            > },
        else_branch = e () => (float[n, k] ey) { ey = Neg(x) }
    > }"""
FUNCTION = """g (float[n, 8] x, bool c) => (float[n, 8] y) { y = local.f(x, c) }
    <domain: "local", opset_import: ["" : 17]> f (x, c) => (y) {
        y = If (c) <
            then_branch = t () => (float[n, k] ty) { ty = MatMul(x, w) },
            else_branch = e () => (float[n, k] ey) { ey = Neg(x) }
        > }"""
NAMES = "If_0/then_branch/w If_0/else_branch/v"
THEN = "If_0/then_branch/w"
GIVEN_OUT = BRANCHES.replace("(float[n, k] ty)", "(float[8, k] w)").replace("ty", "r")


def one_name() -> ModelProto:
    """Return a model both of whose branches call their weight w."""
    model = text_model(BRANCHES.replace("(x, v)", "(x, w)").replace("v =", "w ="), w=W)
    other = model.graph.node[0].attribute[1].g.node[0]
    other.attribute[0].t.CopyFrom(tensor(V, ""))
    return model


@pytest.mark.parametrize(
    ("model", "names", "left"),
    [
        (text_model(BRANCHES, v=V), NAMES, "w v"),
        (text_model(BRANCHES, w=W, v=W), NAMES, "w"),
        (one_name(), "If_0/then_branch/w If_0/else_branch/w", "w_2 w"),
        (
            text_model(BRANCHES.replace("r = ", "w = ").replace("Neg(r)", "Neg(w)"), v=V),
            NAMES,
            "w_2 v",
        ),
        (text_model(LOOP), "Loop_2/body/w", "u w"),
        (text_model(SCAN), "Scan_0/body/w", "w"),
    ],
    ids=["branches", "equal", "one name", "a name of the other branch", "loop", "scan"],
)
def test_weights_move(tmp_path: Path, model: ModelProto, names: str, left: str) -> None:
    fixed = rewritten(hoist, model, names, tmp_path)
    assert weights(fixed) == [one.name for one in stored(fixed)] == left.split()


def test_what_can_be_moved_moves(tmp_path: Path) -> None:
    model = text_model(GIVEN_OUT.replace("float[n, 8] x", "float[8, 8] x"), v=V)
    branch = model.graph.node[0].attribute[0].g
    assert branch.initializer[0].name == branch.output[0].name == "w"
    assert weights(rewritten(hoist, model, NAMES, tmp_path)) == ["v"]


def test_weights_two_levels_in(tmp_path: Path) -> None:
    names = "If_0/then_branch/w If_0/then_branch/If_1/then_branch/w2"
    # What is two levels in is not packed any more, which adds in another order.
    bound = Bound.reordered(8).relative
    fixed = rewritten(hoist, text_model(TWO_LEVELS, w2=V), names, tmp_path, bound=bound)
    assert weights(fixed) == ["w", "w2"]


def main_graph_has_its_name() -> ModelProto:
    model = text_model(BRANCHES, v=V)
    model.graph.input[0].name = "w"
    return model


def input_of_a_body() -> ModelProto:
    model = text_model(LOOP)
    model.graph.node[2].attribute[0].g.initializer[0].name = "s"
    return model


def strings() -> ModelProto:
    model = text_model(BRANCHES, v=V)
    text = TensorProto(name="text", data_type=TensorProto.STRING, dims=[1], string_data=[b"a"])
    model.graph.node[0].attribute[0].g.initializer.append(text)
    return model


def function() -> ModelProto:
    model = text_model(FUNCTION)
    model.functions[0].node[0].attribute[0].g.initializer.append(tensor(W, "w"))
    return model


@pytest.mark.parametrize(
    ("model", "names", "reason"),
    [
        (main_graph_has_its_name(), THEN, "of its name"),
        (text_model(GIVEN_OUT, v=V), THEN, "it is an output of its graph"),
        (input_of_a_body(), "Loop_2/body/s", "input"),
        (text_model(LOOP), "u nothing", "none of them is in a subgraph"),
        (strings(), "If_0/then_branch/text", "it is not a dense tensor of numbers"),
        (function(), "local::f/If_0/then_branch/w", "function"),
        (text_model(BRANCHES, 3, v=V), NAMES, "version 4"),
    ],
    ids=["name", "given out", "input", "main graph", "strings", "function", "old"],
)
def test_what_stays(tmp_path: Path, model: ModelProto, names: str, reason: str) -> None:
    assert reason in refusal(hoist, model, names, tmp_path)


@given(
    shapes=st.lists(st.lists(st.integers(1, 4), max_size=4), min_size=1, max_size=4),
    names=st.lists(st.sampled_from(("a", "b", "c")), min_size=4, max_size=4),
    in_then=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_any_shapes_and_names(
    tmp_path: Path, shapes: list[list[int]], names: list[str], in_then: list[bool]
) -> None:
    owned: dict[str, dict[str, Array]] = {"then_branch": {}, "else_branch": {}}
    for seed, (shape, name, then) in enumerate(zip(shapes, names, in_then, strict=False)):
        owned["then_branch" if then else "else_branch"][name] = random(shape, seed)
    bodies = []
    for branch, arrays in owned.items():
        sums = [f"{branch}_{name} = ReduceSum<keepdims = 0>({name})" for name in arrays]
        terms = ", ".join(f"{branch}_{name}" for name in ("zero", *arrays))
        bodies.append(
            f"{branch} = {branch[0]} () => (float {branch}_y) <{declared(**arrays)}> {{"
            f" {branch}_zero = Constant<value_float = 0.0>() {' '.join(sums)}"
            f" {branch}_y = Sum({terms}) }}"
        )
    model = text_model(f"g (bool yes) => (float y) {{ y = If (yes) <{', '.join(bodies)}> }}")
    paths = [f"If_0/{branch}/{name}" for branch, arrays in owned.items() for name in arrays]
    made = onnx.load(rewritten(hoist, model, " ".join(paths), tmp_path)).graph
    assert len(made.initializer) >= len({name for arrays in owned.values() for name in arrays})
    assert not any(attribute.g.initializer for attribute in made.node[0].attribute)
