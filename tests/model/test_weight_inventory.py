from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from memdiag.errors import ModelError
from memdiag.model.model_file import ModelFile, open_model
from tests.builders import of_tensors, saved


def tensor(name: str, count: int = 2) -> TensorProto:
    return numpy_helper.from_array(np.arange(count, dtype=np.float32), name)


def opened(
    folder: Path, tensors: list[TensorProto], *nodes: NodeProto, **options: Any
) -> ModelFile:
    model = of_tensors(tensors, *nodes)
    model.graph.sparse_initializer.extend(options.get("sparse", []))
    model.functions.extend(options.get("functions", []))
    return open_model(saved(model, folder))


def graph_of(*nodes: NodeProto, tensors: list[TensorProto]) -> GraphProto:
    return helper.make_graph(nodes, "g", [], [], tensors)


def test_every_place_where_a_weight_hides(tmp_path: Path) -> None:
    node = helper.make_node
    body = graph_of(
        node("Constant", [], ["c"], value=tensor("")),
        node("Loop", [], [], body=graph_of(tensors=[tensor("deep")])),
        tensors=[tensor("inner")],
    )
    nodes = [
        node("If", ["cond"], [], then_branch=body),
        node("ConstantOfShape", ["s"], ["z"], name="fill", value=tensor("")),
        node("Constant", [], ["k"], value=tensor("", 400)),
        node("Table", [], ["t"], keys=[tensor("a"), tensor("b")], axis=1),
    ]
    inside = node("Constant", [], ["fc"], value=tensor(""))
    function = helper.make_function("my.ops", "F", [], ["fc"], [inside], [])
    with opened(tmp_path, [tensor("w", 500)], *nodes, functions=[function]) as model:
        found = [(weight.graph, weight.name, weight.origin) for weight in model.weights]
        assert found == [
            ("", "w", "initializer"),
            ("If_0/then_branch", "inner", "initializer"),
            ("If_0/then_branch", "c", "constant"),
            ("If_0/then_branch/Loop_1/body", "deep", "initializer"),
            ("", "fill.value", "attribute"),
            ("", "k", "constant"),
            ("", "Table_3.keys[0]", "attribute"),
            ("", "Table_3.keys[1]", "attribute"),
            ("my.ops::F", "fc", "function"),
        ]
        assert [weight.nbytes for weight in model.weights] == [2000, 8, 8, 8, 8, 1600, 8, 8, 8]
        assert model.node_count == 6
        for weight in model.weights:
            expected = np.arange(weight.nbytes // 4, dtype=np.float32)
            np.testing.assert_array_equal(model.data(weight), expected)


@pytest.mark.parametrize(
    ("attributes", "dtype", "shape", "nbytes", "values"),
    [
        ({"value_float": 1.5}, "float", (), 4, 1.5),
        ({"value_floats": [1.5, 2.5]}, "float", (2,), 8, [1.5, 2.5]),
        ({"value_int": 3}, "int64", (), 8, 3),
        ({"value_ints": [3, 4, 5]}, "int64", (3,), 24, [3, 4, 5]),
        ({"value_string": "añb"}, "string", (), 4, "añb".encode()),
        ({"value_strings": ["ab", "c"]}, "string", (2,), 3, [b"ab", b"c"]),
    ],
)
def test_constants_of_plain_numbers(
    tmp_path: Path,
    attributes: dict[str, Any],
    dtype: str,
    shape: tuple[int, ...],
    nbytes: int,
    values: object,
) -> None:
    node = helper.make_node("Constant", [], ["c"], **attributes)
    with opened(tmp_path, [], node) as model:
        [weight] = model.weights
        assert (weight.name, weight.origin, weight.storage) == ("c", "constant", "typed")
        assert (weight.dtype, weight.shape, weight.nbytes) == (dtype, shape, nbytes)
        assert model.data(weight).tolist() == values
        assert len(model.raw_bytes(weight)) == nbytes


def test_plain_numbers_of_other_operators_are_no_weights(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Trees", ["x"], ["y"], value_floats=[1.0] * 9, kernel=[3, 3]),
        helper.make_node("Constant", [], ["c"], domain="my.ops", value_float=1.0),
    ]
    with opened(tmp_path, [], *nodes) as model:
        assert not model.weights


def test_a_constant_that_refers_to_its_functions_attribute_has_no_data(tmp_path: Path) -> None:
    node = helper.make_node("Constant", [], ["c"])
    node.attribute.add(name="value_float", ref_attr_name="alpha", type=1)
    function = helper.make_function("my.ops", "F", [], ["c"], [node], [], attributes=["alpha"])
    with opened(tmp_path, [], functions=[function]) as model:
        assert not model.weights


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]], ids=["flat", "by axis"])
def test_sparse_weights_are_counted_and_given_dense(tmp_path: Path, indices: list[int]) -> None:
    values = numpy_helper.from_array(np.array([7, 8], np.float32), "s")
    where = numpy_helper.from_array(np.array(indices, np.int64), "")
    sparse = helper.make_sparse_tensor(values, where, [2, 3])
    node = helper.make_node("Constant", [], ["c"], sparse_value=sparse)
    with opened(tmp_path, [], node, sparse=[sparse]) as model:
        first, second = model.weights
        assert (first.name, first.origin, first.nbytes) == ("s", "sparse", 24)
        assert (second.name, second.origin, second.shape) == ("c", "sparse", (2, 3))
        for weight in model.weights:
            assert model.data(weight).tolist() == [[0, 7, 0], [0, 0, 8]]
            assert len(model.raw_bytes(weight)) == 24


