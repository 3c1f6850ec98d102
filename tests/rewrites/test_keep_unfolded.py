from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

from memdiag.records.finding import Finding
from memdiag.rewrites.catalog import keep_unfolded
from tests.rewrites.rewriting import (
    assert_same_outputs,
    finding,
    random,
    refusal,
    rewrite,
    runs_on,
    saved,
    taken,
    text_model,
)

MIB = 1 << 20
ROW = random((1, 6))


def rewritten(model: ModelProto, of: Finding, folder: Path) -> Path:
    """Return the rewritten model; what it shows as inputs and outputs is as before."""
    return rewrite(keep_unfolded, model, of, folder, overridable=True)


def session(path: Path, optimized: Path | None = None) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def left(path: Path, folder: Path) -> set[str]:
    """Return the operators that the runtime leaves of a model, subgraphs included."""
    target = folder / "optimized.onnx"
    session(path, target)
    found = set()
    pending = [onnx.load(target).graph]
    while pending:
        for node in pending.pop().node:
            found.add(node.op_type)
            pending += [one.g for one in node.attribute if one.HasField("g")]
    return found


def free(path: Path) -> list[str]:
    """Return the initializers that a caller could set."""
    return [one.name for one in session(path).get_overridable_initializers()]


BODIES = {
    "Expand": "big = Expand(row, shape)",
    "Tile": "big = Tile(row, times)",
    "ConstantOfShape": "big = ConstantOfShape<value = float[1] {2}>(shape)",
    "Range": "r = Range(zero, limit, one) big = Reshape(r, shape)",
    "Constant": "k = Constant<value = int64[2] {5, 6}>() big = Expand(row, k)",
    "Cast": "c = Cast<to = 11>(row) d = Expand(c, shape) big = Cast<to = 1>(d)",
    "Gather": "big = Gather(row, many)",
    "Concat": "big = Concat<axis = 0>(row, row, row, row, row)",
}


def model(body: str) -> ModelProto:
    """Return a model that adds to its input something large that it makes of constants."""
    return text_model(
        "g (float[n, 6] x) => (float[5, 6] y) <float[1, 6] row, int64[2] shape, int64[2] times,"
        " float zero, float limit, float one, int64[5] many>"
        f" {{ {body} y = Add(x, big) }}",
        row=ROW,
        shape=np.array([5, 6]),
        times=np.array([5, 1]),
        zero=np.array(0, np.float32),
        limit=np.array(30, np.float32),
        one=np.array(1, np.float32),
        many=np.zeros(5, np.int64),
    )


@pytest.mark.parametrize("operator", BODIES)
def test_a_node_of_constants_is_not_folded(tmp_path: Path, operator: str) -> None:
    original = model(BODIES[operator])
    name = "Constant" if operator == "Constant" else operator
    index = [node.op_type for node in original.graph.node].index(
        "Expand" if name in ("Constant", "Cast") else name
    )
    kept = original.graph.node[index].op_type
    assert kept not in left(saved(original, tmp_path), tmp_path)
    fixed = rewritten(original, finding(nodes=(f"{kept}_{index}",)), tmp_path)
    assert kept in left(fixed, tmp_path)
    assert len(free(fixed)) == 1
    for rows in (1, 5):
        assert_same_outputs(tmp_path / "original.onnx", fixed, {"x": random((rows, 6), 1)})


def test_values_are_preferred_to_shapes(tmp_path: Path) -> None:
    fixed = rewritten(model(BODIES["Expand"]), finding(nodes=("Expand_0",)), tmp_path)
    assert free(fixed) == ["row"]
    (kept,) = [one for one in onnx.load(fixed).graph.value_info if one.name == "big"]
    assert [one.dim_value for one in kept.type.tensor_type.shape.dim] == [5, 6]


