from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from memdiag.rewrites.catalog import flush_denormals
from memdiag.rewrites.model_editor import model_tensors
from memdiag.verify.outputs import Bound
from tests.model_text import Array, random, text_model
from tests.rewrites.rewriting import refusal, rewrite, rewritten, run

BOUND = Bound.reordered(6).relative
NODES = "g (float[n, 6] x) => (float[n, 4] y) <float[6, 4] w> { y = MatMul(x, w) }"
EVERYWHERE = """g (float[n, 6] x, bool c) => (float[n, 4] y, float[n, 4] z) {
    y = If (c) <
        then_branch = t () => (float[n, 4] ty) <float[6, 4] u> { ty = MatMul(x, u) },
        else_branch = e () => (float[n, 4] ey) { v = Constant() ey = MatMul(x, v) }
    >
    z = local.f(x) }
    <domain: "local", opset_import: ["" : 17]> f (x) => (y) { k = Constant() y = MatMul(x, k) }"""


def with_denormals(shape: tuple[int, ...], dtype: type = np.float32) -> Array:
    """Return random values, every third of them denormal, of both signs, and both zeros."""
    values = random(shape, 0, dtype)
    tiny = np.finfo(dtype).smallest_normal
    flat = values.reshape(-1)
    flat[::3] *= tiny / 8
    flat[:4] = [0.0, -0.0, tiny, -np.nextafter(tiny, dtype(0))]
    return values


def matrices(path: Path) -> list[Array]:
    tensors = (tensor for tensor, _ in model_tensors(onnx.load(path)))
    return [numpy_helper.to_array(tensor) for tensor in tensors if len(tensor.dims) == 2]


def assert_flushed(before: Array, after: Array) -> None:
    small = np.abs(before) < np.finfo(before.dtype).smallest_normal
    assert small.any()
    assert np.all(after[small] == 0)
    assert np.array_equal(np.signbit(before), np.signbit(after))
    assert before[~small].tobytes() == after[~small].tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_denormals_become_zeros_of_their_sign(tmp_path: Path, dtype: Any) -> None:
    weight = with_denormals((6, 4), dtype)
    text = NODES if dtype is np.float32 else NODES.replace("float", "double")
    fixed = rewritten(flush_denormals, text_model(text, w=weight), "w", tmp_path, bound=BOUND)
    (made,) = matrices(fixed)
    assert_flushed(weight, made)


def test_bfloat16(tmp_path: Path) -> None:
    bits = np.array([[0x0001, 0x8001, 0x007F], [0x0080, 0x3F80, 0xFF80]], np.uint16)
    text = "g (float[n, 2] x) => (float[n, 3] y) { f = Cast<to = 1>(w) y = MatMul(x, f) }"
    model = text_model(text)
    weight = helper.make_tensor("w", TensorProto.BFLOAT16, [2, 3], bits.tobytes(), raw=True)
    model.graph.initializer.append(weight)
    fixed = rewrite(flush_denormals, model, "w", tmp_path)
    made = np.frombuffer(onnx.load(fixed).graph.initializer[0].raw_data, np.uint16)
    assert made.tolist() == [0, 0x8000, 0, 0x0080, 0x3F80, 0xFF80]


def test_subgraphs_constants_and_functions(tmp_path: Path) -> None:
    weight = with_denormals((6, 4))
    model = text_model(EVERYWHERE, u=weight, v=weight[::-1].copy(), k=weight)
    names = "If_0/then_branch/u If_0/else_branch/v local::f/k"
    made = matrices(rewritten(flush_denormals, model, names, tmp_path, bound=BOUND))
    assert len(made) == 3
    for values in made:
        assert not np.any((values != 0) & (np.abs(values) < np.finfo(np.float32).smallest_normal))


@given(
    exponents=st.lists(st.integers(-149, -110), min_size=24, max_size=24), seed=st.integers(0, 9)
)
def test_what_is_denormal_is_flushed_and_nothing_else(
    tmp_path: Path, exponents: list[int], seed: int
) -> None:
    signs = np.where(np.random.default_rng(seed).integers(0, 2, 24), 1.0, -1.0)
    values = (signs * 2.0 ** np.array(exponents)).astype(np.float32).reshape(6, 4)
    model = text_model(NODES, w=values)
    if not np.any(np.array(exponents) < -126):
        assert "denormal" in refusal(flush_denormals, model, "w", tmp_path)
        return
    (made,) = matrices(rewrite(flush_denormals, model, "w", tmp_path))
    assert_flushed(values, made)


def test_a_large_weight_is_written_in_slices_with_what_is_told_of_it(tmp_path: Path) -> None:
    weight = with_denormals((1 << 10, 700))
    text = "g (float[n, 1024] x) => (float[n, 700] y) <float[1024, 700] w> { y = MatMul(x, w) }"
    model = text_model(text, w=weight)
    model.graph.initializer[0].doc_string = "trained long ago"
    fixed = rewrite(flush_denormals, model, "w", tmp_path, storage="external")
    assert onnx.load(fixed).graph.initializer[0].doc_string == "trained long ago"
    assert_flushed(weight, matrices(fixed)[0])
    assert run(fixed, {"x": random((1, 1024))})["y"].shape == (1, 700)


NORMAL = text_model(NODES)
HALF = text_model(NODES.replace("float", "float16"), w=np.full((6, 4), 1e-7, np.float16))


@pytest.mark.parametrize(
    ("model", "names", "reason"),
    [
        (NORMAL, "w", "itself is denormal"),
        (NORMAL, "gone", "neither an initializer"),
        (NORMAL, "", "names no weight"),
        (HALF, "w", "float16 has no values"),
    ],
    ids=["normal", "gone", "no name", "half"],
)
def test_what_cannot_or_need_not_be_flushed(
    tmp_path: Path, model: ModelProto, names: str, reason: str
) -> None:
    assert reason in refusal(flush_denormals, model, names, tmp_path)
