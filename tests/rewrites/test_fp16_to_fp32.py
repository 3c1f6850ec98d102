from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from memdiag.rewrites.catalog import fp16_to_fp32
from tests.rewrites.rewriting import (
    assert_same_outputs,
    finding,
    random,
    refusal,
    rewrite,
    run,
    runs_on,
    taken,
    text_model,
)

MIB = 1 << 20


def half(*shape: int, seed: int = 0) -> NDArray[np.float16]:
    return np.asarray(random(shape, seed, np.float16))


def dtypes(path: Path) -> dict[str, int]:
    """Return the element types of the initializers of a model by name."""
    return {one.name: one.data_type for one in onnx.load(path).graph.initializer}


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


@pytest.mark.parametrize("sizes", ["6", "n, 6", "2, n, 6", "2, 3, n, 6"])
def test_products_of_any_rank(tmp_path: Path, sizes: str) -> None:
    shape = [int(size) if size.strip().isdigit() else 3 for size in sizes.split(",")]
    result = ", ".join([*sizes.split(",")[:-1], "4"])
    model = text_model(
        f"g (float16[{sizes}] x) => (float16[{result}] y) <float16[6, 4] w> {{ y = MatMul(x, w) }}",
        w=half(6, 4),
    )
    fixed = rewrite(fp16_to_fp32, model, finding("w"), tmp_path)
    assert dtypes(fixed) == {"w": TensorProto.FLOAT}
    assert operators(fixed) == {"Cast": 2, "MatMul": 1}
    assert_same_outputs(tmp_path / "original.onnx", fixed, {"x": half(*shape, seed=1)})


BODIES = {
    "gemm": "y = Gemm<alpha = 0.5, transB = 1>(x, w, b)",
    "chain": "h = MatMul(x, w) r = Relu(h) y = MatMul(r, w)",
    "both operands": "h = Mul(x, w) y = MatMul(w, h)",
    "added": "h = Add(x, w) g = Sigmoid(h) y = Mul(g, w)",
    "branch": "y = If(c) <then_branch = t () => (float16[6, 6] ty) { ty = MatMul(x, w) },"
    " else_branch = e () => (float16[6, 6] ey) { ey = Sub(w, x) }>",
    "moved": "i = Constant<value = int64[6] {5, 4, 3, 2, 1, 0}>() g = Gather(w, i)"
    " y = MatMul(x, g)",
    "turned": "t = Transpose(w) y = MatMul(x, t)",
    "cast": "f = Cast<to = 1>(w) z = Cast<to = 1>(x) h = MatMul(z, f) y = Cast<to = 10>(h)",
    "cast and product": "f = Cast<to = 1>(w) h = MatMul(x, w) z = Cast<to = 1>(h)"
    " s = Add(z, f) y = Cast<to = 10>(s)",
    "cast to others": "i = Cast<to = 6>(w) d = Cast<to = 11>(w) z = Cast<to = 11>(i)"
    " s = Add(z, d) y = Cast<to = 10>(s)",
    "a Constant": "k = Constant() y = MatMul(x, k)",
}


@pytest.mark.parametrize("name", BODIES)
def test_whatever_reads_the_weight_gets_the_same(tmp_path: Path, name: str) -> None:
    model = text_model(
        f"g (float16[6, 6] x, bool c) => (float16[6, 6] y)"
        f" <float16[6, 6] w, float16[6] b> {{ {BODIES[name]} }}",
        w=half(6, 6),
        b=half(6, seed=2),
        k=half(6, 6, seed=3),
    )
    of = finding("k") if name == "a Constant" else finding("w")
    fixed = rewrite(fp16_to_fp32, model, of, tmp_path)
    if name != "a Constant":
        assert dtypes(fixed)["w"] == TensorProto.FLOAT
    for c in (True, False):
        feeds = {"x": half(6, 6, seed=1), "c": np.array(c)}
        assert_same_outputs(tmp_path / "original.onnx", fixed, feeds)


def test_weights_become_external_data(tmp_path: Path) -> None:
    model = text_model(
        "g (float16[n, 99] x) => (float16[n, 299] y) <float16[99, 299] w> { y = MatMul(x, w) }",
        w=half(99, 299),
    )
    fixed = rewrite(fp16_to_fp32, model, finding("w"), tmp_path, storage=None)
    assert fixed.with_name(f"{fixed.name}.data").stat().st_size >= 99 * 299 * 4


