from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto

from memdiag.rewrites.catalog import defer_expand
from tests.rewrites.rewriting import (
    assert_same_outputs,
    finding,
    random,
    refusal,
    rewrite,
    runs_on,
    taken,
    text_model,
)

MIB = 1 << 20


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def adding(body: str, x: str = "5, 6", **weights: Any) -> ModelProto:
    """Return a model of x, [5, 6], and what `body` makes of constants."""
    given_ = {
        "row": random((1, 6)),
        "shape": np.array([5, 6]),
        "times": np.array([5, 1]),
        **weights,
    }
    kinds = {"float32": "float", "int64": "int64", "float16": "float16"}
    declared = ", ".join(
        f"{kinds[one.dtype.name]}[{', '.join(map(str, one.shape))}] {name}"
        for name, one in given_.items()
    )
    return text_model(f"g (float[{x}] x) => (float[5, 6] y) <{declared}> {{ {body} }}", **given_)


@pytest.mark.parametrize(
    ("node", "body"),
    [
        ("Expand_0", "big = Expand(row, shape) y = Add(x, big)"),
        ("Tile_0", "big = Tile(row, times) y = Sub(big, x)"),
        ("ConstantOfShape_0", "big = ConstantOfShape<value = float[1] {2}>(shape) y = Div(x, big)"),
        ("ConstantOfShape_0", "big = ConstantOfShape(shape) y = Max(x, big)"),
        ("Expand_0", "big = Expand(row, shape) h = Mul(x, big) y = Sum(h, x, big)"),
        ("Expand_0", "big = Expand(row, shape) c = Less(x, big) y = Where(c, x, big)"),
    ],
)
def test_operators_broadcast_by_themselves(tmp_path: Path, node: str, body: str) -> None:
    fixed = rewrite(defer_expand, adding(body), finding(nodes=(node,)), tmp_path)
    assert not {"Expand", "Tile", "ConstantOfShape"} & set(operators(fixed))
    assert_same_outputs(tmp_path / "original.onnx", fixed, {"x": random((5, 6), 1)})


def test_fewer_axes_and_several_results(tmp_path: Path) -> None:
    model = adding(
        "a = Expand(flat, shape) b = Expand(one, shape) h = Add(x, a) y = Mul(b, h)",
        flat=random((6,)),
        one=random((5, 1)),
    )
    fixed = rewrite(defer_expand, model, finding(nodes=("Expand_0", "Expand_1")), tmp_path)
    assert operators(fixed) == {"Add": 1, "Mul": 1}
    assert_same_outputs(tmp_path / "original.onnx", fixed, {"x": random((5, 6), 1)})


@pytest.mark.parametrize("kind", ["int64", "int32"])
@pytest.mark.parametrize(("axis", "small", "whole"), [(0, "1, 6", "7, 6"), (-1, "6, 1", "6, 7")])
def test_a_gather_takes_the_one_element(
    tmp_path: Path, kind: str, axis: int, small: str, whole: str
) -> None:
    sizes = [int(size) for size in small.split(",")]
    result = "n, m, 6" if axis == 0 else "6, n, m"
    model = text_model(
        f"g ({kind}[n, m] i) => (float[{result}] y) <float[{small}] row, int64[2] shape>"
        f" {{ big = Expand(row, shape) y = Gather<axis = {axis}>(big, i) }}",
        row=random(sizes),
        shape=np.array([int(size) for size in whole.split(",")]),
    )
    fixed = rewrite(defer_expand, model, finding(nodes=("Expand_0",)), tmp_path)
    assert "Expand" not in operators(fixed)
    for indices in ([[0, 6], [-1, -7]], [[3]], np.zeros((2, 0))):
        feeds = {"i": np.array(indices, kind)}
        assert_same_outputs(tmp_path / "original.onnx", fixed, feeds)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "uint8", "double"])
def test_what_was_gathered_is_cast(tmp_path: Path, kind: str) -> None:
    model = text_model(
        "g (int64[n] i, bool c) => (float[n, 4] y, float[n, 4] z) { f = Cast<to = 1>(w)"
        " y = Gather(f, i) z = If(c) <"
        " then_branch = t () => (float[n, 4] ty) { ty = Gather(f, i) },"
        " else_branch = e () => (float[n, 4] ey) { g = Gather(f, i) ey = Neg(g) }> }"
    )
    width = {"uint8": 1, "double": 8}.get(kind, 2)
    data = np.random.default_rng(0).integers(0, 60, 20 * width).astype(np.uint8).tobytes()
    number = getattr(TensorProto, kind.upper())
    model.graph.initializer.append(onnx.helper.make_tensor("w", number, [5, 4], data, raw=True))
    fixed = rewrite(defer_expand, model, finding("w", nodes=("Cast_0",)), tmp_path)
    for c in (True, False):
        feeds = {"i": np.array([0, 4, -1]), "c": np.array(c)}
        assert_same_outputs(tmp_path / "original.onnx", fixed, feeds)


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
    sizes = ", ".join(map(str, whole))
    read = "Where(x, big, big)" if operator == "Where" else f"{operator}(x, big)"
    model = text_model(
        f"g ({'bool' if operator == 'Where' else 'float'}[{sizes}] x) => (float[{sizes}] y)"
        f" <float[{', '.join(map(str, operand))}] row, int64[{len(whole)}] shape>"
        f" {{ big = Expand(row, shape) y = {read} }}",
        row=random(operand),
        shape=np.array(whole),
    )
    fixed = rewrite(defer_expand, model, finding(nodes=("Expand_0",)), tmp_path)
    x = random(whole, 1, np.bool_ if operator == "Where" else np.float32)
    assert_same_outputs(tmp_path / "original.onnx", fixed, {"x": x})


