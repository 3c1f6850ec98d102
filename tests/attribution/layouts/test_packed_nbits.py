from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper

from memdiag.attribution.layout import BlockQuantization
from tests.attribution.layouts.sessions import SessionMemory, combined, model
from tests.attribution.layouts.virtual_copies import assembled, offered, one

Values = NDArray[np.uint8]


def example(
    seed: int, bits: int, columns: int, depth: int, block: int
) -> tuple[Values, BlockQuantization]:
    """Random unsigned values ``[N, blocks * block]`` and what MatMulNBits says of them."""
    random = np.random.default_rng(seed)
    blocks = -(-depth // block)
    values = random.integers(0, 1 << bits, (columns, blocks * block)).astype(np.uint8)
    return values, BlockQuantization(
        columns=columns,
        depth=depth,
        block_size=block,
        bits=bits,
        scales=random.random((columns, blocks)).astype(np.float32),
        zero_points=random.integers(0, 1 << bits, (columns, blocks)).astype(np.uint8),
    )


def nibbles(values: Values) -> Values:
    """Two values a byte along the last axis, the first one low."""
    padded = np.pad(values, ((0, 0), (0, values.shape[1] % 2)))
    return padded[:, ::2] | (padded[:, 1::2] << np.uint8(4)).astype(np.uint8)


def stored(values: Values, nbits: BlockQuantization) -> Values:
    """The weight as MatMulNBits has it: ``[N, blocks, bytes of a block]``."""
    flat = nibbles(values) if nbits.bits == 4 else values
    return flat.reshape(nbits.columns, nbits.blocks, -1)


def naive_run(values: Values, bits: int) -> bytes:
    if bits == 8:
        return values.tobytes()
    half = len(values) // 2
    return bytes(int(values[i]) | int(values[i + half]) << 4 for i in range(half))


def naive(
    values: Values, nbits: BlockQuantization, run: int, tiled: bool
) -> tuple[bytes, list[float]]:
    """Packed values, and scales in the order of their blocks."""
    assert nbits.scales is not None
    block, depth = nbits.block_size, values.shape[1]
    runs = [(start, run) for start in range(0, depth - run + 1, run)]
    rest = len(runs) * run
    runs += [(start, min(run, block)) for start in range(rest, depth, min(run, block))]
    packed, order = b"", []
    full = nbits.columns // 4 * 4 if tiled else 0
    groups = [range(first, first + 4) for first in range(0, full, 4)]
    groups += [range(column, column + 1) for column in range(full, nbits.columns)]
    for group in groups:
        for start, length in runs:
            for column in group:
                packed += naive_run(values[column, start : start + length], nbits.bits)
        span = max(1, run // block) if tiled else 1
        whole = nbits.blocks // span * span
        cuts = [(at, span) for at in range(0, whole, span)]
        cuts += [(at, 1) for at in range(whole, nbits.blocks)]
        for at, length in cuts:
            for column in group:
                order += nbits.scales[column, at : at + length].tolist()
    return packed, order


def naive_sums(nbits: BlockQuantization) -> bytes:
    """Sums by panels of 16 columns; 0 in an incomplete panel, which is not compared."""
    assert nbits.scales is not None
    sums = np.zeros((-(-nbits.columns // 16), nbits.blocks, 16), np.float32)
    for column in range(nbits.columns // 16 * 16):
        for block in range(nbits.blocks):
            zero = 1 << nbits.bits - 1
            if nbits.zero_points is not None:
                zero = nbits.zero_points[column, block]
            sums[column // 16, block, column % 16] = -nbits.scales[column, block] * np.float32(zero)
    return sums.tobytes()


def multiplication(values: Values, nbits: BlockQuantization, accuracy: int) -> onnx.ModelProto:
    constants: dict[str, Any] = {"w": stored(values, nbits), "s": nbits.scales}
    if nbits.zero_points is not None:
        zeros = nbits.zero_points
        constants["z"] = nibbles(zeros) if nbits.bits == 4 else zeros
    attributes = (
        f"K = {nbits.depth}, N = {nbits.columns}, bits = {nbits.bits}, "
        f"block_size = {nbits.block_size}, accuracy_level = {accuracy}"
    )
    body = f"y = com.microsoft.MatMulNBits <{attributes}> ({', '.join(['x', *constants])})"
    return model(body, x=f"float[n, {nbits.depth}]", **constants)


def test_products_in_fp32_interleave_nibbles(session_memory: SessionMemory) -> None:
    cases = [example(1, 4, 39, 600, block) for block in (16, 32, 64, 128, 256)]
    memory = session_memory(combined(*(multiplication(*case, 0) for case in cases)))
    for values, nbits in cases:
        weight = stored(values, nbits)
        copy = one(weight, "packed_nbits", {"products": "fp32"}, block_quantizations=(nbits,))
        assert memory.find(copy), nbits
        changed = weight.copy()
        changed[-1, -1, -1] ^= 1
        copy = one(changed, "packed_nbits", {"products": "fp32"}, block_quantizations=(nbits,))
        assert not memory.find(copy), nbits


def test_products_in_8_bits_tile_columns(session_memory: SessionMemory) -> None:
    cases = []
    for number, (bits, block) in enumerate(product((4, 8), (16, 32, 128, 256))):
        for with_zero_points in (True, False):
            values, nbits = example(20 + 2 * number + with_zero_points, bits, 39, 600, block)
            cases.append((values, nbits if with_zero_points else replace(nbits, zero_points=None)))
    memory = session_memory(combined(*(multiplication(*case, 4) for case in cases)))

    def products(values: Values, nbits: BlockQuantization) -> list[str]:
        copies = offered(stored(values, nbits), "packed_nbits", block_quantizations=(nbits,))
        return [copy.parameters["products"] for copy in copies if memory.find(copy)]

    for values, nbits in cases:
        assert "int8" in products(values, nbits), nbits
    for values, nbits in (cases[0], cases[-1]):
        assert nbits.scales is not None
        other = replace(nbits, scales=nbits.scales + np.float32(1))
        assert "int8" not in products(values, other), nbits


def dequantization(values: Values, nbits: BlockQuantization, element: int) -> onnx.ModelProto:
    """DequantizeLinear of ``[K, N]`` in blocks, then MatMul; `values` as the model stores them."""
    assert nbits.scales is not None
    by_row = np.ascontiguousarray(values.T)
    flat = nibbles(by_row.reshape(1, -1)) if nbits.bits == 4 else by_row
    body = (
        f"v = DequantizeLinear <axis = 0, block_size = {nbits.block_size}> (w, s) y = MatMul (x, v)"
    )
    of = model(body, x=f"float[n, {nbits.depth}]", s=nbits.scales.T.copy())
    weight = helper.make_tensor("w", element, by_row.shape, flat.tobytes(), raw=True)
    of.graph.initializer.append(weight)
    return of


@pytest.mark.parametrize("element", [TensorProto.UINT4, TensorProto.INT4])
@pytest.mark.parametrize("prepacked", [True, False])
@pytest.mark.parametrize(("columns", "block"), [(38, 32), (33, 128)])
def test_a_dequantized_operand_becomes_a_matmulnbits(
    session_memory: SessionMemory,
    element: int,
    prepacked: bool,
    columns: int,
    block: int,
) -> None:
    values, nbits = example(3, 4, columns, 256, block)
    signed = element == TensorProto.INT4
    zeros = np.full((columns, nbits.blocks), 8 if signed else 0, np.uint8)
    nbits = replace(nbits, by_row=True, signed=signed, zero_points=zeros)
    config = [] if prepacked else ["session.disable_prepacking=1"]
    memory = session_memory(dequantization(values, nbits, element), *config)
    by_row = np.ascontiguousarray(values.T)
    forms = [by_row] if columns % 2 else [by_row, nibbles(by_row.reshape(1, -1))]
    for weight in forms:
        copies = offered(weight, "packed_nbits", block_quantizations=(nbits,))
        found = {copy.parameters["products"] for copy in copies if memory.find(copy)}
        assert ("int8" in found) == prepacked  # the form before packing may be left in freed memory
        assert prepacked or "none" in found


@given(
    bits=st.sampled_from([4, 8]),
    columns=st.integers(1, 21),
    depth=st.integers(1, 300),
    block=st.sampled_from([16, 32, 64, 128]),
    zero_points=st.booleans(),
    by_row=st.booleans(),
    signed=st.booleans(),
)
def test_pieces_and_blocks_are_the_naive_packing(
    bits: int,
    columns: int,
    depth: int,
    block: int,
    zero_points: bool,
    by_row: bool,
    signed: bool,
) -> None:
    if by_row:
        depth, columns = -(-depth // block) * block, columns * 2
    values, nbits = example(4, bits, columns, depth, block)
    nbits = replace(nbits, by_row=by_row, signed=signed)
    if not zero_points:
        nbits = replace(nbits, zero_points=None)
    weight = np.ascontiguousarray(values.T) if by_row else stored(values, nbits)
    if by_row and bits == 4:
        weight = nibbles(weight)
    kept = values ^ np.uint8(1 << bits - 1) if signed else values
    copies = offered(weight, "packed_nbits", block_quantizations=(nbits,))
    products = ["fp32"] * (bits == 4) + ["none"] * by_row + ["int8"] * 2
    assert [copy.parameters["products"] for copy in copies] == products
    for copy in copies:
        product, kernel = copy.parameters["products"], copy.parameters.get("kernel")
        tiled = product == "int8" and (bits, block) != (4, 16)
        run = {"fp32": min(block, 64), "none": 2 if bits == 4 else block}.get(product, 0)
        if product == "int8":
            run = 128 if kernel == "avx512" else 64 if tiled else 16
        packed, scales = naive(kept, nbits, run, tiled)
        whole = assembled(copy, 16384)
        assert whole[: len(packed)] == packed
        if product != "int8":
            assert copy.nbytes == len(packed)
            continue
        first = -(-len(packed) // 64) * 64
        sums = naive_sums(nbits)
        assert whole[first : first + len(sums)] == sums
        expected = np.array(scales, np.float32).tobytes()
        second = first + len(sums)
        assert whole[second : second + len(expected)] == expected
        assert copy.nbytes == len(packed) + 63 + len(sums) + len(expected) + 63


def test_without_scales_only_the_values_are_specified() -> None:
    values, nbits = example(5, 4, 8, 64, 32)
    bare = replace(nbits, scales=None)
    (copy, _) = (
        copy
        for copy in offered(stored(values, nbits), "packed_nbits", block_quantizations=(bare,))
        if copy.parameters["products"] == "int8"
    )
    assert copy.unspecified == ((256, copy.nbytes - 256),)


def test_half_precision_scales_are_widened() -> None:
    values, nbits = example(6, 8, 8, 64, 32)
    assert nbits.scales is not None
    half = replace(nbits, scales=nbits.scales.astype(np.float16))
    wide = replace(
        nbits, scales=half.scales.astype(np.float32) if half.scales is not None else None
    )
    weight = stored(values, nbits)
    wanted = {"kernel": "avx512"}
    first = one(weight, "packed_nbits", wanted, block_quantizations=(half,))
    assert assembled(first) == assembled(
        one(weight, "packed_nbits", wanted, block_quantizations=(wide,))
    )


def test_weights_that_do_not_fit_the_use_give_nothing() -> None:
    values, nbits = example(7, 4, 8, 64, 32)
    weight = stored(values, nbits)
    for other in (
        replace(nbits, columns=9),
        replace(nbits, depth=65),
        replace(nbits, bits=2),
        replace(nbits, block_size=24),
        replace(nbits, by_row=True, depth=63),
        replace(nbits, by_row=True, columns=7),
    ):
        assert not offered(weight, "packed_nbits", block_quantizations=(other,))
    assert not offered(weight, "packed_nbits")
    assert not offered(weight.astype(np.float32), "packed_nbits", block_quantizations=(nbits,))
    assert not offered(weight[:0], "packed_nbits", block_quantizations=(nbits,))