def test_others_that_read_the_constant_still_have_it(tmp_path: Path) -> None:
    original = model("big = Expand(row, shape) s = Softmax(row)")
    original.graph.node[-1].input[0] = "s"
    original.graph.node.insert(0, original.graph.node.pop(1))
    fixed = rewritten(original, finding(nodes=("Expand_1",)), tmp_path)
    assert free(fixed) == ["row_unfolded"]
    assert "Softmax" not in left(fixed, tmp_path)
    assert_same_outputs(tmp_path / "original.onnx", fixed, {"x": random((5, 6))})


def test_each_node_has_a_constant_of_its_own(tmp_path: Path) -> None:
    original = text_model(
        "g (float[n, 6] x) => (float[5, 6] y) <float[1, 6] row, int64[2] shape>"
        " { a = Expand(row, shape) s = Sin(row) b = Expand(s, shape) h = Add(x, a) y = Mul(h, b) }",
        row=ROW,
        shape=np.array([5, 6]),
    )
    fixed = rewritten(original, finding(nodes=("Expand_0", "Expand_2")), tmp_path)
    assert free(fixed) == ["row_unfolded", "shape_unfolded"]
    assert_same_outputs(tmp_path / "original.onnx", fixed, {"x": random((5, 6))})


def test_in_branches(tmp_path: Path) -> None:
    original = text_model(
        """g (float[n, 6] x, bool c) => (float[5, 6] y) <float[1, 6] row, int64[2] shape> {
        y = If (c) <
            then_branch = t () => (float[5, 6] ty) {
                big = Expand(row, shape) ty = Add(x, big) },
            else_branch = e () => (float[5, 6] ey) <float[1, 6] own, int64[2] to> {
                big = Expand(own, to) ey = Sub(x, big) }
        > }""",
        row=ROW,
        shape=np.array([5, 6]),
        own=-ROW,
        to=np.array([5, 6]),
    )
    of = finding(nodes=("If_0/then_branch/Expand_0", "If_0/else_branch/Expand_0"))
    assert "Expand" not in left(saved(original, tmp_path), tmp_path)
    fixed = rewritten(original, of, tmp_path)
    assert "Expand" in left(fixed, tmp_path)
    assert free(fixed) == ["row", "own_unfolded"]
    for c in (True, False):
        feeds = {"x": random((5, 6)), "c": np.array(c)}
        assert_same_outputs(tmp_path / "original.onnx", fixed, feeds)


@given(
    small=st.lists(st.sampled_from([1, 2]), min_size=1, max_size=4),
    times=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    dtype=st.sampled_from([np.float32, np.int64, np.float16, np.bool_]),
    operator=st.sampled_from(["Expand", "Tile"]),
)
def test_any_shape_and_type(
    tmp_path: Path, small: list[int], times: list[int], dtype: Any, operator: str
) -> None:
    if operator == "Expand":
        repeats = [size if size > 1 else many for size, many in zip(small, times, strict=False)]
    else:
        repeats = times[: len(small)]
    original = text_model(
        f"g (int64[1] i) => (y) <int64[{len(small)}] repeats> {{ big = {operator}(row, repeats)"
        " y = Gather<axis = 0>(big, i) }",
        repeats=np.array(repeats),
    )
    row = random(small, 0, dtype)
    original.graph.initializer.append(onnx.numpy_helper.from_array(row, "row"))
    kind = original.graph.output[0].type.tensor_type
    kind.elem_type = helper.np_dtype_to_tensor_dtype(row.dtype)
    whole = np.tile(row, repeats) if operator == "Tile" else np.broadcast_to(row, repeats)
    for size in (1, *whole.shape[1:]):
        kind.shape.dim.add(dim_value=size)
    fixed = rewritten(original, finding(nodes=(f"{operator}_0",)), tmp_path)
    assert_same_outputs(tmp_path / "original.onnx", fixed, {"i": np.array([0])})


def old() -> ModelProto:
    found = model(BODIES["Expand"])
    found.ir_version = 3
    for one in found.graph.initializer:
        found.graph.input.append(
            helper.make_tensor_value_info(one.name, one.data_type, list(one.dims))
        )
    return found


