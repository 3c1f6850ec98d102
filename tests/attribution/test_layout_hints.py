"""Layout hints and readers of a weight, from the graph."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from memdiag.attribution.layout import LayoutHints
from memdiag.attribution.layout_hints import layout_hints
from memdiag.attribution.provenance import reads_transposed
from memdiag.model.graph_index import GraphIndex
from memdiag.model.model_file import open_model
from memdiag.model.readers import WeightReader, find_readers

RANDOM = np.random.default_rng(7)
node = helper.make_node


def noise(*shape: int) -> NDArray[np.float32]:
    return RANDOM.standard_normal(shape, np.float32)


def octets(*shape: int) -> NDArray[np.uint8]:
    return RANDOM.integers(0, 256, shape).astype(np.uint8)


def nibbles(element: int, name: str, *shape: int) -> onnx.TensorProto:
    stored = octets((int(np.prod(shape)) + 1) // 2)
    return helper.make_tensor(name, element, shape, stored.tobytes(), raw=True)


def used(
    folder: Path,
    nodes: Sequence[onnx.NodeProto],
    constants: dict[str, Any],
    *tensors: onnx.TensorProto,
    functions: Sequence[onnx.FunctionProto] = (),
    weight: str = "w",
) -> tuple[LayoutHints, tuple[WeightReader, ...]]:
    """Return the hints and the readers of the weight called `weight`, in whatever graph it is."""
    graph = helper.make_graph(
        nodes,
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [*(numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()), *tensors],
    )
    opsets = [helper.make_opsetid(*one) for one in (("", 21), ("com.microsoft", 1), ("my", 1))]
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, functions=list(functions)), path)
    with open_model(path) as model:
        (of_name,) = (one for one in model.weights if one.name == weight)
        graphs = GraphIndex(model)
        of_weight = tuple(find_readers(graphs, of_name))
        return layout_hints(graphs, of_name, of_weight), of_weight


def branch(*nodes: onnx.NodeProto, tensors: Sequence[onnx.TensorProto] = ()) -> onnx.GraphProto:
    output = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    return helper.make_graph(nodes, "branch", [], [output], tensors)


FLAG = numpy_helper.from_array(np.array(True), "flag")


def test_transposes_add_up(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["w"], ["a"], perm=[0, 2, 1]),
        node("Cast", ["a"], ["b"], to=TensorProto.FLOAT16),
        node("Transpose", ["b"], ["y"], perm=[1, 0, 2]),
    ]
    hints, _ = used(tmp_path, nodes, {"w": noise(4, 5, 6)})
    assert hints.permutations == ((0, 2, 1), (2, 0, 1))


def test_a_transpose_of_another_shape_says_nothing(tmp_path: Path) -> None:
    nodes = [
        node("Reshape", ["w", "shape"], ["a"]),
        node("Transpose", ["a"], ["y"], perm=[2, 1, 0]),
    ]
    hints, found = used(tmp_path, nodes, {"w": noise(4, 5, 6), "shape": [6, 5, 4]})
    assert hints.permutations == ()
    assert [one.through for one in found] == [(), ("Reshape",)]


def test_a_transpose_without_an_order_reverses_the_axes(tmp_path: Path) -> None:
    hints, _ = used(tmp_path, [node("Transpose", ["w"], ["y"])], {"w": noise(4, 5, 6)})
    assert hints.permutations == ((2, 1, 0),)


@pytest.mark.parametrize(
    ("op_type", "slot", "groups"),
    [
        ("Conv", 1, (4,)),
        ("Conv", 2, ()),
        ("ConvTranspose", 1, (4,)),
        ("QLinearConv", 3, (4,)),
        ("QLinearConv", 1, ()),
    ],
)
def test_groups_belong_to_the_filter(
    tmp_path: Path, op_type: str, slot: int, groups: tuple[int, ...]
) -> None:
    inputs = ["x"] * slot + ["w"]
    hints, _ = used(tmp_path, [node(op_type, inputs, ["y"], group=4)], {"w": noise(8, 4, 3, 3)})
    assert hints.groups == groups


@pytest.mark.parametrize(("slot", "heads"), [(1, (3,)), (2, ())])
def test_heads_belong_to_the_operand(tmp_path: Path, slot: int, heads: tuple[int, ...]) -> None:
    inputs = ["x"] * slot + ["w"]
    attention = node("Attention", inputs, ["y"], domain="com.microsoft", num_heads=3)
    hints, _ = used(tmp_path, [attention], {"w": noise(24, 72)})
    assert hints.heads == heads


def test_a_zero_point_takes_the_form_of_its_scale(tmp_path: Path) -> None:
    constants = {"w": octets(16, 16), "s": np.float32(0.5), "z": np.array([3], np.uint8)}
    hints, _ = used(tmp_path, [node("DequantizeLinear", ["w", "s", "z"], ["y"])], constants)
    (quantization,) = hints.quantizations
    assert quantization.zero_point is not None
    assert quantization.zero_point.shape == quantization.scale.shape == ()


@pytest.mark.parametrize("unknown", ["s", "z"])
def test_a_quantization_that_is_computed_is_not_known(tmp_path: Path, unknown: str) -> None:
    constants = {"w": octets(16, 16), "s": noise(16), "z": octets(16)}
    del constants[unknown]
    nodes = [
        node("Cast", ["x"], [unknown], to=TensorProto.FLOAT),
        node("DequantizeLinear", ["w", "s", "z"], ["y"]),
    ]
    assert used(tmp_path, nodes, constants)[0].quantizations == ()


def test_a_factor_that_is_no_constant_ends_the_way(tmp_path: Path) -> None:
    nodes = [
        node("Cast", ["w"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["f", "x"], ["m"]),
        node("MatMul", ["x", "m"], ["y"], name="product"),
    ]
    hints, found = used(tmp_path, nodes, {"w": octets(16, 16)})
    assert hints.quantizations == ()
    assert "product" not in {one.node.label for one in found}


def multiply(**changes: int) -> onnx.NodeProto:
    attributes: dict[str, Any] = {"K": 160, "N": 16, "bits": 4, "block_size": 32} | changes
    return node("MatMulNBits", ["x", "w", "s", "z"], ["y"], domain="com.microsoft", **attributes)


def test_zero_points_are_unpacked_by_rows(tmp_path: Path) -> None:
    zeros = octets(16, 3)
    constants = {"w": octets(16, 5, 16), "s": noise(80), "z": zeros.reshape(-1)}
    (nbits,) = used(tmp_path, [multiply()], constants)[0].block_quantizations
    assert nbits.zero_points is not None
    for column in range(16):
        for block in range(5):
            packed = int(zeros[column, block // 2])
            assert nbits.zero_points[column, block] == packed >> 4 * (block % 2) & 15


def test_scales_are_of_no_use_without_their_zero_points(tmp_path: Path) -> None:
    constants = {"w": octets(16, 5, 16), "s": noise(80)}
    nodes = [node("Cast", ["x"], ["z"], to=TensorProto.UINT8), multiply()]
    (nbits,) = used(tmp_path, nodes, constants)[0].block_quantizations
    assert nbits.scales is None


@pytest.mark.parametrize("changes", [{"block_size": 0}, {"N": 0}, {"K": -1}, {"bits": 2}])
def test_attributes_that_make_no_sense_say_nothing(tmp_path: Path, changes: dict[str, int]) -> None:
    constants = {"w": octets(16, 5, 16), "s": noise(80), "z": octets(48)}
    assert used(tmp_path, [multiply(**changes)], constants)[0].block_quantizations == ()


@pytest.mark.parametrize(("scales", "zeros"), [(81, 48), (80, 47)])
def test_arrays_of_another_size_are_not_known(tmp_path: Path, scales: int, zeros: int) -> None:
    constants = {"w": octets(16, 5, 16), "s": noise(scales), "z": octets(zeros)}
    (nbits,) = used(tmp_path, [multiply()], constants)[0].block_quantizations
    assert nbits.scales is None
    assert nbits.zero_points is None


def dequantized(
    axis: int = 0, block: int = 32, product: str = "MatMul", slot: int = 1, trans: int = 0
) -> list[onnx.NodeProto]:
    inputs = ["x", "x"]
    inputs[slot] = "v"
    attributes: dict[str, Any] = {"axis": axis, "block_size": block}
    turned: dict[str, Any] = {"transB": 1} if trans else {}
    scaled = node("DequantizeLinear", ["w", "s", "z"], ["v"], **attributes)
    return [scaled, node(product, inputs, ["y"], **turned)]


@pytest.mark.parametrize("element", [TensorProto.INT4, TensorProto.UINT4])
def test_a_dequantized_operand_has_blocks_by_row(tmp_path: Path, element: int) -> None:
    weight, zeros = nibbles(element, "w", 64, 5), nibbles(element, "z", 2, 5)
    scale = noise(2, 5)
    (nbits,) = used(tmp_path, dequantized(-2), {"s": scale}, weight, zeros)[0].block_quantizations
    assert (nbits.columns, nbits.depth, nbits.by_row) == (5, 64, True)
    assert nbits.signed == (element == TensorProto.INT4)
    assert nbits.scales is not None
    assert np.array_equal(nbits.scales, scale.T)
    assert nbits.zero_points is not None
    values = numpy_helper.to_array(zeros).astype(np.int64) + 8 * nbits.signed
    assert np.array_equal(nbits.zero_points, values.T)


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        (dequantized(axis=1), (40, 2)),
        (dequantized(axis=1), (64, 2)),
        (dequantized(slot=0), (2, 64)),
        (dequantized(product="Gemm", trans=1), (2, 64)),
        (dequantized(axis=0, block=0), (64,)),
    ],
)
def test_other_blocks_and_places_give_none(
    tmp_path: Path, nodes: list[onnx.NodeProto], shape: tuple[int, ...]
) -> None:
    rows = 40 if 40 in shape else 64
    weight = nibbles(TensorProto.INT4, "w", rows, 64)
    zeros = nibbles(TensorProto.INT4, "z", *shape)
    hints, _ = used(tmp_path, nodes, {"s": noise(*shape)}, weight, zeros)
    assert hints.block_quantizations == ()
    assert len(hints.quantizations) == 1


@pytest.mark.parametrize("shape", [(), (1,), (39,)])
@pytest.mark.parametrize("product", ["MatMul", "Gemm"])
@pytest.mark.parametrize(
    "element", [TensorProto.INT4, TensorProto.UINT4, TensorProto.INT8, TensorProto.UINT8]
)
def test_scales_of_columns_become_those_of_blocks(
    tmp_path: Path, element: int, product: str, shape: tuple[int, ...]
) -> None:
    packed = element in (TensorProto.INT4, TensorProto.UINT4)
    stored = [octets(256 * 39 // (1 + packed)), octets(-(-int(np.prod(shape)) // (1 + packed)))]
    weight, zeros = (
        helper.make_tensor(name, element, dims, values.tobytes(), raw=True)
        for name, dims, values in zip("wz", [(256, 39), shape], stored, strict=True)
    )
    scale = np.abs(noise(*shape)) + np.float32(0.1)
    (nbits,) = used(tmp_path, dequantized(1, 0, product), {"s": scale}, weight, zeros)[
        0
    ].block_quantizations
    assert (nbits.block_size, nbits.bits, nbits.by_row) == (32, 4 if packed else 8, True)
    assert nbits.scales is not None
    assert np.array_equal(nbits.scales, np.broadcast_to(scale.reshape(-1, 1), (39, 8)))
    assert nbits.zero_points is not None
    values = numpy_helper.to_array(zeros).astype(np.int64).reshape(-1, 1)
    values += nbits.signed << nbits.bits - 1
    assert np.array_equal(nbits.zero_points, np.broadcast_to(values, (39, 8)))


def test_a_product_in_a_branch_sees_what_is_dequantized_outside(tmp_path: Path) -> None:
    scaled = node("DequantizeLinear", ["w", "s"], ["v"], axis=0, block_size=32)
    product = branch(node("MatMul", ["x", "v"], ["p"], name="product"))
    other = branch(node("Identity", ["x"], ["q"]))
    nodes = [scaled, node("If", ["flag"], ["y"], then_branch=product, else_branch=other)]
    weight = nibbles(TensorProto.UINT4, "w", 64, 8)
    hints, found = used(tmp_path, nodes, {"s": noise(2, 8)}, weight, FLAG)
    (nbits,) = hints.block_quantizations
    assert nbits.zero_points is not None
    assert not nbits.zero_points.any()
    (reader,) = (one for one in found if one.node.name == "product")
    assert (reader.node.op_type, reader.input_index) == ("MatMul", 1)
    assert reader.through == ("DequantizeLinear",)
    assert reads_transposed(reader) is False


def function(*nodes: onnx.NodeProto, inputs: Sequence[str]) -> onnx.FunctionProto:
    return helper.make_function(
        "my", "F", list(inputs), ["out"], list(nodes), [helper.make_opsetid("", 21)]
    )


def test_a_weight_is_followed_into_a_function(tmp_path: Path) -> None:
    body = function(
        node("DequantizeLinear", ["b", "c"], ["t"], axis=0),
        node("MatMul", ["a", "t"], ["out"], name="inside"),
        inputs=("a", "b", "c"),
    )
    scale = noise(16)
    constants = {"w": octets(16, 16), "s": scale}
    call = node("F", ["x", "w", "s"], ["y"], domain="my", name="call")
    hints, found = used(tmp_path, [call], constants, functions=[body])
    (quantization,) = hints.quantizations
    assert np.array_equal(quantization.scale, scale)
    assert [one.node.label for one in found] == ["call", "DequantizeLinear_0", "inside"]


@pytest.mark.parametrize("called", [True, False])
def test_a_functions_own_weight_is_used_where_it_is_called(tmp_path: Path, called: bool) -> None:
    body = function(
        node("Constant", [], ["w"], value=numpy_helper.from_array(noise(16, 16))),
        node("Transpose", ["w"], ["t"], perm=[1, 0], name="turn"),
        node("MatMul", ["a", "t"], ["out"]),
        inputs=("a",),
    )
    call = node("F" if called else "G", ["x"], ["y"], domain="my")
    hints, found = used(tmp_path, [call], {}, functions=[body])
    assert hints.permutations == (((1, 0),) if called else ())
    assert ("turn" in {one.node.label for one in found}) == called


def test_subgraphs_of_nodes_with_one_name_are_all_looked_into(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(noise(16, 16), "w")
    with_it = branch(node("MatMul", ["x", "w"], ["p"], name="product"), tensors=[weight])
    without = branch(node("Identity", ["x"], ["q"]))
    nodes = [
        node("If", ["flag"], ["z"], name="if", then_branch=with_it, else_branch=without),
        node("If", ["flag"], ["y"], name="if", then_branch=without, else_branch=without),
    ]
    _, found = used(tmp_path, nodes, {}, FLAG)
    assert [one.node.label for one in found] == ["product"]


def test_a_name_that_a_subgraph_gives_anew_is_another_value(tmp_path: Path) -> None:
    shadow = branch(
        node("Identity", ["x"], ["w"]), node("MatMul", ["x", "w"], ["p"], name="product")
    )
    nodes = [node("If", ["flag"], ["y"], then_branch=shadow, else_branch=shadow)]
    assert used(tmp_path, nodes, {"w": noise(16, 16)}, FLAG)[1] == ()


@pytest.mark.parametrize(
    ("operator", "attributes", "turned"),
    [("MatMul", {}, False), ("Gemm", {"transB": 1}, True), ("Conv", {}, None)],
)
def test_a_product_tells_which_way_it_takes_the_weight(
    tmp_path: Path, operator: str, attributes: dict[str, Any], turned: bool | None
) -> None:
    nodes = [
        node("Transpose", ["w"], ["t"], perm=[1, 0]),
        node(operator, ["x", "w"], ["a"], name="as it is", **attributes),
        node(operator, ["x", "t"], ["y"], name="behind a Transpose", **attributes),
    ]
    _, found = used(tmp_path, nodes, {"w": noise(8, 8)})
    ways = {one.node.label: reads_transposed(one) for one in found if one.node.op_type == operator}
    other = None if turned is None else not turned
    assert ways == {"as it is": turned, "behind a Transpose": other}


def test_behind_a_reshape_nothing_is_said_of_the_way(tmp_path: Path) -> None:
    nodes = [
        node("Reshape", ["w", "shape"], ["r"]),
        node("MatMul", ["x", "r"], ["y"], name="product"),
    ]
    _, found = used(tmp_path, nodes, {"w": noise(4, 16), "shape": np.array([8, 8])})
    assert [reads_transposed(one) for one in found if one.node.label == "product"] == [None]


def test_the_domain_of_a_consumer_is_known(tmp_path: Path) -> None:
    _, found = used(
        tmp_path,
        [node("FusedMatMul", ["x", "w"], ["y"], domain="com.microsoft", transB=1)],
        {"w": noise(8, 8)},
    )
    assert [(one.node.domain, reads_transposed(one)) for one in found] == [("com.microsoft", True)]
