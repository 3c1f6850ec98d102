from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper

from memdiag.errors import ModelError
from memdiag.model.wire import (
    MAX_MESSAGE_DEPTH,
    MIN_NUMBERS_BYTES,
    MIN_REFERENCED_BYTES,
    THIS_FILE,
    model_skeleton,
)
from tests.builders import build, of_tensors

LARGE = b"\x07" * 4000


def serialized(tensors: list[TensorProto], *nodes: NodeProto) -> bytes:
    return bytes(of_tensors(tensors, *nodes).SerializeToString())


def raw_weight(data: bytes = LARGE) -> TensorProto:
    return helper.make_tensor("w", TensorProto.FLOAT, [len(data) // 4], data, raw=True)


def with_weight(data: bytes) -> bytes:
    """Return a model of one raw float weight, which a node follows."""
    return serialized([raw_weight(data)], helper.make_node("Identity", ["w"], ["y"]))


def reference(tensor: TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def is_unchanged(data: bytes, *, compact: bool = False) -> bool:
    return model_skeleton(data, origin="m.onnx", compact=compact).proto == data


def error(data: bytes) -> str:
    with pytest.raises(ModelError) as caught:
        model_skeleton(data, origin="broken.onnx")
    return str(caught.value)


def field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field of a number below 16."""
    size, length = len(content), b""
    while size >= 0x80:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def test_large_raw_data_becomes_a_reference_into_the_file() -> None:
    data = with_weight(LARGE)
    parts = model_skeleton(data, origin="m.onnx")
    [tensor] = ModelProto.FromString(parts.proto).graph.initializer
    entries = reference(tensor)
    offset, length = int(entries["offset"]), int(entries["length"])
    assert entries["location"] == THIS_FILE
    assert data[offset : offset + length] == LARGE
    assert tensor.data_location == TensorProto.EXTERNAL
    assert not tensor.HasField("raw_data")
    assert parts.references == {offset: "raw"}
    assert len(parts.proto) < 300


@pytest.mark.parametrize(
    ("size", "referenced"), [(MIN_REFERENCED_BYTES, True), (MIN_REFERENCED_BYTES - 4, False)]
)
def test_the_threshold_is_the_smallest_size_that_is_referenced(size: int, referenced: bool) -> None:
    parts = model_skeleton(with_weight(bytes(size)), origin="m.onnx")
    assert bool(parts.references) == referenced


def test_a_model_without_large_tensors_is_returned_as_it_is() -> None:
    assert is_unchanged(with_weight(b"1234"))


def test_the_location_can_be_a_real_file_name() -> None:
    parts = model_skeleton(with_weight(LARGE), origin="m.onnx", location="m.onnx")
    [tensor] = ModelProto.FromString(parts.proto).graph.initializer
    assert reference(tensor)["location"] == "m.onnx"


@pytest.mark.parametrize(
    ("element_type", "numpy_type"),
    [(TensorProto.FLOAT, np.float32), (TensorProto.DOUBLE, np.float64)],
)
def test_packed_floats_are_referenced_as_typed_data(element_type: int, numpy_type: type) -> None:
    values: np.ndarray = np.arange(500).astype(numpy_type)
    weight = helper.make_tensor("w", element_type, [500], values)
    data = serialized([weight])
    [(offset, storage)] = model_skeleton(data, origin="m.onnx").references.items()
    assert storage == "typed"
    assert data[offset : offset + values.nbytes] == values.tobytes()


@pytest.mark.parametrize(
    ("element_type", "field"),
    [
        (TensorProto.INT8, "int32_data"),
        (TensorProto.INT64, "int64_data"),
        (TensorProto.UINT64, "uint64_data"),
    ],
)
@pytest.mark.parametrize("missing", [0, 1])
def test_many_packed_integers_are_referenced_where_that_is_asked_for(
    element_type: int, field: str, missing: int
) -> None:
    count = MIN_NUMBERS_BYTES - missing
    weight = helper.make_tensor("w", element_type, [count], [1] * count)
    data = serialized([weight])
    parts = model_skeleton(data, origin="m.onnx", compact=True)
    if missing:
        assert parts.proto == data
        return
    [(offset, stored)] = parts.references.items()
    assert stored == field
    assert data[offset : offset + count] == b"\x01" * count
    assert len(parts.proto) < 300


IN_TWO_FIELDS: Any = {"int32_data": [1] * 20_000, "int64_data": [1] * 20_000}


@pytest.mark.parametrize(
    ("weight", "compact"),
    [
        # Packed integers are not the bytes of raw data.
        (helper.make_tensor("w", TensorProto.INT64, [2000], [1] * 2000), False),
        (helper.make_tensor("w", TensorProto.INT32, [2000], [1] * 2000), False),
        (TensorProto(name="w", data_type=3, dims=[20_000], **IN_TWO_FIELDS), True),
        (TensorProto(name="w", data_type=6, dims=[500], float_data=[1.0] * 500), False),
        (
            TensorProto(
                name="w", data_type=1, dims=[1000], raw_data=LARGE, data_location="EXTERNAL"
            ),
            False,
        ),
    ],
    ids=["int64", "int32", "integers in two fields", "floats of another type", "external already"],
)
def test_data_that_is_not_the_bytes_of_the_weight_stays(weight: TensorProto, compact: bool) -> None:
    assert is_unchanged(serialized([weight]), compact=compact)


def test_the_last_raw_data_counts_as_in_protobuf() -> None:
    tensor = TensorProto(name="w", data_type=2, dims=[4000]).SerializeToString()
    first, last = b"\x01" * 4000, b"\x02" * 4000
    graph = field(5, tensor + field(9, first) + field(9, last))
    data = b"\x08\x0a" + field(7, graph)
    assert ModelProto.FromString(data).graph.initializer[0].raw_data == last
    [offset] = model_skeleton(data, origin="m.onnx").references
    assert data[offset : offset + 4000] == last


def of_graph(graph: bytes) -> bytes:
    return b"\x08\x0a" + field(7, graph)


def nested(levels: int) -> bytes:
    """Return a model of graphs in nodes in graphs, `levels` messages below the main graph."""
    content = field(9, LARGE)
    for number in reversed([1, 5, 6] * (levels // 3)):  # node, attribute, graph
        content = field(number, content)
    return of_graph(content)


# protobuf would merge a tensor that is given twice.
TENSOR = TensorProto(name="w", data_type=2, dims=[4000], raw_data=LARGE).SerializeToString()
TWICE = field(1, b"value") + field(5, TENSOR) + field(5, TENSOR)
WHOLE = of_graph(field(5, field(9, LARGE)))
NAME_PAST_ITS_TENSOR = b"\x42\x7fw"  # a name that announces 127 bytes and has one
PRODUCER = field(2, b"producer" * 20)
AGAIN = "Download or export it again."


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (of_graph(field(1, field(4, b"Constant") + field(5, TWICE))), "damaged at byte 4,0"),
        (WHOLE[:-2048], f"broken.onnx: incomplete: it ends at least 2 KiB too early. {AGAIN}"),
        (WHOLE[:-1], "too early"),
        ((with_weight(LARGE) + field(14, b"a property"))[:-3], "ends at least 3 B too early"),
        (
            of_graph(field(5, field(9, LARGE) + NAME_PAST_ITS_TENSOR)) + PRODUCER,
            "damaged at byte",
        ),
        (nested(300), f"more than {MAX_MESSAGE_DEPTH} messages are nested. "),
        (of_graph(b"\x2b" + field(5, field(9, LARGE)) + b"\x2c"), "damaged at byte"),
        (b"", f"broken.onnx: the file is empty. {AGAIN}"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "broken.onnx: not an ONNX model. "),
        (b"This is a text about a model.\n" * 10, "broken.onnx: not an ONNX model. "),
        (b"<!DOCTYPE html><html><body>404</body></html>", "broken.onnx: not an ONNX model. "),
        (b"\x0b\x0c", "broken.onnx: not an ONNX model. "),
        (b"\x00" * 100, "broken.onnx: not an ONNX model. "),
        (b"\xff" * 100, "broken.onnx: not an ONNX model. "),
        (b"PK\x03\x04" + b"\x00" * 60, "broken.onnx: not an ONNX model. "),
    ],
    ids=[
        *("a tensor twice", "cut by 2 KiB", "cut by a byte", "cut after the graph"),
        *("a length past its parent", "deep nesting", "a group in the graph", "empty", "git lfs"),
        *("png", "text", "html", "group", "zeros", "ones", "zip"),
    ],
)
def test_files_that_are_no_whole_models_are_refused(data: bytes, words: str) -> None:
    assert words in error(data)


@pytest.mark.parametrize(
    "data",
    [
        nested(MAX_MESSAGE_DEPTH - 10),
        # Too small to be walked, and the parser's to refuse.
        of_graph(field(5, NAME_PAST_ITS_TENSOR)) + PRODUCER,
    ],
    ids=["nesting", "a small length past its parent"],
)
def test_what_is_not_referenced_is_not_judged(data: bytes) -> None:
    assert is_unchanged(data)


def test_unknown_fields_are_kept() -> None:
    unknown = b"\xa2\x7d\x03new"
    skeleton = model_skeleton(with_weight(LARGE) + unknown, origin="m").proto
    assert unknown in ModelProto.FromString(skeleton).SerializeToString()


def test_the_skeleton_is_a_model_that_onnx_can_parse() -> None:
    model = build("(float[n] x) => (float[n] y) { y = Abs(x) }")
    model.graph.initializer.append(raw_weight())
    parts = model_skeleton(model.SerializeToString(), origin="m.onnx")
    parsed = ModelProto.FromString(parts.proto)
    assert parsed.graph.node == model.graph.node
    assert parsed.opset_import == model.opset_import


def test_many_plain_numbers_are_not_walked_one_by_one() -> None:
    trees = helper.make_node("Trees", ["x"], ["y"], values=[0.5] * 900, modes=["LEQ"] * 900)
    trees.attribute[0].ClearField("type")
    data = serialized([raw_weight()], trees)
    assert len(model_skeleton(data, origin="m.onnx").references) == 1


def test_more_nodes_than_any_real_model_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memdiag.model.wire.MAX_MESSAGES", 100)
    nodes = [helper.make_node("Identity", ["w"], [f"y{index}"]) for index in range(99)]
    assert model_skeleton(serialized([], *nodes), origin="m.onnx")
    assert error(serialized([], *nodes, nodes[0])) == (
        "broken.onnx: it has more than 100 nodes, attributes and tensors. "
        "memdiag does not analyze models of that size."
    )


@pytest.mark.parametrize("weights", [0, 1])
def test_a_graph_larger_than_any_real_one_is_refused(
    weights: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memdiag.model.wire.MAX_SKELETON_BYTES", 3 << 20)
    model = of_tensors([raw_weight()] * weights)
    model.graph.doc_string = "d" * (2 << 20)
    assert model_skeleton(model.SerializeToString(), origin="m.onnx")
    model.graph.doc_string *= 2
    message = error(model.SerializeToString())
    assert "its graph takes more than 3.0 MiB without the weights" in message
