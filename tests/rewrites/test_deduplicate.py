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
from tests.model_text import Array, declared, random, text_model
from tests.rewrites.rewriting import refusal, rewrite, rewritten, stored

W = random((8, 8))
MAIN = """g (float[n, 8] x) => (float[n, 8] y) <float[8, 8] a, float[8, 8] b> {
    z = MatMul(x, a)  y = MatMul(z, b) }"""
BRANCHES = """g (float[n, 8] x, bool c) => (float[n, k] y) {
    y = If (c) <
        then_branch = t () => (float[n, k] ty) <float[8, 8] v> { ty = MatMul(x, v) },
        else_branch = e () => (float[n, k] ey) { u = Constant() v_ = MatMul(x, u) ey = Neg(v_) }
    > }"""
MAIN_AND_BRANCHES = BRANCHES.replace("y = If", "x2 = MatMul(x, w) y_ = Neg(x2) y = If").replace(
    "(float[n, k] y) {", "(float[n, k] y, float[n, 8] y_) <float[8, 8] w> {"
)
HIDDEN = """g (float[n, 8] x, bool c) => (float[n, k] y) <float[8, 8] a> {
    z = MatMul(x, a)
    y = If (c) <
        then_branch = t () => (float[n, k] ty) <float[8, 8] hidden, float[8, 8] v> {
            r = MatMul(z, v)  ty = MatMul(r, hidden) },
        else_branch = e () => (float[n, k] ey) { ey = Neg(z) }
    > }"""
SEVERAL_DEPTHS = """g (float[n, 8] x, bool c, int64 trips) => (float[n, k] y) {
    true = Constant <value = bool {1}> ()
    y = Loop (trips, true, x) <body = b (int64 i, bool keep, float[n, k] s) =>
        (bool keep_, float[n, k] s_) <float[8, 8] outer> {
        keep_ = Identity(keep)
        m = MatMul(s, outer)
        s_ = If (c) <
            then_branch = t () => (float[n, k] ty) { inner = Constant() ty = MatMul(m, inner) },
            else_branch = e () => (float[n, k] ey) { ey = Neg(m) }
        > } > }"""
FUNCTION = """g (float[n, 8] x) => (float[n, 8] y) { y = local.twice(x) }
    <domain: "local", opset_import: ["" : 17]> twice (x) => (y) {
        a = Constant() b = Constant() z = MatMul(x, a) y = MatMul(z, b) }"""


def of_main(text: str = MAIN, ir: int = 10, **changes: Array) -> ModelProto:
    """Return the model of two equal weights, with something else about them."""
    return text_model(text, ir, **{"a": W, "b": W, **changes})


def listed(ir: int = 10) -> ModelProto:
    """Return the model of two equal weights that are inputs, too."""
    model = of_main(MAIN, ir)
    for name in "ab":
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 8]))
    return model


def annotated() -> ModelProto:
    model = of_main()
    annotation = model.graph.quantization_annotation.add(tensor_name="z")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="b")
    return model


BOTH = "If_0/then_branch/v If_0/else_branch/u"


@pytest.mark.parametrize(
    ("model", "names", "left"),
    [
        (of_main(), "a b", "a"),
        (text_model(BRANCHES, v=W, u=W), BOTH, "v"),
        (
            text_model(MAIN_AND_BRANCHES, w=W, v=W, u=W),
            "w If_2/then_branch/v If_2/else_branch/u",
            "w",
        ),
        (
            text_model(BRANCHES.replace("u = ", "v = ").replace("x, u", "x, v"), v=W),
            "If_0/then_branch/v If_0/else_branch/v",
            "v",
        ),
        (of_main(MAIN.replace("y) <", "y, float[8, 8] b) <")), "a b", "b"),
        (listed(3), "a b", "a"),
        (annotated(), "a b", "b"),
    ],
    ids=["main", "branches", "both", "one name", "an output", "old inputs", "annotated"],
)
def test_one_is_kept(tmp_path: Path, model: ModelProto, names: str, left: str) -> None:
    fixed = rewritten(deduplicate, model, names, tmp_path)
    assert [one.name for one in stored(fixed)] == [left]
    assert [one.name for one in onnx.load(fixed).graph.initializer] == [left]


def test_inputs_of_old_models_go_with_their_weights(tmp_path: Path) -> None:
    fixed = rewrite(deduplicate, listed(3), "a b", tmp_path)
    assert [one.name for one in onnx.load(fixed).graph.input] == ["x", "a"]


def test_weights_at_several_depths(tmp_path: Path) -> None:
    model = text_model(SEVERAL_DEPTHS, outer=W, inner=W)
    names = "Loop_1/body/outer Loop_1/body/If_2/then_branch/inner"
    # A weight of the main graph is not packed two levels in: the kernel adds in another order.
    fixed = rewritten(deduplicate, model, names, tmp_path, bound=Bound.reordered(8).relative)
    assert [one.name for one in onnx.load(fixed).graph.initializer] == ["outer"]
    assert len(stored(fixed)) == 1


