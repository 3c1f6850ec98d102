from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memdiag
from memdiag.attribution.layout import BlockQuantization, LayoutHints
from memdiag.attribution.layouts import all_layouts
from memdiag.model.graph_index import GraphIndex, Use
from memdiag.model.model_file import open_model
from memdiag.ort.prepacking import (
    NCHWC_BLOCK,
    PackedBuffer,
    channel_block,
    fp32_panels,
    int8_panels,
    nbits_blocks,
    packed_buffer,
)
from tests.builders import build, saved
from tests.ort.prepacking_cases import CASES, NEWEST


def predicted(path: Path, block: int = NCHWC_BLOCK) -> PackedBuffer | None:
    """Return what the node of the model at `path` packs its weight w into."""
    with open_model(path) as model:
        graphs = GraphIndex(model)
        (node,) = graphs.main.nodes
        slot = list(node.input).index("w")
        weight = graphs.weight(graphs.main, "w")
        assert weight is not None
        use = Use(graphs.main, node, slot)
        return packed_buffer(graphs, NEWEST, use, weight.dtype, weight.shape, block)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_session_holds_what_was_predicted(tmp_path: Path, name: str) -> None:
    path = saved(CASES[name].model(), tmp_path)
    profile = memdiag.profile(path, run=False, session_options={"intra_op_num_threads": "1"})
    foreseen = predicted(path, channel_block(profile.environment.machine))
    found = profile.attribution
    assert found is not None
    copies = [copy for copy in found.copies if copy.weights == ("w",) and copy.in_use is not False]
    if foreseen is None:
        assert [copy.kind for copy in copies] == ["original"]
    else:
        assert {copy.kind for copy in copies} == {foreseen.kind}
        assert sum(copy.bytes for copy in copies) == foreseen.nbytes


def candidate_sizes(shape: tuple[int, ...], dtype: Any, layout: str, uses: LayoutHints) -> set[int]:
    weight = np.broadcast_to(np.zeros((), dtype), shape)
    (which,) = (one for one in all_layouts() if one.name == layout)
    return {copy.nbytes for copy in which.candidates(weight, uses)}


@given(rows=st.integers(1, 700), columns=st.integers(17, 700))
def test_sizes_are_those_of_the_layouts(rows: int, columns: int) -> None:
    shape = (rows, columns)
    assert {fp32_panels(rows, columns), fp32_panels(columns, rows)} == candidate_sizes(
        shape, np.float32, "packed_fp32", LayoutHints()
    )
    predictions = set()
    for has_amx in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("memdiag.ort.prepacking.has_amx", partial(bool, has_amx))
            predictions |= {int8_panels(*each, "int8") for each in (shape, shape[::-1])}
    assert predictions == candidate_sizes(shape, np.int8, "packed_int8", LayoutHints())