GATHERING = (
    "g (int64[n] i) => (float[n, 6] y, float[7, 6] z) <float[1, 6] row, int64[2] shape>"
    " {{ big = Expand(row, shape) {} }}"
)


def gathering(body: str) -> ModelProto:
    return text_model(GATHERING.format(body), row=random((1, 6)), shape=np.array([7, 6]))


@pytest.mark.parametrize(
    ("model", "node", "message"),
    [
        (adding("big = Expand(row, shape) y = Add(x, big)", "n, 6"), "Expand_0", "whole shape"),
        (adding("big = Expand(row, shape) y = Add(x, big)", "1, 6"), "Expand_0", "whole shape"),
        (adding("big = Expand(row, shape) y = Add(big, big)"), "Expand_0", "whole shape"),
        (adding("big = Tile(two, half) y = Add(x, big)", two=random((5, 3)),
                half=np.array([1, 2])), "Tile_0", "not both known"),
        (adding("big = Expand(row, shape) s = Softmax(big) y = Add(x, s)"), "Expand_0", "Softmax"),
        (adding("big = Expand(row, shape) y = Add(x, row)"), "Expand_0", "nothing reads"),
        (adding("t = Transpose(row) y = Add(x, row)"), "Transpose_0", "this node is a Transpose"),
        (adding("y = Expand(row, shape)"), "Expand_0", "is an output"),
        (adding("y = Expand(row, shape)"), "gone", "was removed"),
        (gathering("y = Gather(big, i) z = Neg(big)"), "Expand_0", "Neg reads the result"),
        (gathering("g = Gather<axis = 1>(big, i) z = Identity(row) y = Transpose(g)"),
         "Expand_0", "along another axis"),
        (adding("f = Cast<to = 1>(h) y = Add(x, f)", h=random((1, 6), 0, np.float16)), "Cast_0",
         "Add is not a Gather that reads the Cast as its first input"),
    ],
)  # fmt: skip
def test_what_cannot_defer_expand(
    tmp_path: Path, model: ModelProto, node: str, message: str
) -> None:
    assert message in refusal(defer_expand, model, finding(nodes=(node,)), tmp_path)


def test_in_a_function_shapes_are_not_known(tmp_path: Path) -> None:
    model = text_model(
        """g (float[5, 6] x) => (float[5, 6] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 17]> f (a) => (b) {
            k = Constant<value = int64[2] {5, 6}>() big = ConstantOfShape(k) b = Add(a, big) }"""
    )
    of = finding(nodes=("local::f/ConstantOfShape_1",))
    assert "in a function" in refusal(defer_expand, model, of, tmp_path)
    assert "names no node" in refusal(defer_expand, model, finding(), tmp_path)


def test_a_name_that_a_branch_has_too(tmp_path: Path) -> None:
    model = text_model(
        """g (int64[n] i, bool c) => (float[n, 4] z) <float16[5, 4] w> { f = Cast<to = 1>(w)
        z = If(c) <
            then_branch = t () => (float[n, 4] ty) <float[4] w> { g = Gather(f, i) ty = Add(g, w) },
            else_branch = e () => (float[n, 4] ey) { ey = Gather(f, i) }> }""",
        w=random((5, 4), 0, np.float16),
    )
    model.graph.node[1].attribute[0].g.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(random((4,)), "w")
    )
    message = refusal(defer_expand, model, finding(nodes=("Cast_0",)), tmp_path)
    assert "another value in a subgraph" in message


@pytest.mark.slow
def test_nothing_large_is_left(tmp_path: Path) -> None:
    model = text_model(
        "g (int64[n] i, float[4096, 1024] x) => (float[n, 1024] y, float[n, 2048] e,"
        " float[4096, 1024] z)"
        " <float[1, 1024] row, int64[2] shape, float16[4096, 2048] w> {"
        " big = Expand(row, shape) g = Gather(big, i) f = Cast<to = 1>(w) e = Gather(f, i)"
        " y = Neg(g) fill = ConstantOfShape<value = float[1] {2}>(shape) z = Mul(x, fill) }",
        row=random((1, 1024)),
        shape=np.array([4096, 1024]),  # 16 MiB
        w=random((4096, 2048), 0, np.float16),  # 16 MiB, 32 as fp32
    )
    of = finding(nodes=("Expand_0", "Cast_2", "ConstantOfShape_5"))
    fixed = rewrite(defer_expand, model, of, tmp_path)
    before, after = taken(tmp_path / "original.onnx"), taken(fixed)
    assert after.steady_bytes < before.steady_bytes - 40 * MIB
    assert after.peak_bytes < before.peak_bytes - 24 * MIB


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.20.1", "1.31.1"])
def test_it_runs_on_the_oldest_and_newest_runtime(tmp_path: Path, version: str) -> None:
    model = gathering("y = Gather(big, i) o = ConstantOfShape(shape) z = Add(o, seven)")
    model.graph.initializer.append(onnx.numpy_helper.from_array(random((7, 6)), "seven"))
    of = finding(nodes=("Expand_0", "ConstantOfShape_2"))
    assert runs_on(version, rewrite(defer_expand, model, of, tmp_path))
