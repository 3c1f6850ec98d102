from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto

from memdiag.rewrites.catalog import defer_expand
from tests.model_text import declared, random, text_model
from tests.rewrites.rewriting import (
    assert_same_outputs,
    finding,
    operators,
    refusal,
    rewrite,
    rewritten,
)

EXPANDED = "big = Expand(row, shape) y = Add(x, big)"
FILLED = "big = ConstantOfShape<value = float[1] {2}>(shape) y = Div(x, big)"
IN_FUNCTION = """g (float[5, 6] x) => (float[5, 6] y) { y = local.f(x) }
    <domain: "local", opset_import: ["" : 17]> f (a) => (b) {
        k = Constant<value = int64[2] {5, 6}>() big = ConstantOfShape(k) b = Add(a, big) }"""
CAST = """g (int64[n] i, bool c) => (float[n, 4] y, float[n, 4] z) { f = Cast<to = 1>(w)
    y = Gather(f, i) z = If(c) <
        then_branch = t () => (float[n, 4] ty) { ty = Gather(f, i) },
        else_branch = e () => (float[n, 4] ey) { g = Gather(f, i) ey = Neg(g) }> }"""
HIDDEN = """g (int64[n] i, bool c) => (float[n, 4] z) <float16[5, 4] w> { f = Cast<to = 1>(w)
    z = If(c) <
        then_branch = t () => (float[n, 4] ty) <float[4] v> { g = Gather(f, i) ty = Add(g, v) },
        else_branch = e () => (float[n, 4] ey) { ey = Gather(f, i) }> }"""


def adding(body: str, x: str = "5, 6", **more: Any) -> ModelProto:
    """Return a model of x, [5, 6], and what `body` makes of constants."""
    weights = {"row": random((1, 6)), "shape": np.array([5, 6]), "times": np.array([5, 1])} | more
    text = f"g (float[{x}] x) => (float[5, 6] y) <{declared(**weights)}> {{ {body} }}"
    return text_model(text, **weights)


def gathering(body: str) -> ModelProto:
    return text_model(
        "g (int64[n] i) => (float[n, 6] y, float[7, 6] z) <float[1, 6] row, int64[2] shape>"
        f" {{ big = Expand(row, shape) {body} }}",
        shape=np.array([7, 6]),
    )


@pytest.mark.parametrize(
    ("nodes", "body", "left"),
    [
        ("Expand_0", EXPANDED, "Add"),
        ("Tile_0", "big = Tile(row, times) y = Sub(big, x)", "Sub"),
        ("ConstantOfShape_0", FILLED, "Div"),
        ("ConstantOfShape_0", "big = ConstantOfShape(shape) y = Max(x, big)", "Max"),
        ("Expand_0", "big = Expand(row, shape) h = Mul(x, big) y = Sum(h, x, big)", "Mul Sum"),
        (
            "Expand_0",
            "big = Expand(row, shape) c = Less(x, big) y = Where(c, x, big)",
            "Less Where",
        ),
        (
            "Expand_0 Expand_1",
            "a = Expand(flat, shape) b = Expand(one, shape) h = Add(x, a) y = Mul(b, h)",
            "Add Mul",
        ),
    ],
)
def test_operators_broadcast_by_themselves(
    tmp_path: Path, nodes: str, body: str, left: str
) -> None:
    model = adding(body, flat=random((6,)), one=random((5, 1)))
    fixed = rewritten(defer_expand, model, finding(nodes=nodes.split()), tmp_path)
    assert [one for one in operators(fixed) if one != "Constant"] == left.split()


@pytest.mark.parametrize("kind", ["int64", "int32"])
@pytest.mark.parametrize(("axis", "small", "whole"), [(0, [1, 6], [7, 6]), (-1, [6, 1], [6, 7])])
def test_a_gather_takes_the_one_element(
    tmp_path: Path, kind: str, axis: int, small: list[int], whole: list[int]
) -> None:
    result = "n, m, 6" if axis == 0 else "6, n, m"
    model = text_model(
        f"g ({kind}[n, m] i) => (float[{result}] y) <float{small} row, int64[2] shape>"
        f" {{ big = Expand(row, shape) y = Gather<axis = {axis}>(big, i) }}",
        shape=np.array(whole),
    )
    fixed = rewrite(defer_expand, model, finding(nodes=("Expand_0",)), tmp_path)
    assert "Expand" not in operators(fixed)
    indices = ([[0, 6], [-1, -7]], [[3]], np.zeros((2, 0)))
    feeds = ({"i": np.array(places, kind)} for places in indices)
    assert_same_outputs(tmp_path / "original.onnx", fixed, *feeds)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "uint8", "double"])