def test_groups_of_a_common_finding(tmp_path: Path) -> None:
    names = "abcdef"
    chain = "".join(f" x{n + 1} = MatMul(x{n}, {name})" for n, name in enumerate(names))
    declared = ", ".join(f"float[8, 8] {name}" for name in names)
    text = f"g (float[n, 8] x0) => (float[n, 8] x6) <{declared}> {{ {chain} }}"
    other = W.copy()
    other[-1, -1] += 1
    model = text_model(text, a=W, b=other, c=W, d=other, e=W, f=W + 1)
    fixed = rewritten(deduplicate, model, " ".join(names), tmp_path)
    assert [one.name for one in stored(fixed)] == ["a", "b", "f"]


def test_large_weights_stay_in_the_file_that_they_are_in(tmp_path: Path) -> None:
    large = random((8, 8 << 10))
    text = """g (float[n, 8] x) => (float[n, m] y) <float[8, 8192] a, float[8, 8192] b> {
        s = MatMul(x, a)  t = MatMul(x, b)  y = Sub(s, t) }"""
    path = tmp_path / "original.onnx"
    model = text_model(text, a=large, b=large)
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    fixed = rewritten(deduplicate, path, "a b", tmp_path, storage="external")
    assert fixed.with_name("rewritten.onnx.data").stat().st_size == large.nbytes


def last_byte_changed() -> Array:
    other = W.copy()
    other.view(np.uint8)[-1, -1] ^= 1
    return other


def hiding() -> ModelProto:
    """Return a model whose branch has another weight of the main graph's name."""
    model = text_model(HIDDEN, a=W, v=W)
    branch = model.graph.node[1].attribute[0].g
    branch.initializer[0].name = branch.node[1].input[1] = "a"
    return model


CAST = MAIN.replace("y = M", "w = Cast<to=1>(b) y = M")
OUTPUTS = MAIN.replace("y) <", "y, float[8, 8] a, float[8, 8] b) <")
IN_FUNCTION = "local::twice/a local::twice/b"


@pytest.mark.parametrize(
    ("model", "names", "reason"),
    [
        (of_main(b=last_byte_changed()), "a b", "no two of them are the same"),
        (of_main(CAST, b=W.view(np.int32)), "a b", "no two of them are the same"),
        (of_main(b=W.reshape(1, 8, 8)), "a b", "no two of them are the same"),
        (listed(), "a b", "it is an input as well, which callers may set"),
        (of_main(OUTPUTS), "a b", "it is an output of its graph"),
        (hiding(), "a If_1/then_branch/v", "of its name"),
        (text_model(FUNCTION, a=W, b=W), IN_FUNCTION, "function"),
        (text_model(BRANCHES, 3, v=W, u=W), BOTH, "version 4"),
    ],
    ids=["bytes", "type", "shape", "inputs", "outputs", "hidden", "function", "old branches"],
)
def test_near_misses(tmp_path: Path, model: ModelProto, names: str, reason: str) -> None:
    assert reason in refusal(deduplicate, model, names, tmp_path)


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
    if len(before) == len(arrays):
        refusal(deduplicate, model, names, tmp_path)
        return
    fixed = rewritten(deduplicate, model, names, tmp_path)
    kept = [one for one in onnx.load(fixed).graph.initializer if one.name.startswith("w")]
    assert len({(one.data_type, one.raw_data) for one in kept}) == len(kept)


def _scattered(arrays: list[Array], places: list[str]) -> tuple[ModelProto, str]:
    """Return a model that gives out each array, those of branches where the branch is taken."""
    owned: dict[str, dict[str, Array]] = {"main": {}, "then": {}, "else": {}}
    nodes: dict[str, list[str]] = {"main": [], "then": ["t = Constant<value_float = 0.0>()"],
                                   "else": ["e = Constant<value_float = 0.0>()"]}  # fmt: skip
    sums: dict[str, list[str]] = {"main": [], "then": ["t"], "else": ["e"]}
    names, outputs = [], {}
    for number, (array, place) in enumerate(zip(arrays, places, strict=False)):
        name, graph = f"w{number}", "main" if place == "constant" else place
        if place == "constant":
            nodes[graph].append(f"{name} = Constant()")
        else:
            owned[graph][name] = array
        cast = f"f{number} = Cast<to = 1>({name})"
        nodes[graph].append(f"{cast} y{number} = ReduceSum<keepdims = 0>(f{number})")
        sums[graph].append(f"y{number}")
        if graph == "main":
            nodes[graph].append(f"o{number} = Identity({name})")
            outputs[f"o{number}"] = array
        names.append(name if graph == "main" else f"If_last/{graph}_branch/{name}")
    bodies = [
        f"{key}_branch = {key}_ () => (float total_{key}) <{declared(**owned[key])}>"
        f" {{ {' '.join(nodes[key])} total_{key} = Sum({', '.join(sums[key])}) }}"
        for key in ("then", "else")
    ]
    model = text_model(
        f"g (bool c) => (float total{', ' if outputs else ''}{declared(**outputs)})"
        f" <{declared(**owned['main'])}> {{ {' '.join(nodes['main'])}"
        f" [If_last] total = If (c) <{', '.join(bodies)}> }}",
        **{f"w{number}": array for number, array in enumerate(arrays)},
    )
    return model, " ".join(names)
