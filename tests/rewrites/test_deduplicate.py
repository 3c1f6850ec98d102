"""Identical weights become one; what only looks identical, or has to stay, is left alone."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

from memdiag.rewrites.catalog import deduplicate
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

W = random((8, 8))
X = {rows: random((rows, 8), rows) for rows in (1, 5)}
MAIN = """g (float[n, 8] x) => (float[n, 8] y) <float[8, 8] a, float[8, 8] b> {
    z = MatMul(x, a)  y = MatMul(z, b) }"""
BRANCHES = """g (float[n, 8] x, bool c) => (float[n, k] y) {
    y = If (c) <
        then_branch = t () => (float[n, k] ty) <float[8, 8] v> { ty = MatMul(x, v) },
        else_branch = e () => (float[n, k] ey) { u = Constant() v_ = MatMul(x, u) ey = Neg(v_) }
    > }"""


def test_two_weights_of_one_graph(tmp_path: Path) -> None:
    model = text_model(MAIN, a=W, b=W)
    fixed = rewrite(deduplicate, model, finding("a", "b"), tmp_path)
    assert [one.name for one in stored(fixed)] == ["a"]
    assert_same_outputs(tmp_path / "original.onnx", fixed, *({"x": x} for x in X.values()))


def test_weights_of_the_main_graph_and_of_branches(tmp_path: Path) -> None:
    model = text_model(
        BRANCHES.replace("y = If", "x2 = MatMul(x, w) y_ = Neg(x2) y = If").replace(
            "(float[n, k] y) {", "(float[n, k] y, float[n, 8] y_) <float[8, 8] w> {"
        ),
        w=W,
        v=W,
        u=W,
    )
    names = ("w", "If_3/then_branch/v", "If_3/else_branch/u")
    model.graph.node[2].name = "If_3"
    fixed = rewrite(deduplicate, model, finding(*names), tmp_path)
    assert [one.name for one in stored(fixed)] == ["w"]
    assert_same_outputs(tmp_path / "original.onnx", fixed, *branch_feeds(X.values()))


def test_weights_of_branches_move_to_the_main_graph(tmp_path: Path) -> None:
    model = text_model(BRANCHES, v=W, u=W)
    names = ("If_0/then_branch/v", "If_0/else_branch/u")
    fixed = rewrite(deduplicate, model, finding(*names), tmp_path)
    assert [one.name for one in onnx.load(fixed).graph.initializer] == ["v"]
    assert len(stored(fixed)) == 1
    assert_same_outputs(tmp_path / "original.onnx", fixed, *branch_feeds(X.values()))


def test_the_same_name_in_both_branches(tmp_path: Path) -> None:
    model = text_model(BRANCHES.replace("u = ", "v = ").replace("x, u", "x, v"), v=W)
    names = ("If_0/then_branch/v", "If_0/else_branch/v")
    fixed = rewrite(deduplicate, model, finding(*names), tmp_path)
    assert [one.name for one in stored(fixed)] == ["v"]
    assert_same_outputs(tmp_path / "original.onnx", fixed, *branch_feeds(X.values()))


def test_a_name_that_a_branch_hides(tmp_path: Path) -> None:
    model = text_model(
        """g (float[n, 8] x, bool c) => (float[n, k] y) <float[8, 8] a> {
        z = MatMul(x, a)
        y = If (c) <
            then_branch = t () => (float[n, k] ty) <float[8, 8] hidden, float[8, 8] v> {
                r = MatMul(z, v)  ty = MatMul(r, hidden) },
            else_branch = e () => (float[n, k] ey) { ey = Neg(z) }
        > }""",
        a=W,
        v=W,
        hidden=W + 1,
    )
    branch = model.graph.node[1].attribute[0].g
    branch.initializer[0].name = branch.node[1].input[1] = "a"
    of = finding("a", "If_1/then_branch/v")
    assert "of its name" in refusal(deduplicate, model, of, tmp_path)


def test_weights_at_several_depths(tmp_path: Path) -> None:
    model = text_model(
        """g (float[n, 8] x, bool c, int64 trips) => (float[n, k] y) {
        true = Constant <value = bool {1}> ()
        y = Loop (trips, true, x) <body = b (int64 i, bool keep, float[n, k] s) =>
            (bool keep_, float[n, k] s_) <float[8, 8] outer> {
            keep_ = Identity(keep)
            m = MatMul(s, outer)
            s_ = If (c) <
                then_branch = t () => (float[n, k] ty) { inner = Constant() ty = MatMul(m, inner) },
                else_branch = e () => (float[n, k] ey) { ey = Neg(m) }
            > } > }""",
        outer=W,
        inner=W,
    )
    names = ("Loop_1/body/outer", "Loop_1/body/If_2/then_branch/inner")
    fixed = rewrite(deduplicate, model, finding(*names), tmp_path)
    assert [one.name for one in onnx.load(fixed).graph.initializer] == ["outer"]
    assert len(stored(fixed)) == 1
    # A weight of the main graph is not packed two levels in: the kernel adds in another order.
    for one in branch_feeds(X.values()):
        for trips in (0, 3):
            feeds = {**one, "trips": np.array(trips)}
            found = largest_difference(tmp_path / "original.onnx", fixed, feeds, tmp_path)
            assert found <= Bound.reordered(8).relative


def test_a_weight_that_is_an_output_is_the_one_that_is_kept(tmp_path: Path) -> None:
    model = text_model(MAIN.replace("y) <", "y, float[8, 8] b) <"), a=W, b=W)
    fixed = rewrite(deduplicate, model, finding("a", "b"), tmp_path)
    assert [one.name for one in stored(fixed)] == ["b"]
    assert_same_outputs(tmp_path / "original.onnx", fixed, {"x": X[5]})


def test_groups_of_a_common_finding(tmp_path: Path) -> None:
    names = "abcdef"
    chain = "".join(f" x{n + 1} = MatMul(x{n}, {name})" for n, name in enumerate(names))
    declared = ", ".join(f"float[8, 8] {name}" for name in names)
    text = f"g (float[n, 8] x0) => (float[n, 8] x6) <{declared}> {{ {chain} }}"
    other = W.copy()
    other[-1, -1] += 1
    model = text_model(text, a=W, b=other, c=W, d=other, e=W, f=W + 1)
    fixed = rewrite(deduplicate, model, finding(*names), tmp_path)
    assert [one.name for one in stored(fixed)] == ["a", "b", "f"]
    assert_same_outputs(tmp_path / "original.onnx", fixed, {"x0": X[5]})


def test_inputs_before_version_four_are_constants(tmp_path: Path) -> None:
    model = text_model(MAIN, 3, a=W, b=W)
    for name in "ab":
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 8]))
    fixed = rewrite(deduplicate, model, finding("a", "b"), tmp_path)
    assert [one.name for one in onnx.load(fixed).graph.input] == ["x", "a"]
    assert_same_outputs(tmp_path / "original.onnx", fixed, {"x": X[5]})


def test_large_weights_stay_in_the_file_that_they_are_in(tmp_path: Path) -> None:
    large = random((8, 8 << 10))
    text = """g (float[n, 8] x) => (float[n, m] y) <float[8, 8192] a, float[8, 8192] b> {
        s = MatMul(x, a)  t = MatMul(x, b)  y = Sub(s, t) }"""
    original = tmp_path / "original.onnx"
    onnx.save(
        text_model(text, a=large, b=large),
        original,
        save_as_external_data=True,
        location="weights",
        size_threshold=0,
    )
    fixed = rewrite(deduplicate, original, finding("a", "b"), tmp_path, storage="external")
    assert fixed.with_name("rewritten.onnx.data").stat().st_size == large.nbytes
    assert_same_outputs(original, fixed, {"x": X[5]})


def _changed(**changes: Any) -> ModelProto:
    """Return the model of two weights, with something else about the second."""
    return text_model(changes.pop("text", MAIN), **{"a": W, "b": W, **changes})


def _last_byte() -> Array:
    other = W.copy()
    other.view(np.uint8)[-1, -1] ^= 1
    return other


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (_changed(b=_last_byte()), "no two of them are the same"),
        (_changed(b=W.view(np.int32), text=MAIN.replace("y = M", "w = Cast<to=1>(b) y = M")), ""),
        (_changed(b=W.reshape(1, 8, 8)), "no two of them are the same"),
        (
            _changed(text=MAIN.replace("x) =>", "x, float[8, 8] a, float[8, 8] b) =>")),
            "it is an input as well, which callers may set",
        ),
        (
            _changed(text=MAIN.replace("y) <", "y, float[8, 8] a, float[8, 8] b) <")),
            "it is an output of its graph",
        ),
    ],
    ids=["bytes", "type", "shape", "inputs", "outputs"],
)
def test_near_misses(tmp_path: Path, model: ModelProto, reason: str) -> None:
    for name in "ab":
        if name in {one.name for one in model.graph.input}:
            model.graph.initializer.append(tensor(W, name))
    message = refusal(deduplicate, model, finding("a", "b"), tmp_path)
    assert message == (reason or "no two of them are the same")


def test_constants_of_a_function_are_left_alone(tmp_path: Path) -> None:
    model = text_model(
        """g (float[n, 8] x) => (float[n, 8] y) { y = local.twice(x) }
        <domain: "local", opset_import: ["" : 17]> twice (x) => (y) {
            a = Constant() b = Constant() z = MatMul(x, a) y = MatMul(z, b) }"""
    )
    for node in model.functions[0].node[:2]:
        node.attribute.append(helper.make_attribute("value", tensor(W, "")))
    of = finding("local::twice/a", "local::twice/b")
    assert "function" in refusal(deduplicate, model, of, tmp_path)


def test_a_name_in_an_annotation_is_not_dropped(tmp_path: Path) -> None:
    model = text_model(MAIN, a=W, b=W)
    annotation = model.graph.quantization_annotation.add(tensor_name="z")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="b")
    fixed = rewrite(deduplicate, model, finding("a", "b"), tmp_path)
    assert [one.name for one in stored(fixed)] == ["b"]


def test_branches_before_version_four_have_no_place_to_go(tmp_path: Path) -> None:
    model = text_model(BRANCHES, 3, v=W, u=W)
    of = finding("If_0/then_branch/v", "If_0/else_branch/u")
    assert "version 4" in refusal(deduplicate, model, of, tmp_path)


DTYPES = (np.float32, np.float16, np.float64, np.int8, np.int32, np.int64, np.bool_)


@given(
    shape=st.lists(st.integers(1, 5), max_size=4),
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=2, max_size=4),
    seeds=st.lists(st.integers(0, 1), min_size=4, max_size=4),
    places=st.lists(st.sampled_from(("main", "constant", "then", "else")), min_size=4, max_size=4),
)
def test_any_shapes_types_and_places(
    tmp_path: Path, shape: list[int], dtypes: list[Any], seeds: list[int], places: list[str]
) -> None:
    arrays = [random(shape, seed, dtype) for dtype, seed in zip(dtypes, seeds, strict=False)]
    model, names = _scattered(arrays, places)
    before = {(one.dtype.name, one.tobytes()) for one in arrays}
    of = finding(*names)
    if len(before) == len(arrays):
        refusal(deduplicate, model, of, tmp_path)
        return
    fixed = rewrite(deduplicate, model, of, tmp_path)
    kept = [one for one in onnx.load(fixed).graph.initializer if one.name.startswith("w")]
    assert len({(one.data_type, one.raw_data) for one in kept}) == len(kept)
    for c in (True, False):
        assert_same_outputs(tmp_path / "original.onnx", fixed, {"c": np.array(c)})


def _scattered(arrays: list[Array], places: list[str]) -> tuple[ModelProto, list[str]]:
    """Return a model that gives out each array, those of branches where the branch is taken."""
    made: dict[str, tuple[list[Any], list[Any]]] = {
        place: ([], []) for place in ("main", "then", "else")
    }
    names, outputs = [], []
    for number, (array, place) in enumerate(zip(arrays, places, strict=False)):
        name = f"w{number}"
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        nodes, weights = made["main" if place == "constant" else place]
        if place == "constant":
            nodes.append(helper.make_node("Constant", [], [name], value=tensor(array, "")))
        else:
            weights.append(tensor(array, name))
        nodes.append(helper.make_node("Shape", [name], [f"s{number}"]))
        nodes.append(helper.make_node("Cast", [name], [f"f{number}"], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("ReduceSum", [f"f{number}"], [f"y{number}"], keepdims=0))
        names.append(f"If_last/{place}_branch/{name}" if place in ("then", "else") else name)
        if place in ("main", "constant"):
            nodes.append(helper.make_node("Identity", [name], [f"o{number}"]))
            outputs.append(helper.make_tensor_value_info(f"o{number}", dtype, array.shape))
    bodies = {}
    for key in ("then", "else"):
        nodes, weights = made[key]
        sums = [node.output[0] for node in nodes if node.op_type == "ReduceSum"]
        zero = helper.make_node("Constant", [], [f"zero_{key}"], value_float=0.0)
        total = helper.make_node("Sum", [f"zero_{key}", *sums], [f"total_{key}"])
        output = helper.make_tensor_value_info(f"total_{key}", TensorProto.FLOAT, [])
        bodies[f"{key}_branch"] = helper.make_graph(
            [*nodes, zero, total], key, [], [output], weights
        )
    nodes, weights = made["main"]
    nodes.append(helper.make_node("If", ["c"], ["total"], name="If_last", **bodies))
    outputs.append(helper.make_tensor_value_info("total", TensorProto.FLOAT, []))
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph(nodes, "g", [condition], outputs, weights)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets), names


@pytest.mark.slow
def test_the_memory_that_it_spares(tmp_path: Path) -> None:
    large = random((4096, 2048))
    text = """g (int64[n] rows, int64[n] other) => (float[n, m] y)
        <float[4096, 2048] a, float[4096, 2048] b> {
        s = Gather(a, rows)  t = Gather(b, other)  y = Sub(s, t) }"""
    fixed = rewrite(deduplicate, text_model(text, a=large, b=large), finding("a", "b"), tmp_path)
    before, after = taken(tmp_path / "original.onnx"), taken(fixed)
    assert before.steady_bytes - after.steady_bytes > 30 << 20
    assert before.peak_bytes - after.peak_bytes > 30 << 20


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.20.1", "1.24.4"])
def test_older_runtimes(tmp_path: Path, version: str) -> None:
    names = ("If_0/then_branch/v", "If_0/else_branch/u")
    fixed = rewrite(deduplicate, text_model(BRANCHES, v=W, u=W), finding(*names), tmp_path)
    assert runs_on(version, fixed)