def test_what_was_gathered_is_cast(tmp_path: Path, kind: str) -> None:
    width = {"uint8": 1, "double": 8}.get(kind, 2)
    data = np.random.default_rng(0).integers(0, 60, 20 * width).astype(np.uint8).tobytes()
    number = getattr(TensorProto, kind.upper())
    model = text_model(CAST)
    model.graph.initializer.append(onnx.helper.make_tensor("w", number, [5, 4], data, raw=True))
    rewritten(defer_expand, model, finding("w", nodes=("Cast_0",)), tmp_path)


@given(
    small=st.lists(st.sampled_from([1, 2]), min_size=1, max_size=4),
    times=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    dropped=st.integers(0, 3),
    operator=st.sampled_from(["Add", "Mul", "Max", "Where"]),
)
def test_any_shape(
    tmp_path: Path, small: list[int], times: list[int], dropped: int, operator: str
) -> None:
    whole = [size if size > 1 else many for size, many in zip(small, times, strict=False)]
    operand = small[min(dropped, len(small) - 1) :]
    read = "Where(x, big, big)" if operator == "Where" else f"{operator}(x, big)"
    model = text_model(
        f"g ({'bool' if operator == 'Where' else 'float'}{whole} x) => (float{whole} y)"
        f" <float{operand} row, int64[{len(whole)}] shape>"
        f" {{ big = Expand(row, shape) y = {read} }}",
        shape=np.array(whole),
    )
    x = random(whole, 1, np.bool_ if operator == "Where" else np.float32)
    rewritten(defer_expand, model, finding(nodes=("Expand_0",)), tmp_path, {"x": x})


def hidden() -> ModelProto:
    """Return a model in whose branch another weight is called like the one that is cast."""
    model = text_model(HIDDEN)
    branch = model.graph.node[1].attribute[0].g
    branch.initializer[0].name = branch.node[1].input[1] = "w"
    return model


TURNED = "g = Gather<axis = 1>(big, i) z = Identity(row) y = Transpose(g)"
HALF = adding("f = Cast<to = 1>(h) y = Add(x, f)", h=random((1, 6), 0, np.float16))
TWO_AXES = adding(
    "big = Tile(two, half) y = Add(x, big)", two=random((5, 3)), half=np.array([1, 2])
)


@pytest.mark.parametrize(
    ("model", "node", "message"),
    [
        (adding(EXPANDED, "n, 6"), "Expand_0", "whole shape"),
        (adding(EXPANDED, "1, 6"), "Expand_0", "whole shape"),
        (adding("big = Expand(row, shape) y = Add(big, big)"), "Expand_0", "whole shape"),
        (TWO_AXES, "Tile_0", "not both known"),
        (adding("big = Expand(row, shape) s = Softmax(big) y = Add(x, s)"), "Expand_0", "Softmax"),
        (adding("big = Expand(row, shape) y = Add(x, row)"), "Expand_0", "nothing reads"),
        (adding("t = Transpose(row) y = Add(x, row)"), "Transpose_0", "this node is a Transpose"),
        (adding("y = Expand(row, shape)"), "Expand_0", "is an output"),
        (adding("y = Expand(row, shape)"), "gone", "was removed"),
        (adding("y = Expand(row, shape)"), "", "names no node"),
        (gathering("y = Gather(big, i) z = Neg(big)"), "Expand_0", "Neg reads the result"),
        (gathering(TURNED), "Expand_0", "along another axis"),
        (HALF, "Cast_0", "Add is not a Gather that reads the Cast as its first input"),
        (text_model(IN_FUNCTION), "local::f/ConstantOfShape_1", "in a function"),
        (hidden(), "Cast_0", "another value in a subgraph"),
    ],
)
def test_what_cannot_be_deferred(
    tmp_path: Path, model: ModelProto, node: str, message: str
) -> None:
    assert message in refusal(defer_expand, model, finding(nodes=node.split()), tmp_path)