INSIDE = """g (float[n, 6] x) => (float[5, 6] y) { y = local.f(x) }
    <domain: "local", opset_import: ["" : 17]> f (a) => (b) {
        k = Constant<value = int64[2] {5, 6}>() r = Constant<value = float[1, 1] {2}>()
        big = Expand(r, k) b = Add(a, big) }"""
SHAPES = """g (float[5, 6] x) => (float[5, 6] y) {
    s = Shape(x) big = ConstantOfShape(s) y = Add(x, big) }"""
INPUT = """g (float[n, 6] x, int64[2] s) => (float[5, 6] y) {
    r = Constant<value = float[1, 1] {2}>() big = Expand(r, s) y = Add(x, big) }"""


@pytest.mark.parametrize(
    ("original", "node", "message"),
    [
        (old(), "Expand_0", "IR version 3"),
        (text_model(INSIDE), "local::f/Expand_2", "in a function"),
        (text_model(SHAPES), "ConstantOfShape_1", "shapes alone"),
        (text_model(INPUT), "Expand_1", "not computed from constants alone"),
        (model(BODIES["Expand"]), "Add_1", "not computed from constants alone"),
        (model(BODIES["Expand"]), "gone", "was removed"),
    ],
)
def test_what_cannot_be_kept(tmp_path: Path, original: ModelProto, node: str, message: str) -> None:
    assert message in refusal(keep_unfolded, original, finding(nodes=(node,)), tmp_path)


def test_a_finding_of_no_node(tmp_path: Path) -> None:
    message = refusal(keep_unfolded, model(BODIES["Expand"]), finding("row"), tmp_path)
    assert message == "it names no node"


def test_a_large_weight_is_not_stored_twice(tmp_path: Path) -> None:
    original = text_model(
        "g (int64[n] i) => (float[n, 1024] y, float[n, 512] z) <float[1024, 512] w>"
        " { big = Concat<axis = 1>(w, w) y = Gather(big, i) z = Gather(w, i) }",
        w=random((1024, 512)),
    )
    message = refusal(keep_unfolded, original, finding(nodes=("Concat_0",)), tmp_path)
    assert message == "its constant is a weight that others read as well"


def tables(count: int, rows: int) -> ModelProto:
    """Return a model that looks up rows of several tables, each made of one row."""
    nodes, weights = [], {"shape": np.array([rows, 1024])}
    for index in range(count):
        nodes.append(f"t{index} = Expand(row{index}, shape) g{index} = Gather(t{index}, i)")
        weights[f"row{index}"] = random((1, 1024), index)
    declared = ", ".join(f"float[1, 1024] row{index}" for index in range(count))
    gathered = ", ".join(f"g{index}" for index in range(count))
    return text_model(
        f"g (int64[n] i) => (float[n, 1024] y) <int64[2] shape, {declared}>"
        f" {{ {' '.join(nodes)} y = Sum({gathered}) }}",
        **weights,
    )


@pytest.mark.slow
def test_one_result_takes_the_place_of_the_other(tmp_path: Path) -> None:
    original = tables(8, 2048)  # 8 of 8 MiB
    names = [f"{node.op_type}_{at}" for at, node in enumerate(original.graph.node)]
    of = finding(nodes=tuple(name for name in names if name.startswith("Expand")))
    fixed = rewritten(original, of, tmp_path)
    before, after = taken(tmp_path / "original.onnx"), taken(fixed)
    assert before.steady_bytes > 64 * MIB
    assert after.steady_bytes < before.steady_bytes - 24 * MIB
    assert after.peak_bytes < before.peak_bytes - 24 * MIB


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.20.1", "1.31.1"])
def test_it_runs_on_the_oldest_and_newest_runtime(tmp_path: Path, version: str) -> None:
    original = tables(2, 8)
    fixed = rewritten(original, finding(nodes=("Expand_0", "Expand_2")), tmp_path)
    assert runs_on(version, fixed)
    assert onnx.load(fixed).graph.input[1].type.tensor_type.elem_type == TensorProto.FLOAT
