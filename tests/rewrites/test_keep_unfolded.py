from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, helper

from memdiag.rewrites.catalog import keep_unfolded
from tests.model_text import declared, random, text_model
from tests.rewrites.rewriting import finding, operators, overridable, refusal, saved
from tests.rewrites.rewriting import rewritten as rewritten_by

CONSTANTS = {
    "row": random((1, 6)),
    "shape": np.array([5, 6]),
    "times": np.array([5, 1]),
    "zero": np.array(0, np.float32),
    "limit": np.array(30, np.float32),
    "one": np.array(1, np.float32),
    "many": np.zeros(5, np.int64),
}


def rewritten(model: ModelProto, nodes: str, folder: Path, *feeds: Any) -> Path:
    """Return the model in which `nodes` are kept; what it shows as inputs and outputs is as before.

    The constant of each node becomes an initializer that callers could set.
    """
    of = finding(nodes=nodes.split())
    return rewritten_by(keep_unfolded, model, of, folder, *feeds, overridable=True)


def left(path: Path, folder: Path) -> list[str]:
    """Return the operators that the runtime leaves of a model, subgraphs included."""
    target = folder / "optimized.onnx"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(target)
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return operators(target)


def model(body: str) -> ModelProto:
    """Return a model that adds to its input something large that it makes of constants."""
    return text_model(
        f"g (float[n, 6] x) => (float[5, 6] y) <{declared(**CONSTANTS)}>"
        f" {{ {body} y = Add(x, big) }}",
        **CONSTANTS,
    )


EXPANDED = "big = Expand(row, shape)"
BODIES = {
    "Expand_0": EXPANDED,
    "Tile_0": "big = Tile(row, times)",
    "ConstantOfShape_0": "big = ConstantOfShape<value = float[1] {2}>(shape)",
    "Range_0": "r = Range(zero, limit, one) big = Reshape(r, shape)",
    "Expand_1": "k = Constant<value = int64[2] {5, 6}>() big = Expand(row, k)",
    "Expand_1 of a Cast": "c = Cast<to = 11>(row) d = Expand(c, shape) big = Cast<to = 1>(d)",
    "Gather_0": "big = Gather(row, many)",
    "Concat_0": "big = Concat<axis = 0>(row, row, row, row, row)",
}


@pytest.mark.parametrize("node", BODIES)
def test_a_node_of_constants_is_not_folded(tmp_path: Path, node: str) -> None:
    original = model(BODIES[node])
    operator = node.partition("_")[0]
    assert operator not in left(saved(original, tmp_path), tmp_path)
    fixed = rewritten(original, node.split()[0], tmp_path)
    assert operator in left(fixed, tmp_path)
    assert len(overridable(fixed)) == 1


def test_values_are_preferred_to_shapes(tmp_path: Path) -> None:
    fixed = rewritten(model(EXPANDED), "Expand_0", tmp_path)
    assert overridable(fixed) == ["row"]
    (kept,) = [one for one in onnx.load(fixed).graph.value_info if one.name == "big"]
    assert [one.dim_value for one in kept.type.tensor_type.shape.dim] == [5, 6]


def test_others_that_read_the_constant_still_have_it(tmp_path: Path) -> None:
    original = model("s = Softmax(row) big = Expand(row, shape)")
    original.graph.node[-1].input[0] = "s"
    fixed = rewritten(original, "Expand_1", tmp_path)
    assert overridable(fixed) == ["row_unfolded"]
    assert "Softmax" not in left(fixed, tmp_path)


def test_each_node_has_a_constant_of_its_own(tmp_path: Path) -> None:
    body = "a = Expand(row, shape) s = Sin(row) b = Expand(s, shape) big = Add(a, b)"
    fixed = rewritten(model(body), "Expand_0 Expand_2", tmp_path)
    assert overridable(fixed) == ["row_unfolded", "shape_unfolded"]


