"""Weights of branches and bodies move to the main graph, whatever they are called there."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from memdiag.rewrites.catalog import hoist_subgraph_weights as hoist
from memdiag.verify.outputs import Bound
from tests.rewrites.rewriting import (
    Array,
    assert_same_outputs,
    branch_feeds,
    finding,
    largest_difference,
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
W, V = random((8, 8)), random((8, 8), 1)
X = {rows: random((rows, 8), rows) for rows in (1, 5)}
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
NAMES = ("If_0/then_branch/w", "If_0/else_branch/v")


def test_initializers_and_constants_of_branches(tmp_path: Path) -> None:
    fixed = rewrite(hoist, text_model(BRANCHES, w=W, v=V), finding(*NAMES), tmp_path)
    assert [one.name for one in onnx.load(fixed).graph.initializer] == ["w", "v"]
    assert len(stored(fixed)) == 2
    assert_same_outputs(tmp_path / "original.onnx", fixed, *branch_feeds(X.values()))


def test_weights_of_one_content_become_one(tmp_path: Path) -> None:
    fixed = rewrite(hoist, text_model(BRANCHES, w=W, v=W), finding(*NAMES), tmp_path)
    assert [one.name for one in stored(fixed)] == ["w"]
    assert_same_outputs(tmp_path / "original.onnx", fixed, *branch_feeds(X.values()))


def test_one_name_in_both_branches(tmp_path: Path) -> None:
    model = text_model(BRANCHES.replace("(x, v)", "(x, w)").replace("v =", "w ="), w=W)
    other = model.graph.node[0].attribute[1].g.node[0]
    other.attribute[0].t.CopyFrom(tensor(V, ""))
    of = finding("If_0/then_branch/w", "If_0/else_branch/w")
    fixed = rewrite(hoist, model, of, tmp_path)
    assert [one.name for one in stored(fixed)] == ["w_2", "w"]
    assert_same_outputs(tmp_path / "original.onnx", fixed, *branch_feeds(X.values()))


def test_a_name_that_another_branch_has(tmp_path: Path) -> None:
    model = text_model(BRANCHES.replace("r = ", "w = ").replace("Neg(r)", "Neg(w)"), w=W, v=V)
    fixed = rewrite(hoist, model, finding(*NAMES), tmp_path)
    assert [one.name for one in stored(fixed)] == ["w_2", "v"]
    assert_same_outputs(tmp_path / "original.onnx", fixed, *branch_feeds(X.values()))


def test_a_name_that_the_main_graph_has(tmp_path: Path) -> None:
    model = text_model(BRANCHES, w=W, v=V)
    model.graph.input[0].name = "w"
    of = finding(NAMES[0])
    assert "of its name" in refusal(hoist, model, of, tmp_path)


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_the_body_of_a_loop(tmp_path: Path, trips: int) -> None:
    fixed = rewrite(hoist, text_model(LOOP, w=W, u=V), finding("Loop_2/body/w"), tmp_path)
    assert [one.name for one in onnx.load(fixed).graph.initializer] == ["u", "w"]
    feeds = [{"x": x, "trips": np.array(trips)} for x in X.values()]
    assert_same_outputs(tmp_path / "original.onnx", fixed, *feeds)


def test_the_body_of_a_scan(tmp_path: Path) -> None:
    fixed = rewrite(hoist, text_model(SCAN, w=W), finding("Scan_0/body/w"), tmp_path)
    assert [one.name for one in onnx.load(fixed).graph.initializer] == ["w"]
    feeds = [{"s": x, "xs": random((steps, 8, 8))} for x in X.values() for steps in (1, 3)]
    assert_same_outputs(tmp_path / "original.onnx", fixed, *feeds)


def test_what_can_be_moved_moves(tmp_path: Path) -> None:
    text = BRANCHES.replace("(float[n, k] ty)", "(float[n, k] w)").replace("ty", "r")
    model = text_model(text, w=W, v=V)
    branch = model.graph.node[0].attribute[0].g
    assert branch.initializer[0].name == branch.output[0].name == "w"
    fixed = rewrite(hoist, model, finding(*NAMES), tmp_path)
    assert [one.name for one in onnx.load(fixed).graph.initializer] == ["v"]
    feeds = [{"x": random((8, 8)), "c": np.array(c)} for c in (True, False)]
    assert_same_outputs(tmp_path / "original.onnx", fixed, *feeds)


def test_what_a_branch_gives_out_stays(tmp_path: Path) -> None:
    text = BRANCHES.replace("(float[n, k] ty)", "(float[n, k] w)").replace("ty", "r")
    model = text_model(text, w=W, v=V)
    assert refusal(hoist, model, finding(NAMES[0]), tmp_path) == "it is an output of its graph"


def test_an_input_of_a_body_stays(tmp_path: Path) -> None:
    model = text_model(LOOP, w=W, u=V)
    body = model.graph.node[2].attribute[0].g
    body.initializer[0].name = "s"
    assert "input" in refusal(hoist, model, finding("Loop_2/body/s"), tmp_path)


def test_the_main_graph_s_own_weights_stay(tmp_path: Path) -> None:
    model = text_model(LOOP, w=W, u=V)
    assert "none of them is in a subgraph" in refusal(
        hoist, model, finding("u", "nothing"), tmp_path
    )


def test_strings_stay(tmp_path: Path) -> None:
    model = text_model(BRANCHES, w=W, v=V)
    strings = TensorProto(
        name="strings", data_type=TensorProto.STRING, dims=[1], string_data=[b"a"]
    )
    model.graph.node[0].attribute[0].g.initializer.append(strings)
    of = finding("If_0/then_branch/strings")
    assert refusal(hoist, model, of, tmp_path) == "it is not a dense tensor of numbers"


def test_nothing_leaves_a_function(tmp_path: Path) -> None:
    model = text_model(
        """g (float[n, 8] x, bool c) => (float[n, 8] y) { y = local.f(x, c) }
        <domain: "local", opset_import: ["" : 17]> f (x, c) => (y) {
            y = If (c) <
                then_branch = t () => (float[n, k] ty) <float[8, 8] w> { ty = MatMul(x, w) },
                else_branch = e () => (float[n, k] ey) { ey = Neg(x) }
            > }"""
    )
    model.functions[0].node[0].attribute[0].g.initializer.append(tensor(W, "w"))
    of = finding("local::f/If_0/then_branch/w")
    assert "function" in refusal(hoist, model, of, tmp_path)


def test_old_models_have_no_place_for_it(tmp_path: Path) -> None:
    model = text_model(BRANCHES, 3, w=W, v=V)
    assert "version 4" in refusal(hoist, model, finding(*NAMES), tmp_path)


def test_weights_two_levels_in(tmp_path: Path) -> None:
    model = text_model(
        """g (float[n, 8] x, bool c, bool d) => (float[n, k] y) {
        y = If (c) <
            then_branch = t () => (float[n, k] ty) <float[8, 8] w> {
                r = MatMul(x, w)
                ty = If (d) <
                    then_branch = tt () => (float[n, k] tty) <float[8, 8] w2> {
                        tty = MatMul(r, w2) },
                    else_branch = te () => (float[n, k] tey) { tey = MatMul(r, w) }
                > },
            else_branch = e () => (float[n, k] ey) { ey = Neg(x) }
        > }""",
        w=W,
        w2=V,
    )
    of = finding("If_0/then_branch/w", "If_0/then_branch/If_1/then_branch/w2")
    fixed = rewrite(hoist, model, of, tmp_path)
    assert [one.name for one in onnx.load(fixed).graph.initializer] == ["w", "w2"]
    for one in branch_feeds(X.values()):
        for d in (True, False):
            feeds = {**one, "d": np.array(d)}
            # What is two levels in is not packed any more, which adds in another order.
            found = largest_difference(tmp_path / "original.onnx", fixed, feeds, tmp_path)
            assert found <= Bound.reordered(8).relative


@given(
    shapes=st.lists(st.lists(st.integers(1, 4), max_size=4), min_size=1, max_size=4),
    names=st.lists(st.sampled_from(("a", "b", "c")), min_size=4, max_size=4),
    in_then=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_any_shapes_and_names(
    tmp_path: Path, shapes: list[list[int]], names: list[str], in_then: list[bool]
) -> None:
    weights: dict[str, dict[str, Array]] = {"then_branch": {}, "else_branch": {}}
    for seed, (shape, name, then) in enumerate(zip(shapes, names, in_then, strict=False)):
        weights["then_branch" if then else "else_branch"][name] = random(shape, seed)
    bodies = {}
    for branch, owned in weights.items():
        nodes = [helper.make_node("Constant", [], [f"{branch}_zero"], value_float=0.0)]
        nodes += [
            helper.make_node("ReduceSum", [name], [f"{branch}_{name}"], keepdims=0)
            for name in owned
        ]
        nodes.append(helper.make_node("Sum", [node.output[0] for node in nodes], [f"{branch}_y"]))
        output = helper.make_tensor_value_info(f"{branch}_y", TensorProto.FLOAT, [])
        tensors = [tensor(array, name) for name, array in owned.items()]
        bodies[branch] = helper.make_graph(nodes, branch, [], [output], tensors)
    graph = helper.make_graph(
        [helper.make_node("If", ["yes"], ["y"], name="choose", **bodies)],
        "g",
        [helper.make_tensor_value_info("yes", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])
    of = finding(
        *(f"choose/{branch}/{name}" for branch, owned in weights.items() for name in owned)
    )
    fixed = rewrite(hoist, model, of, tmp_path)
    made = onnx.load(fixed).graph
    held = {name: array for owned in weights.values() for name, array in owned.items()}
    assert len(made.initializer) >= len(held)
    assert not any(attribute.g.initializer for attribute in made.node[0].attribute)
    feeds = ({"yes": np.array(yes)} for yes in (True, False))
    assert_same_outputs(tmp_path / "original.onnx", fixed, *feeds)


@pytest.mark.slow
def test_the_memory_that_it_spares(tmp_path: Path) -> None:
    large = random((2048, 2048))
    model = text_model(BRANCHES.replace("8", "2048"), w=large, v=large + 1)
    fixed = rewrite(hoist, model, finding(*NAMES), tmp_path)
    before, after = taken(tmp_path / "original.onnx"), taken(fixed)
    # Of each weight, a stale copy and an original beside the packed one.
    assert before.steady_bytes - after.steady_bytes > 50 * MIB
    assert before.peak_bytes - after.peak_bytes > 20 * MIB


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.20.1", "1.24.4"])
def test_older_runtimes(tmp_path: Path, version: str) -> None:
    fixed = rewrite(hoist, text_model(BRANCHES, w=W, v=V), finding(*NAMES), tmp_path)
    assert runs_on(version, fixed)
