from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from memdiag.rewrites.catalog import fp16_to_fp32
from tests.model_text import random, text_model
from tests.rewrites.rewriting import initializers, operators, refusal, rewrite, rewritten, run

FUNCTION = """g (float16[6, 6] x) => (float16[6, 6] y) { y = local.f(x) }
    <domain: "local", opset_import: ["" : 17]> f (a) => (b) { k = Constant() b = MatMul(a, k) }"""


def half(*shape: int, seed: int = 0) -> NDArray[np.float16]:
    return np.asarray(random(shape, seed, np.float16))


def bfloat16(text: str, bits: NDArray[np.uint16]) -> ModelProto:
    """Return the model of `text` with a weight w of these bits."""
    model = text_model(text)
    data = bits.tobytes()
    weight = helper.make_tensor("w", TensorProto.BFLOAT16, bits.shape, data, raw=True)
    model.graph.initializer.append(weight)
    return model


@pytest.mark.parametrize("sizes", ["", "n, ", "2, n, ", "2, 3, n, "])
def test_products_of_any_rank(tmp_path: Path, sizes: str) -> None:
    model = text_model(
        f"g (float16[{sizes}6] x) => (float16[{sizes}4] y) <float16[6, 4] w> {{ y = MatMul(x, w) }}"
    )
    fixed = rewritten(fp16_to_fp32, model, "w", tmp_path)
    assert initializers(fixed, TensorProto.FLOAT) == {"w"}
    assert operators(fixed) == ["Cast", "Cast", "MatMul"]


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
    "a Constant": "w = Constant() y = MatMul(x, w)",
}


@pytest.mark.parametrize("name", BODIES)
def test_whatever_reads_the_weight_gets_the_same(tmp_path: Path, name: str) -> None:
    model = text_model(
        f"g (float16[6, 6] x, bool c) => (float16[6, 6] y)"
        f" <float16[6, 6] w, float16[6] b> {{ {BODIES[name]} }}",
        w=half(6, 6),
    )
    fixed = rewritten(fp16_to_fp32, model, "w", tmp_path)
    assert name == "a Constant" or "w" in initializers(fixed, TensorProto.FLOAT)


def test_weights_become_external_data(tmp_path: Path) -> None:
    model = text_model(
        "g (float16[n, 99] x) => (float16[n, 299] y) <float16[99, 299] w> { y = MatMul(x, w) }"
    )
    fixed = rewrite(fp16_to_fp32, model, "w", tmp_path, storage=None)
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
    fixed = rewrite(fp16_to_fp32, model, "w", tmp_path)
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
    feeds = {"x": np.full((1, 64), 16, np.float16)}
    fixed = rewritten(fp16_to_fp32, model, "w v", tmp_path, feeds)
    assert np.isfinite(run(fixed, feeds)["y"]).all()


@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions(tmp_path: Path, groups: int) -> None:
    model = text_model(
        f"g (float16[n, 4, 8, 8] x) => (float16[n, 6, 6, 6] y) <float16[6, {4 // groups}, 3, 3] w,"
        f" float16[6] b> {{ y = Conv<group = {groups}>(x, w, b) }}"
    )
    fixed = rewritten(fp16_to_fp32, model, "w b", tmp_path)
    assert initializers(fixed, TensorProto.FLOAT) == {"w", "b"}


def test_bfloat16_behind_a_cast(tmp_path: Path) -> None:
    bits = np.arange(0x3F00, 0x3F18, dtype=np.uint16).reshape(6, 4)
    text = "g (float[n, 6] x) => (float[n, 4] y) { f = Cast<to = 1>(w) y = MatMul(x, f) }"
    feeds = {"x": random((2, 6))}
    fixed = rewritten(fp16_to_fp32, bfloat16(text, bits), "w", tmp_path, feeds)
    assert operators(fixed) == ["MatMul"]
    made = numpy_helper.to_array(onnx.load(fixed).graph.initializer[0])
    assert np.array_equal(made.view(np.uint32), bits.astype(np.uint32) << 16)


@given(values=st.lists(st.integers(0, 0xFFFF), min_size=24, max_size=24))
def test_every_half_has_its_float(tmp_path: Path, values: list[int]) -> None:
    weight = np.array(values, np.uint16).view(np.float16).reshape(6, 4)
    model = text_model(
        "g (float16[6, 4] x) => (float16[6, 4] y) <float16[6, 4] w> { y = Add(x, w) }", w=weight
    )
    fixed = rewrite(fp16_to_fp32, model, "w", tmp_path)
    made = numpy_helper.to_array(onnx.load(fixed).graph.initializer[0])
    assert np.array_equal(made.astype(np.float16), weight, equal_nan=True)


def reading(body: str, outputs: str = "float16[6, 6] y", inputs: str = "") -> ModelProto:
    return text_model(
        f"g (float16[6, 6] x{inputs}) => ({outputs}) <float16[6, 6] w> {{ {body} }}"
        """ <domain: "local", opset_import: ["" : 17]> f (a) => (b) { b = Relu(a) }"""
    )


def without_weight() -> ModelProto:
    model = reading("w = Identity(x) y = MatMul(x, w)")
    del model.graph.initializer[:]
    return model


def with_unknown_type() -> ModelProto:
    model = reading(
        "i = Constant<value_int = 1>() s = SequenceConstruct(x) z = SequenceAt(s, i)"
        " q = custom.op(z) h = MatMul(q, w) y = Cast<to = 10>(h)"
    )
    model.opset_import.add(domain="custom", version=1)
    return model


FLOATS = "g (float[n, 6] x) => (float[n, 6] y) <float[6, 6] w> { y = MatMul(x, w) }"
BRAIN = "g (bfloat16[n, 2] x) => (bfloat16[n, 2] y) { y = MatMul(x, w) }"


@pytest.mark.parametrize(
    ("model", "names", "message"),
    [
        (reading("h = MatMul(x, w) y = Softmax(w)"), "w", "Softmax may compute in half precision"),
        (reading("y = local.f(w)"), "w", "f may compute in half precision"),
        (without_weight(), "w", "neither an initializer"),
        (reading("y = MatMul(x, x)"), "w", "nothing reads the weight"),
        (reading("y = MatMul(x, w)", "float16[6, 6] y, float16[6, 6] w"), "w", "is an output"),
        (reading("y = MatMul(x, w)", inputs=", float16[6, 6] w"), "w", "callers may set"),
        (reading("h = MatMul(w, w) y = Add(h, x)"), "w", "MatMul of constants would be folded"),
        (reading("y = CastLike(w, x)"), "w", "CastLike may compute in half precision"),
        (text_model(FLOATS), "w", "not of half precision"),
        (text_model(FUNCTION, k=half(6, 6)), "local::f/k", "function"),
        (text_model(FUNCTION, k=half(6, 6)), "", "names no weight"),
        (bfloat16(BRAIN, np.zeros((2, 2), np.uint16)), "w", "casts no bfloat16"),
        (with_unknown_type(), "w", "type of q is not known"),
    ],
)
def test_what_cannot_be_widened(
    tmp_path: Path, model: ModelProto, names: str, message: str
) -> None:
    assert message in refusal(fp16_to_fp32, model, names, tmp_path)
