"""Layout hints and readers of a weight, from the graph."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from memdiag.attribution.layout import BlockQuantization, LayoutHints
from memdiag.attribution.layout_hints import layout_hints
from memdiag.attribution.provenance import reads_transposed
from memdiag.model.graph_index import GraphIndex
from memdiag.model.model_file import open_model
from memdiag.model.readers import WeightReader, find_readers
from tests.builders import build, noise, saved

INT4, UINT4 = TensorProto.INT4, TensorProto.UINT4
FUNCTION = '<domain: "my", opset_import: ["": 21]>'
OCTETS = noise(16, 16, dtype=np.uint8)
IF = "If (flag) <then_branch = a () => (p) {{ {} }}, else_branch = b () => (q) {{ {} }}>"


def nibbles(element: int, name: str, *shape: int) -> TensorProto:
    stored = noise((int(np.prod(shape)) + 1) // 2, dtype=np.uint8)
    return helper.make_tensor(name, element, shape, stored.tobytes(), raw=True)


def used(
    folder: Path, body: str, *tensors: TensorProto, functions: str = "", **weights: Any
) -> tuple[LayoutHints, list[WeightReader]]:
    """Return the hints and the readers of the weight w, in whatever graph it is."""
    model = build(
        f"(x, bool flag) => (y) {{ {body} }}",
        opset=21,
        domains={"com.microsoft": 1, "my": 1},
        functions=functions,
        weights=weights,
    )
    model.graph.initializer.extend(tensors)
    with open_model(saved(model, folder)) as opened:
        (weight,) = (weight for weight in opened.weights if weight.name == "w")
        graphs = GraphIndex(opened)
        readers = list(find_readers(graphs, weight))
        return layout_hints(graphs, weight, readers), readers


def blocks(
    folder: Path, body: str, *tensors: TensorProto, **weights: Any
) -> tuple[BlockQuantization, ...]:
    return used(folder, body, *tensors, **weights)[0].block_quantizations


@pytest.mark.parametrize(
    ("body", "permutations"),
    [
        (
            "a = Transpose <perm = [0, 2, 1]> (w) b = Cast <to = 10> (a) "
            "y = Transpose <perm = [1, 0, 2]> (b)",
            ((0, 2, 1), (2, 0, 1)),
        ),
        ("y = Transpose (w)", ((2, 1, 0),)),
        ("a = Reshape (w, shape) y = Transpose <perm = [2, 1, 0]> (a)", ()),  # of another shape
        ("m = MatMul (x, w) y = Transpose (m)", ()),  # of something else
    ],
)
def test_permutations_are_those_of_the_weight(
    tmp_path: Path, body: str, permutations: tuple[tuple[int, ...], ...]
) -> None:
    hints, readers = used(tmp_path, body, w=noise(4, 5, 6), shape=[6, 5, 4])
    assert hints.permutations == permutations
    if "Reshape" in body:
        assert [reader.through for reader in readers] == [(), ("Reshape",)]


@pytest.mark.parametrize(
    ("node", "groups"),
    [
        ("Conv <group = 4> (x, w)", (4,)),
        ("Conv <group = 4> (x, x, w)", ()),
        ("ConvTranspose <group = 4> (x, w)", (4,)),
        ("QLinearConv <group = 4> (x, x, x, w)", (4,)),
        ("QLinearConv <group = 4> (x, w)", ()),
    ],
)
def test_groups_belong_to_the_filter(tmp_path: Path, node: str, groups: tuple[int, ...]) -> None:
    assert used(tmp_path, f"y = {node}", w=noise(8, 4, 3, 3))[0].groups == groups


@pytest.mark.parametrize(("inputs", "heads"), [("x, w", (3,)), ("x, x, w", ())])
def test_heads_belong_to_the_operand(tmp_path: Path, inputs: str, heads: tuple[int, ...]) -> None:
    body = f"y = com.microsoft.Attention <num_heads = 3> ({inputs})"
    assert used(tmp_path, body, w=noise(24, 72))[0].heads == heads


def test_a_quantization_has_its_arrays_and_counts_its_axis_from_the_first(tmp_path: Path) -> None:
    scale, zeros = noise(16), noise(16, dtype=np.uint8)
    body = "y = DequantizeLinear <axis = -1> (w, s, z)"
    (quantization,) = used(tmp_path, body, w=OCTETS, s=scale, z=zeros)[0].quantizations
    assert np.array_equal(quantization.scale, scale)
    assert np.array_equal(np.asarray(quantization.zero_point), zeros)
    assert (quantization.axis, quantization.block_size) == (1, 0)


def test_a_zero_point_takes_the_form_of_its_scale(tmp_path: Path) -> None:
    weights: dict[str, Any] = {"w": OCTETS, "s": np.float32(0.5), "z": np.array([3], np.uint8)}
    hints, _ = used(tmp_path, "y = DequantizeLinear (w, s, z)", **weights)
    (quantization,) = hints.quantizations
    assert quantization.zero_point is not None
    assert quantization.zero_point.shape == quantization.scale.shape == ()


@pytest.mark.parametrize("computed", ["s", "z"])
def test_a_quantization_that_is_computed_is_not_known(tmp_path: Path, computed: str) -> None:
    body = f"{computed} = Cast <to = 1> (x) y = DequantizeLinear (w, s, z)"
    hints, _ = used(tmp_path, body, w=OCTETS, s=noise(16), z=noise(16, dtype=np.uint8))
    assert hints.quantizations == ()


@pytest.mark.parametrize("factor", ["s", "x"])
def test_a_cast_and_a_constant_factor_are_a_quantization(tmp_path: Path, factor: str) -> None:
    body = f"f = Cast <to = 1> (w) m = Mul (f, {factor}) [product] y = MatMul (x, m)"
    hints, readers = used(tmp_path, body, w=OCTETS, s=noise(16))
    ways = {reader.node.label: reader.through for reader in readers}
    if factor == "s":
        assert [quantization.scale.shape for quantization in hints.quantizations] == [(1, 16)]
        assert ways["product"] == ("Cast", "Mul")
    else:
        assert hints.quantizations == ()
        assert "product" not in ways


def multiply(*, zeros: str = ", z", **changes: int) -> str:
    attributes = {"K": 160, "N": 16, "bits": 4, "block_size": 32} | changes
    text = ", ".join(f"{name} = {value}" for name, value in attributes.items())
    return f"y = com.microsoft.MatMulNBits <{text}> (x, w, s{zeros})"


BLOCKS = {"w": noise(16, 5, 16, dtype=np.uint8), "s": noise(80)}


def test_matmulnbits_tells_its_blocks(tmp_path: Path) -> None:
    (nbits,) = blocks(tmp_path, multiply(zeros=""), **BLOCKS)
    assert (nbits.columns, nbits.depth, nbits.block_size, nbits.bits) == (16, 160, 32, 4)
    assert nbits.scales is not None
    assert nbits.scales.shape == (16, 5)
    assert nbits.zero_points is None


def test_zero_points_are_unpacked_by_rows(tmp_path: Path) -> None:
    zeros = noise(16, 3, dtype=np.uint8)
    (nbits,) = blocks(tmp_path, multiply(), **BLOCKS, z=zeros.reshape(-1))
    assert nbits.zero_points is not None
    for column in range(16):
        for block in range(5):
            packed = int(zeros[column, block // 2])
            assert nbits.zero_points[column, block] == packed >> 4 * (block % 2) & 15


def test_scales_are_of_no_use_without_their_zero_points(tmp_path: Path) -> None:
    (nbits,) = blocks(tmp_path, f"z = Cast <to = 2> (x) {multiply()}", **BLOCKS)
    assert nbits.scales is None


@pytest.mark.parametrize("changes", [{"block_size": 0}, {"N": 0}, {"K": -1}, {"bits": 2}])
def test_attributes_that_make_no_sense_say_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    body = multiply(**changes)
    assert blocks(tmp_path, body, **BLOCKS, z=noise(48, dtype=np.uint8)) == ()


@pytest.mark.parametrize(("scales", "zeros"), [(81, 48), (80, 47)])
def test_arrays_of_another_size_are_not_known(tmp_path: Path, scales: int, zeros: int) -> None:
    weights = BLOCKS | {"s": noise(scales), "z": noise(zeros, dtype=np.uint8)}
    (nbits,) = blocks(tmp_path, multiply(), **weights)
    assert nbits.scales is None
    assert nbits.zero_points is None


SCALED = "v = DequantizeLinear <axis = {}, block_size = {}> (w, s, z) "


@pytest.mark.parametrize("element", [INT4, UINT4])
def test_a_dequantized_operand_has_blocks_by_row(tmp_path: Path, element: int) -> None:
    weight, zeros, scale = nibbles(element, "w", 64, 5), nibbles(element, "z", 2, 5), noise(2, 5)
    body = SCALED.format(-2, 32) + "y = MatMul (x, v)"
    (nbits,) = blocks(tmp_path, body, weight, zeros, s=scale)
    assert (nbits.columns, nbits.depth, nbits.by_row) == (5, 64, True)
    assert nbits.signed == (element == INT4)
    assert nbits.scales is not None
    assert np.array_equal(nbits.scales, scale.T)
    assert nbits.zero_points is not None
    values = numpy_helper.to_array(zeros).astype(np.int64) + 8 * nbits.signed
    assert np.array_equal(nbits.zero_points, values.T)


@pytest.mark.parametrize(
    ("body", "rows", "shape"),
    [
        (SCALED.format(1, 32) + "y = MatMul (x, v)", 40, (40, 2)),
        (SCALED.format(1, 32) + "y = MatMul (x, v)", 64, (64, 2)),
        (SCALED.format(0, 32) + "y = MatMul (v, x)", 64, (2, 64)),
        (SCALED.format(0, 32) + "y = Gemm <transB = 1> (x, v)", 64, (2, 64)),
        (SCALED.format(0, 0) + "y = MatMul (x, v)", 64, (64,)),
    ],
)
def test_other_blocks_and_places_give_none(
    tmp_path: Path, body: str, rows: int, shape: tuple[int, ...]
) -> None:
    tensors = nibbles(INT4, "w", rows, 64), nibbles(INT4, "z", *shape)
    hints, _ = used(tmp_path, body, *tensors, s=noise(*shape))
    assert hints.block_quantizations == ()
    assert len(hints.quantizations) == 1


@pytest.mark.parametrize("shape", [(), (1,), (39,)])
@pytest.mark.parametrize("product", ["MatMul", "Gemm"])
@pytest.mark.parametrize("element", [INT4, UINT4, TensorProto.INT8, TensorProto.UINT8])
def test_scales_of_columns_become_those_of_blocks(
    tmp_path: Path, element: int, product: str, shape: tuple[int, ...]
) -> None:
    packed = element in (INT4, UINT4)
    sizes = [256 * 39 // (1 + packed), -(-int(np.prod(shape)) // (1 + packed))]
    weight, zeros = (
        helper.make_tensor(name, element, dims, noise(size, dtype=np.uint8).tobytes(), raw=True)
        for name, dims, size in zip("wz", [(256, 39), shape], sizes, strict=True)
    )
    scale = np.abs(noise(*shape)).astype(np.float32) + np.float32(0.1)
    body = SCALED.format(1, 0) + f"y = {product} (x, v)"
    (nbits,) = blocks(tmp_path, body, weight, zeros, s=scale)
    assert (nbits.block_size, nbits.bits, nbits.by_row) == (32, 4 if packed else 8, True)
    assert nbits.scales is not None
    assert np.array_equal(nbits.scales, np.broadcast_to(scale.reshape(-1, 1), (39, 8)))
    assert nbits.zero_points is not None
    values = numpy_helper.to_array(zeros).astype(np.int64).reshape(-1, 1)
    values += nbits.signed << nbits.bits - 1
    assert np.array_equal(nbits.zero_points, np.broadcast_to(values, (39, 8)))


def test_a_product_in_a_branch_sees_what_is_dequantized_outside(tmp_path: Path) -> None:
    branches = IF.format("[product] p = MatMul (x, v)", "q = Identity (x)")
    body = f"v = DequantizeLinear <axis = 0, block_size = 32> (w, s) y = {branches}"
    hints, readers = used(tmp_path, body, nibbles(UINT4, "w", 64, 8), s=noise(2, 8))
    (nbits,) = hints.block_quantizations
    assert nbits.zero_points is not None
    assert not nbits.zero_points.any()
    (reader,) = (reader for reader in readers if reader.node.name == "product")
    assert (reader.node.op_type, reader.input_index) == ("MatMul", 1)
    assert reader.through == ("DequantizeLinear",)
    assert reads_transposed(reader) is False


def labels(readers: Sequence[WeightReader]) -> list[str]:
    return [reader.node.label for reader in readers]


def test_a_weight_is_followed_into_a_function(tmp_path: Path) -> None:
    functions = f"""{FUNCTION} F (a, b, c) => (out)
        {{ t = DequantizeLinear <axis = 0> (b, c) [inside] out = MatMul (a, t) }}"""
    scale = noise(16)
    body = "[call] y = my.F (x, w, s)"
    hints, readers = used(tmp_path, body, functions=functions, w=OCTETS, s=scale)
    (quantization,) = hints.quantizations
    assert np.array_equal(quantization.scale, scale)
    assert labels(readers) == ["call", "DequantizeLinear_0", "inside"]


@pytest.mark.parametrize("called", ["F", "G"])
def test_a_functions_own_weight_is_used_where_it_is_called(tmp_path: Path, called: str) -> None:
    functions = f"""{FUNCTION} F (a) => (out) {{
        w = Constant <value = float[2, 2] {{1, 2, 3, 4}}> ()
        [turn] t = Transpose <perm = [1, 0]> (w) out = MatMul (a, t) }}"""
    hints, readers = used(tmp_path, f"y = my.{called} (x)", functions=functions)
    assert hints.permutations == (((1, 0),) if called == "F" else ())
    assert ("turn" in labels(readers)) == (called == "F")


def test_subgraphs_of_nodes_with_one_name_are_all_looked_into(tmp_path: Path) -> None:
    with_it = IF.format("[product] p = MatMul (x, w)", "q = Identity (x)").replace(
        "(p) {", "(p) <float[2, 2] w = {1, 2, 3, 4}> {"
    )
    without = IF.format("p = Identity (x)", "q = Identity (x)")
    assert labels(used(tmp_path, f"[if] z = {with_it} [if] y = {without}")[1]) == ["product"]


def test_a_name_that_a_subgraph_gives_anew_is_another_value(tmp_path: Path) -> None:
    shadow = "w = Identity (x) {} = MatMul (x, w)"
    body = f"y = {IF.format(shadow.format('p'), shadow.format('q'))}"
    weight = numpy_helper.from_array(noise(16, 16), "w")
    assert used(tmp_path, body, weight)[1] == []


@pytest.mark.parametrize(
    ("operator", "turned"),
    [("MatMul", False), ("Gemm <transB = 1>", True), ("Conv", None)],
)
def test_a_product_tells_which_way_it_takes_the_weight(
    tmp_path: Path, operator: str, turned: bool | None
) -> None:
    body = (
        f"t = Transpose <perm = [1, 0]> (w) r = Reshape (w, shape) [plain] a = {operator} (x, w) "
        f"[transposed] b = {operator} (x, t) [reshaped] y = {operator} (x, r)"
    )
    _, readers = used(tmp_path, body, w=noise(8, 8), shape=[8, 8])
    ways = {reader.node.name: reads_transposed(reader) for reader in readers if reader.node.name}
    # Behind a Reshape nothing is said of the way.
    other = None if turned is None else not turned
    assert ways == {"plain": turned, "transposed": other, "reshaped": None}


def test_the_domain_of_a_consumer_is_known(tmp_path: Path) -> None:
    body = "y = com.microsoft.FusedMatMul <transB = 1> (x, w)"
    ((reader,)) = used(tmp_path, body, w=noise(8, 8))[1]
    assert (reader.node.domain, reads_transposed(reader)) == ("com.microsoft", True)
