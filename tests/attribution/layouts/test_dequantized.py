from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto

from memdiag.attribution.layout import Quantization
from tests.attribution.layouts.sessions import SessionMemory, integers, model
from tests.attribution.layouts.virtual_copies import assembled, offered, one

RANDOM = np.random.default_rng(5)


def scales(*shape: int) -> Any:
    return np.asarray(RANDOM.random(shape), np.float32)


def quantization(kind: str, dtype: Any) -> Quantization:
    """A quantization of a weight of 32 rows and 20 columns."""
    shape = {"tensor": (), "columns": (20,), "rows": (32,), "blocks": (8, 20)}[kind]
    return Quantization(
        scale=scales(*shape),
        zero_point=None if kind == "rows" else RANDOM.integers(0, 99, shape).astype(dtype),
        axis=1 if kind in ("tensor", "columns") else 0,
        block_size=4 if kind == "blocks" else 0,
    )


def naive(weight: Any, q: Quantization) -> Any:
    def spread(values: Any) -> Any:
        if np.ndim(values) == 0:
            return values
        if q.block_size:
            return np.repeat(values, q.block_size, q.axis)
        return values.reshape([-1 if axis == q.axis else 1 for axis in range(weight.ndim)])

    zero = 0 if q.zero_point is None else spread(q.zero_point.astype(np.int64))
    return ((weight.astype(np.int64) - zero).astype(np.float32) * spread(q.scale)).astype(
        np.float32
    )


def folded(q: Quantization, weight: Any, after: str, columns: int = 20) -> ModelProto:
    """Return a model of v, the dequantized weight, and the nodes `after` it."""
    attributes = [f"axis = {q.axis}"] if q.scale.ndim else []
    attributes += [f"block_size = {q.block_size}"] if q.block_size else []
    settings = f"<{', '.join(attributes)}>" if attributes else ""
    zeros = {} if q.zero_point is None else {"z": q.zero_point}
    body = f"v = DequantizeLinear {settings} ({', '.join(['w', 's', *zeros])}) {after}"
    return model(body, x=f"float[n, {columns}]", w=weight, s=q.scale, **zeros)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("kind", ["tensor", "columns", "rows", "blocks"])
def test_a_folded_dequantization_is_found(
    session_memory: SessionMemory, dtype: Any, kind: str
) -> None:
    weight, q = integers(dtype, 32, 20), quantization(kind, dtype)
    memory = session_memory(folded(q, weight, "y = Add (x, v)"), "session.disable_quant_qdq=1")
    assert memory.find(offered(weight, "dequantized", quantizations=(q,))[0])
    other = integers(dtype, 32, 20, seed=4)
    assert not memory.find(offered(other, "dequantized", quantizations=(q,))[0])


def test_a_dequantized_weight_is_packed(session_memory: SessionMemory) -> None:
    weight, q = integers(np.int8, 32, 20), quantization("columns", np.int8)
    of = folded(q, weight, "y = MatMul (x, v)", columns=32)
    memory = session_memory(of, "session.disable_quant_qdq=1")
    wanted = {"transB": "0", "from": "int8"}
    assert memory.find(one(weight, "packed_fp32", wanted, quantizations=(q,)))


@pytest.mark.parametrize("shape", [(1, 20), (32, 1), (32, 20)])
def test_a_folded_cast_and_multiplication_is_found(
    session_memory: SessionMemory, shape: tuple[int, int]
) -> None:
    weight, scale = integers(np.int8, 32, 20), scales(*shape)
    body = "wide = Cast <to = 1> (w) v = Mul (wide, s) y = MatMul (x, v)"
    memory = session_memory(model(body, x="float[n, 32]", w=weight, s=scale))
    q = Quantization(scale=scale)
    (copy,) = offered(weight, "dequantized", quantizations=(q,))
    assert assembled(copy) == (weight.astype(np.float32) * scale).tobytes()
    wanted = {"transB": "0", "from": "int8"}
    assert memory.find(one(weight, "packed_fp32", wanted, quantizations=(q,)))


@given(
    kind=st.sampled_from(["tensor", "columns", "rows", "blocks"]),
    dtype=st.sampled_from([np.int8, np.uint8, np.int32]),
)
def test_pieces_and_blocks_are_the_formula(kind: str, dtype: Any) -> None:
    weight, q = integers(np.int8, 32, 20).astype(dtype), quantization(kind, dtype)
    (copy,) = offered(weight, "dequantized", quantizations=(q,))
    assert assembled(copy, 256) == naive(weight, q).tobytes()


def test_a_negative_axis_counts_from_the_last() -> None:
    weight, q = integers(np.int8, 32, 20), Quantization(scale=scales(20), axis=-1)
    (copy,) = offered(weight, "dequantized", quantizations=(q,))
    positive = Quantization(scale=q.scale, axis=1)
    assert assembled(copy) == naive(weight, positive).tobytes()


@pytest.mark.parametrize(
    "q",
    [
        Quantization(scale=scales(21), axis=1),
        Quantization(scale=scales(20), axis=2),
        Quantization(scale=scales(8, 20), axis=0),
        Quantization(scale=scales(8, 20), axis=0, block_size=5),
        Quantization(scale=scales(20).astype(np.float16), axis=1),
        Quantization(scale=scales(20), zero_point=np.zeros(1, np.int8), axis=1),
    ],
)
def test_scales_that_do_not_fit_the_weight_give_nothing(q: Quantization) -> None:
    assert not offered(integers(np.int8, 32, 20), "dequantized", quantizations=(q,))


def test_floats_and_weights_without_quantization_give_nothing() -> None:
    q = Quantization(scale=scales())
    assert not offered(np.ones((32, 20), np.float32), "dequantized", quantizations=(q,))
    assert not offered(integers(np.int8, 32, 20), "dequantized")
    assert not offered(integers(np.int8, 0, 20), "dequantized", quantizations=(q,))