def test_values_may_be_rounded_elsewhere_since_casts_in_the_file_prevent_fusions(
    tmp_path: Path,
) -> None:
    # The runtime takes the Transpose into the second product, but not across a Cast.
    model = text_model(
        "g (float16[2, 64, 64] x) => (float16[2, 64, 64] y) <float16[64, 64] w, float16[64] b>"
        " { h = MatMul(x, w) g = Add(b, h) t = Transpose<perm = [0, 2, 1]>(g) y = MatMul(g, t) }",
        w=half(64, 64),
        b=half(64, seed=2),
    )
    fixed = rewrite(fp16_to_fp32, model, finding("w"), tmp_path)
    feeds = {"x": half(2, 64, 64, seed=1)}
    before, after = run(tmp_path / "original.onnx", feeds)["y"], run(fixed, feeds)["y"]
    assert not np.array_equal(before, after)
    np.testing.assert_allclose(after, before, rtol=0, atol=0.002 * np.abs(before).max())
    assert fp16_to_fp32.REWRITE.arithmetic == "reordered"


def test_the_runtime_removes_the_casts_between_two_products(tmp_path: Path) -> None:
    # A result of 1e5 would be infinite in half precision.
    model = text_model(
        "g (float16[1, 64] x) => (float16[1, 64] y) <float16[64, 64] w, float16[64, 64] v>"
        " { h = MatMul(x, w) y = MatMul(h, v) }",
        w=np.full((64, 64), 128, np.float16),
        v=np.full((64, 64), 2**-14, np.float16),
    )
    fixed = rewrite(fp16_to_fp32, model, finding("w", "v"), tmp_path)
    feeds = {"x": np.full((1, 64), 16, np.float16)}
    assert np.isfinite(run(fixed, feeds)["y"]).all()
    assert_same_outputs(tmp_path / "original.onnx", fixed, feeds)


@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions(tmp_path: Path, groups: int) -> None:
    model = text_model(
        f"g (float16[n, 4, 8, 8] x) => (float16[n, 6, 6, 6] y) <float16[6, {4 // groups}, 3, 3] w,"
        f" float16[6] b> {{ y = Conv<group = {groups}>(x, w, b) }}",
        w=half(6, 4 // groups, 3, 3),
        b=half(6, seed=2),
    )
    fixed = rewrite(fp16_to_fp32, model, finding("w", "b"), tmp_path)
    assert dtypes(fixed) == {"w": TensorProto.FLOAT, "b": TensorProto.FLOAT}
    assert_same_outputs(tmp_path / "original.onnx", fixed, {"x": half(2, 4, 8, 8, seed=1)})


def test_bfloat16_behind_a_cast(tmp_path: Path) -> None:
    bits = np.arange(0x3F00, 0x3F18, dtype=np.uint16)
    model = text_model(
        "g (float[n, 6] x) => (float[n, 4] y) { f = Cast<to = 1>(w) y = MatMul(x, f) }"
    )
    model.graph.initializer.append(
        helper.make_tensor("w", TensorProto.BFLOAT16, [6, 4], bits.tobytes(), raw=True)
    )
    fixed = rewrite(fp16_to_fp32, model, finding("w"), tmp_path)
    assert operators(fixed) == {"MatMul": 1}
    made = numpy_helper.to_array(onnx.load(fixed).graph.initializer[0])
    assert np.array_equal(made.view(np.uint32).reshape(-1), bits.astype(np.uint32) << 16)
    assert_same_outputs(tmp_path / "original.onnx", fixed, {"x": random((2, 6))})


@given(values=st.lists(st.integers(0, 0xFFFF), min_size=24, max_size=24))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_half_has_its_float(tmp_path: Path, values: list[int]) -> None:
    weight = np.array(values, np.uint16).view(np.float16).reshape(6, 4)
    model = text_model(
        "g (float16[6, 4] x) => (float16[6, 4] y) <float16[6, 4] w> { y = Add(x, w) }", w=weight
    )
    fixed = rewrite(fp16_to_fp32, model, finding("w"), tmp_path)
    made = numpy_helper.to_array(onnx.load(fixed).graph.initializer[0])
    assert np.array_equal(made.astype(np.float16), weight, equal_nan=True)


def scaled(body: str, outputs: str = "float16[6, 6] y", inputs: str = "") -> ModelProto:
    return text_model(
        f"g (float16[6, 6] x{inputs}) => ({outputs}) <float16[6, 6] w> {{ {body} }}"
        """ <domain: "local", opset_import: ["" : 17]> f (a) => (b) { b = Relu(a) }""",
        w=half(6, 6),
    )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (scaled("h = MatMul(x, w) y = Softmax(w)"), "Softmax may compute in half precision"),
        (scaled("y = local.f(w)"), "f may compute in half precision"),
        (scaled("w = Identity(x) y = MatMul(x, w)", "float16[6, 6] y"), "neither an initializer"),
        (scaled("y = MatMul(x, x)"), "nothing reads the weight"),
        (scaled("y = MatMul(x, w)", "float16[6, 6] y, float16[6, 6] w"), "is an output"),
        (scaled("y = MatMul(x, w)", inputs=", float16[6, 6] w"), "callers may set"),
        (scaled("h = MatMul(w, w) y = Add(h, x)"), "MatMul of constants would be folded"),
        (scaled("y = CastLike(w, x)"), "CastLike may compute in half precision"),
    ],
)
def test_what_cannot_be_widened(tmp_path: Path, model: ModelProto, message: str) -> None:
    if message == "neither an initializer":
        del model.graph.initializer[:]
    assert message in refusal(fp16_to_fp32, model, finding("w"), tmp_path)