@given(
    columns=st.integers(1, 100),
    depth=st.integers(1, 600),
    block=st.sampled_from([16, 32, 64, 128, 256]),
    bits=st.sampled_from([4, 8]),
)
def test_sizes_of_blocks_are_those_of_the_layout(
    columns: int, depth: int, block: int, bits: int
) -> None:
    nbits = BlockQuantization(columns=columns, depth=depth, block_size=block, bits=bits)
    shape = (columns, nbits.blocks, block * bits // 8)
    sizes = candidate_sizes(
        shape, np.uint8, "packed_nbits", LayoutHints(block_quantizations=(nbits,))
    )
    foreseen = {nbits_blocks(depth, columns, bits, block, accuracy) for accuracy in (0, 4)}
    assert foreseen - {None} == sizes


def test_blocks_that_no_kernel_knows() -> None:
    assert nbits_blocks(512, 256, 4, 24, 4) is None
    assert nbits_blocks(512, 256, 4, 512, 4) is None
    assert nbits_blocks(512, 256, 8, 32, 0) is None
    assert nbits_blocks(512, 256, 2, 16, 4) is None
    # Measured: what the runtime asks its arena for.
    assert nbits_blocks(512, 256, 2, 32, 4) == 65662


Packing = Callable[..., PackedBuffer | None]


@pytest.fixture
def packing(tmp_path: Path) -> Packing:
    """A function: a node, the slot, the type and the shape of a weight to its packed buffer."""

    def pack(
        node: str, shape: tuple[int, ...], *, slot: int = 1, dtype: str = "float"
    ) -> PackedBuffer | None:
        domains = {"com.microsoft": 1, "custom": 1}
        path = saved(build(f"(x) => (y) {{ y = {node} }}", opset=21, domains=domains), tmp_path)
        with open_model(path) as model:
            graphs = GraphIndex(model)
            use = Use(graphs.main, graphs.main.nodes[0], slot)
            return packed_buffer(graphs, NEWEST, use, dtype, shape)

    return pack


@pytest.mark.parametrize(
    ("node", "slot", "dtype", "shape"),
    [
        ("MatMul (x, x, x)", 0, "float", (260, 40)),
        ("MatMul (x, x, x)", 1, "float", (0, 40)),
        ("MatMul (x, x, x)", 1, "float", (40,)),
        ("MatMul (x, x)", 1, "double", (260, 40)),
        ("MatMul (x, x)", 1, "float16", (260, 40)),  # two inputs read it: it is cast in each run
        ("custom.MatMul (x, x)", 1, "float", (260, 40)),
        ("Gather (x, x, x)", 0, "float", (260, 40)),
        ("LSTM (x, x, x)", 1, "float", (260, 40)),
        ("GRU (x, x, x)", 2, "float", (1, 120, 0)),
        ("Conv (x, x, x)", 1, "float", (0, 1, 3, 3)),
        ("ConvTranspose (x, x, x)", 1, "float", (1, 20, 3, 3)),
        ("ConvTranspose (x, x, x)", 1, "float", (16, 1, 1, 1)),
        ("ConvTranspose (x, x, x)", 1, "float", (16, 1)),
        ("ConvTranspose (x, x, x)", 1, "float", ()),
        # Heads and groups that make no sense, and an operator of another domain.
        ("com.microsoft.Attention (x, x)", 1, "float", (260, 48)),
        ("com.microsoft.Attention <num_heads = -1> (x, x)", 1, "float", (260, 48)),
        ("com.microsoft.Attention <num_heads = 5> (x, x)", 1, "float", (260, 48)),
        (
            "com.microsoft.Attention <num_heads = 2, qkv_hidden_sizes = [4, 4]> (x, x)",
            *(1, "float", (260, 48)),
        ),
        ("Attention <num_heads = 2> (x, x)", 1, "float", (260, 48)),
        *((f"Conv <group = {n}> (x, x)", 1, "float", (16, 2, 3, 3)) for n in (0, -1, 3)),
        *((f"ConvTranspose <group = {n}> (x, x)", 1, "float", (16, 2, 3, 3)) for n in (0, -1, 3)),
        *(
            (f"QLinearConv <group = {n}> (x, x, x, x, x)", 3, "int8", (16, 2, 3, 3))
            for n in (0, -1, 3)
        ),
    ],
)
def test_operands_that_are_not_packed(
    packing: Packing, node: str, slot: int, dtype: str, shape: tuple[int, ...]
) -> None:
    assert packing(node, shape, slot=slot, dtype=dtype) is None


@pytest.mark.parametrize(
    ("node", "slot", "dtype", "shape"),
    [
        ("MatMul (x, w)", 1, "float16", (260, 40)),
        ("MatMul (x, x)", 1, "float", (1 << 40, 1 << 40)),  # no session is needed
        ("com.microsoft.Attention <num_heads = 2> (x, x)", 1, "float", (260, 48)),
        ("Conv <group = 2> (x, x)", 1, "float", (32, 16, 3, 3)),
        ("ConvTranspose <group = 4> (x, x)", 1, "float", (16, 2, 3, 3)),
        ("QLinearConv <group = 4> (x, x, x, x, x)", 3, "int8", (16, 4, 3, 3)),
    ],
)
def test_operands_that_are_packed(
    packing: Packing, node: str, slot: int, dtype: str, shape: tuple[int, ...]
) -> None:
    found = packing(node, shape, slot=slot, dtype=dtype)
    assert found is not None
    if "MatMul" in node:
        assert found == PackedBuffer("packed", fp32_panels(*shape))


def test_panels_of_floats_have_16_columns() -> None:
    assert fp32_panels(260, 40) == 260 * 48 * 4
    assert fp32_panels(1 << 40, 1 << 40) == prod((1 << 40, 1 << 40)) * 4