def test_sparse_indices_outside_the_shape_are_an_error(tmp_path: Path) -> None:
    where = numpy_helper.from_array(np.array([6], np.int64), "")
    sparse = helper.make_sparse_tensor(tensor("s", 1), where, [2, 3])
    with (
        opened(tmp_path, [], sparse=[sparse]) as model,
        pytest.raises(ModelError, match="do not fit"),
    ):
        model.data(model.weights[0])


def test_types_that_numpy_lacks_are_given_as_their_bits(tmp_path: Path) -> None:
    tensors = [
        helper.make_tensor("bf16", TensorProto.BFLOAT16, [2], b"\x80\x3f\x00\x40", raw=True),
        helper.make_tensor("f8", TensorProto.FLOAT8E5M2, [3], b"\x01\x02\x03", raw=True),
        helper.make_tensor("i4", TensorProto.INT4, [3], b"\x21\x03", raw=True),
        TensorProto(name="i4 typed", data_type=TensorProto.INT4, dims=[3], int32_data=[0x21, 3]),
        TensorProto(name="f6", data_type=27, dims=[4], int32_data=[1, 2, 3, 63]),
    ]
    with opened(tmp_path, tensors) as model:
        arrays = [model.data(weight) for weight in model.weights]
        assert [weight.nbytes for weight in model.weights] == [4, 3, 2, 2, 3]
        assert arrays[0].tolist() == [0x3F80, 0x4000]
        assert arrays[1].tolist() == [1, 2, 3]
        assert arrays[2].tolist() == arrays[3].tolist() == [0x21, 3]
        assert arrays[4].tolist() == [0x81, 0x30, 0xFC]  # 6 bits each, the first in the lowest
        assert [weight.dtype for weight in model.weights][:3] == ["bfloat16", "float8e5m2", "int4"]


NUMPY_TYPES = [
    *(np.float32, np.uint8, np.int8, np.int16, np.int32, np.int64, np.bool_, np.float16),
    *(np.float64, np.uint32, np.uint64, np.complex64, np.complex128),
]


@pytest.mark.parametrize("numpy_type", NUMPY_TYPES)
def test_typed_fields_hold_what_raw_data_would(tmp_path: Path, numpy_type: type) -> None:
    values: np.ndarray = np.array([0, 1, 3, -2]).astype(numpy_type)
    number = helper.np_dtype_to_tensor_dtype(values.dtype)
    typed = helper.make_tensor("typed", number, [4], values)
    raw = helper.make_tensor("raw", number, [4], values.tobytes(), raw=True)
    with opened(tmp_path, [typed, raw]) as model:
        for weight in model.weights:
            array = model.data(weight)
            assert array.dtype == numpy_type
            np.testing.assert_array_equal(array, values)
            assert bytes(model.raw_bytes(weight)) == values.tobytes()
            assert weight.nbytes == values.nbytes


def test_strings_count_their_characters(tmp_path: Path) -> None:
    strings = TensorProto(name="s", data_type=8, dims=[2], string_data=[b"abc", b"de"])
    with opened(tmp_path, [strings]) as model:
        assert model.weights[0].nbytes == 5
        assert model.data(model.weights[0]).tolist() == [b"abc", b"de"]
        assert bytes(model.raw_bytes(model.weights[0])) == b"abcde"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"data_type": 1, "dims": [2], "raw_data": b"1234"}, "8 bytes (float [2])"),
        ({"data_type": 1, "dims": [2]}, "but has 0"),
        ({"data_type": 7, "dims": [1], "int64_data": [1, 2]}, "but has 16"),
        ({"data_type": 8, "dims": [3], "string_data": [b"a"]}, "3 strings"),
        ({"data_type": 1, "dims": [-1]}, "the shape [-1]"),
        ({"data_type": 1, "dims": [1] * 33, "raw_data": b"1234"}, "has 33 axes"),
        ({"data_type": 0, "dims": [1]}, "element type 0"),
        ({"data_type": 99, "dims": [1], "raw_data": b"1"}, "element type 99"),
        ({"data_type": 8, "dims": [1], "data_location": "EXTERNAL"}, "strings as"),
    ],
)
def test_tensors_that_make_no_sense(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError) as caught:
        opened(tmp_path, [TensorProto(name="w", **fields)])
    assert "initializer 'w'" in str(caught.value)
    assert words in str(caught.value)


def test_as_many_axes_as_numpy_has_are_read(tmp_path: Path) -> None:
    tensor = TensorProto(name="w", data_type=1, dims=[1] * 32, raw_data=b"\0\0\x80?")
    with opened(tmp_path, [tensor]) as model:
        assert model.data(model.weights[0]).tolist() == np.ones([1] * 32).tolist()


def test_an_error_names_the_subgraph(tmp_path: Path) -> None:
    body = graph_of(tensors=[TensorProto(name="w", data_type=1, dims=[2], raw_data=b"1")])
    node = helper.make_node("If", ["c"], [], name="gate", else_branch=body)
    with pytest.raises(ModelError, match="initializer 'w' in gate/else_branch should have"):
        opened(tmp_path, [], node)