def test_more_that_cannot_be_widened(tmp_path: Path) -> None:
    floats = text_model(
        "g (float[n, 6] x) => (float[n, 6] y) <float[6, 6] w> { y = MatMul(x, w) }",
        w=random((6, 6)),
    )
    assert "not of half precision" in refusal(fp16_to_fp32, floats, finding("w"), tmp_path)
    inside = text_model(
        """g (float16[6, 6] x) => (float16[6, 6] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 17]> f (a) => (b) {
            k = Constant() b = MatMul(a, k) }"""
    )
    held = numpy_helper.from_array(half(6, 6), "")
    inside.functions[0].node[0].attribute.append(helper.make_attribute("value", held))
    assert "function" in refusal(fp16_to_fp32, inside, finding("local::f/k"), tmp_path)
    assert "names no weight" in refusal(fp16_to_fp32, inside, finding(), tmp_path)
    brain = text_model("g (bfloat16[n, 2] x) => (bfloat16[n, 2] y) { y = MatMul(x, w) }")
    brain.graph.initializer.append(
        helper.make_tensor("w", TensorProto.BFLOAT16, [2, 2], bytes(8), raw=True)
    )
    assert "casts no bfloat16" in refusal(fp16_to_fp32, brain, finding("w"), tmp_path)
    unknown = scaled("i = Constant<value_int = 1>() s = SequenceConstruct(x) z = SequenceAt(s, i)"
                     " q = custom.op(z) h = MatMul(q, w) y = Cast<to = 10>(h)")  # fmt: skip
    unknown.opset_import.add(domain="custom", version=1)
    assert "type of q is not known" in refusal(fp16_to_fp32, unknown, finding("w"), tmp_path)


def layers(count: int, width: int) -> ModelProto:
    """Return a chain of products by fp16 weights."""
    nodes, weights, last = [], {}, "x"
    for index in range(count):
        nodes.append(f"h{index} = MatMul({last}, w{index})")
        weights[f"w{index}"] = half(width, width, seed=index) * np.float16(0.02)
        last = f"h{index}"
    declared = ", ".join(f"float16[{width}, {width}] {name}" for name in weights)
    return text_model(
        f"g (float16[n, {width}] x) => (float16[n, {width}] y) <{declared}>"
        f" {{ {' '.join(nodes)} y = Identity({last}) }}",
        **weights,
    )


@pytest.mark.slow
def test_less_is_taken_at_the_peak(tmp_path: Path) -> None:
    model = layers(8, 1448)  # 32 MiB of fp16
    of = finding(*(one.name for one in model.graph.initializer))
    fixed = rewrite(fp16_to_fp32, model, of, tmp_path, storage="external")
    before, after = taken(tmp_path / "original.onnx"), taken(fixed)
    assert after.steady_bytes < before.steady_bytes + 8 * MIB
    assert after.peak_bytes < before.peak_bytes - 16 * MIB


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.20.1", "1.31.1"])
def test_it_runs_on_the_oldest_and_newest_runtime(tmp_path: Path, version: str) -> None:
    model = layers(2, 64)
    fixed = rewrite(fp16_to_fp32, model, finding("w0", "w1"), tmp_path, storage="external")
    assert runs_on(version, fixed)