def test_in_branches(tmp_path: Path) -> None:
    original = text_model(
        """g (float[n, 6] x, bool c) => (float[5, 6] y) <float[1, 6] row, int64[2] shape> {
        y = If (c) <
            then_branch = t () => (float[5, 6] ty) {
                big = Expand(row, shape) ty = Add(x, big) },
            else_branch = e () => (float[5, 6] ey) <float[1, 6] own, int64[2] to> {
                big = Expand(own, to) ey = Sub(x, big) }
        > }""",
        shape=np.array([5, 6]),
        to=np.array([5, 6]),
    )
    assert "Expand" not in left(saved(original, tmp_path), tmp_path)
    nodes = "If_0/then_branch/Expand_0 If_0/else_branch/Expand_0"
    fixed = rewritten(original, nodes, tmp_path)
    assert "Expand" in left(fixed, tmp_path)
    assert overridable(fixed) == ["row", "own_unfolded"]


@given(
    small=st.lists(st.sampled_from([1, 2]), min_size=1, max_size=4),
    times=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    dtype=st.sampled_from([np.float32, np.int64, np.float16, np.bool_]),
    operator=st.sampled_from(["Expand", "Tile"]),
)
def test_any_shape_and_type(
    tmp_path: Path, small: list[int], times: list[int], dtype: Any, operator: str
) -> None:
    repeats = times[: len(small)]
    if operator == "Expand":
        repeats = [size if size > 1 else many for size, many in zip(small, times, strict=False)]
    row = random(small, 0, dtype)
    whole = np.tile(row, repeats) if operator == "Tile" else np.broadcast_to(row, repeats)
    original = text_model(
        f"g (int64[1] i) => ({declared(y=whole[:1])})"
        f" <{declared(row=row)}, int64[{len(whole.shape)}] repeats>"
        f" {{ big = {operator}(row, repeats) y = Gather<axis = 0>(big, i) }}",
        row=row,
        repeats=np.array(repeats),
    )
    rewritten(original, f"{operator}_0", tmp_path, {"i": np.array([0])})


def old() -> ModelProto:
    found = model(EXPANDED)
    found.ir_version = 3
    for one in found.graph.initializer:
        value = helper.make_tensor_value_info(one.name, one.data_type, list(one.dims))
        found.graph.input.append(value)
    return found


INSIDE = """g (float[n, 6] x) => (float[5, 6] y) { y = local.f(x) }
    <domain: "local", opset_import: ["" : 17]> f (a) => (b) {
        k = Constant<value = int64[2] {5, 6}>() r = Constant<value = float[1, 1] {2}>()
        big = Expand(r, k) b = Add(a, big) }"""
SHAPES = """g (float[5, 6] x) => (float[5, 6] y) {
    s = Shape(x) big = ConstantOfShape(s) y = Add(x, big) }"""
INPUT = """g (float[n, 6] x, int64[2] s) => (float[5, 6] y) {
    r = Constant<value = float[1, 1] {2}>() big = Expand(r, s) y = Add(x, big) }"""
LARGE = """g (int64[n] i) => (float[n, 1024] y, float[n, 512] z) <float[1024, 512] w> {
    big = Concat<axis = 1>(w, w) y = Gather(big, i) z = Gather(w, i) }"""


@pytest.mark.parametrize(
    ("original", "node", "message"),
    [
        (old(), "Expand_0", "IR version 3"),
        (text_model(INSIDE), "local::f/Expand_2", "in a function"),
        (text_model(SHAPES), "ConstantOfShape_1", "shapes alone"),
        (text_model(INPUT), "Expand_1", "not computed from constants alone"),
        (model(EXPANDED), "Add_1", "not computed from constants alone"),
        (model(EXPANDED), "gone", "was removed"),
        (model(EXPANDED), "", "it names no node"),
        (text_model(LARGE), "Concat_0", "its constant is a weight that others read as well"),
    ],
    ids=["old", "function", "shapes", "input", "other node", "gone", "no node", "large"],
)
def test_what_cannot_be_kept(tmp_path: Path, original: ModelProto, node: str, message: str) -> None:
    of = finding("row", nodes=node.split())
    assert message in refusal(keep_unfolded, original, of, tmp_path)
