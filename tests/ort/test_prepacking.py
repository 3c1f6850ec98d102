from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import memdiag
from memdiag.attribution.layout import BlockQuantization, LayoutHints
from memdiag.attribution.layouts import all_layouts
from memdiag.model.graph_index import GraphIndex, Use
from memdiag.model.model_file import ModelFile, open_model
from memdiag.ort.prepacking import (
    NCHWC_BLOCK,
    PackedBuffer,
    channel_block,
    fp32_panels,
    int8_panels,
    nbits_blocks,
    packed_buffer,
)
from memdiag.ort.runtime import Runtime
from tests.ort.prepacking_cases import (
    BYTE,
    CASES,
    FLOAT,
    MS,
    NEWEST,
    SCALE,
    ZERO,
    Case,
    Open,
    Takes,
)


def noise(shape: tuple[int, ...], dtype: Any, seed: int = 1) -> Any:
    random = np.random.default_rng(seed)
    if dtype in (np.int8, np.uint8):
        return random.integers(0, 256, shape).astype(np.uint8).view(dtype)
    return random.standard_normal(shape).astype(dtype)


def proto(case: Case, **more: Any) -> onnx.ModelProto:
    constants = {"w": noise(case.shape, case.dtype), "scale": SCALE, "byte": BYTE, "zero": ZERO}
    if case.operator == "LSTM":
        constants["small"] = noise((1, 120, 30), np.float32, 2)
    if case.operator == "GRU":
        constants["small"] = noise((1, 120, 8), np.float32, 2)
    if "b" in case.inputs:
        constants["b"] = noise((case.shape[1],), np.float32, 3)
    inputs = ["x" if name == "v" else name for name in case.inputs]
    takes: Takes = (FLOAT, ["s", "b", 8]) if case.operator == "GRU" else case.takes
    constants |= more
    node = helper.make_node(
        case.operator, inputs, ["y"], name="node", domain=case.domain, **case.attributes
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", *takes)],
        [helper.make_tensor_value_info("y", case.gives, None)],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()],
    )
    return made(graph)


def made(graph: onnx.GraphProto, ir_version: int = 10) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    def save_and_open(of: onnx.ModelProto | str, **options: Any) -> ModelFile:
        if isinstance(of, str):
            of = onnx.parser.parse_model(of)
        path = tmp_path / "model.onnx"
        onnx.save(of, path, **options)
        return open_model(path)

    return save_and_open


def predicted(
    of: ModelFile, slot: int, runtime: Runtime = NEWEST, block: int = NCHWC_BLOCK
) -> PackedBuffer | None:
    """What the last node of the main graph packs its weight at `slot` into."""
    graphs = GraphIndex(of)
    _, scope = next(iter(graphs))
    node = scope.nodes[-1]
    weight = graphs.weight(scope, node.input[slot])
    assert weight is not None
    use = Use(scope, node, slot)
    return packed_buffer(graphs, runtime, use, weight.dtype, weight.shape, block)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_session_holds_what_was_predicted(opened: Open, name: str) -> None:
    case = CASES[name]
    of = opened(proto(case))
    profile = memdiag.profile(of.path, run=False, session_options={"intra_op_num_threads": "1"})
    foreseen = predicted(of, case.slot, block=channel_block(profile.environment.machine))
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


@pytest.mark.parametrize(
    ("operator", "slot", "shape"),
    [
        ("MatMul", 0, (260, 40)),
        ("MatMul", 1, (0, 40)),
        ("MatMul", 1, (40,)),
        ("Gather", 0, (260, 40)),
        ("LSTM", 1, (260, 40)),
        ("Conv", 1, (0, 1, 3, 3)),
        ("ConvTranspose", 1, (1, 20, 3, 3)),
        ("ConvTranspose", 1, (16, 1, 1, 1)),
        ("ConvTranspose", 1, (16, 1)),
        ("ConvTranspose", 1, ()),
        ("GRU", 2, (1, 120, 0)),
    ],
)
def test_operands_that_are_not_packed(
    opened: Open, operator: str, slot: int, shape: tuple[int, ...]
) -> None:
    graphs, scope, node = a_node(opened, operator, ["x", "x", "x"])
    assert packed_buffer(graphs, NEWEST, Use(scope, node, slot), "float", shape) is None


def a_node(opened: Open, operator: str, inputs: list[str], **more: Any) -> Any:
    node = helper.make_node(operator, inputs, ["y"], **more)
    info = helper.make_tensor_value_info
    of = opened(made(helper.make_graph([node], "g", [info("x", 1, None)], [info("y", 1, None)])))
    graphs = GraphIndex(of)
    _, scope = next(iter(graphs))
    return graphs, scope, scope.nodes[0]


def test_an_operator_of_another_domain_is_another_operator(opened: Open) -> None:
    graphs, scope, node = a_node(opened, "MatMul", ["x", "x"], domain="custom")
    assert packed_buffer(graphs, NEWEST, Use(scope, node, 1), "float", (260, 40)) is None
    graphs, scope, node = a_node(opened, "Attention", ["x", "x"], num_heads=2)
    assert packed_buffer(graphs, NEWEST, Use(scope, node, 1), "float", (260, 48)) is None


def test_other_types_are_not_packed(opened: Open) -> None:
    graphs, scope, node = a_node(opened, "MatMul", ["x", "x"])
    assert packed_buffer(graphs, NEWEST, Use(scope, node, 1), "double", (260, 40)) is None
    half = packed_buffer(graphs, NEWEST, Use(scope, node, 1), "float16", (260, 40))
    assert half is None  # two inputs read the constant: it is cast in each run
    graphs, scope, node = a_node(opened, "MatMul", ["x", "w"])
    half = packed_buffer(graphs, NEWEST, Use(scope, node, 1), "float16", (260, 40))
    assert half == PackedBuffer("packed", fp32_panels(260, 40))


@pytest.mark.parametrize(
    "attributes",
    [{}, {"num_heads": -1}, {"num_heads": 5}, {"num_heads": 2, "qkv_hidden_sizes": [4, 4]}],
)
def test_attention_of_odd_heads_is_not_packed(opened: Open, attributes: dict[str, Any]) -> None:
    graphs, scope, node = a_node(opened, "Attention", ["x", "x"], domain=MS, **attributes)
    assert packed_buffer(graphs, NEWEST, Use(scope, node, 1), "float", (260, 48)) is None


@pytest.mark.parametrize("group", [0, -1, 3])
@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose", "QLinearConv"])
def test_groups_that_make_no_sense(opened: Open, operator: str, group: int) -> None:
    graphs, scope, node = a_node(opened, operator, ["x"] * 8, group=group)
    slot = 3 if operator == "QLinearConv" else 1
    dtype = "int8" if operator == "QLinearConv" else "float"
    assert packed_buffer(graphs, NEWEST, Use(scope, node, slot), dtype, (16, 2, 3, 3)) is None


def test_no_session_is_needed_for_absurd_shapes(opened: Open) -> None:
    graphs, scope, node = a_node(opened, "MatMul", ["x", "x"])
    shape = (1 << 40, 1 << 40)
    found = packed_buffer(graphs, NEWEST, Use(scope, node, 1), "float", shape)
    assert found is not None
    assert found.nbytes == prod(shape) * 4
