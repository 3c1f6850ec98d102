import os
from pathlib import Path

import numpy as np
import pytest
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    helper,
    numpy_helper,
)

from memdiag.errors import MissingDataError, ModelError
from memdiag.model.model_file import open_model
from tests.builders import build, external_tensor, of_tensors, saved


def refused(path: Path) -> str:
    """Return the sentence with which the file at `path` is refused."""
    with pytest.raises(ModelError) as caught:
        open_model(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).endswith(".")
    return str(caught.value)


def save(folder: Path, tensors: list[TensorProto], *nodes: NodeProto) -> Path:
    return saved(of_tensors(tensors, *nodes), folder)


def test_a_large_weight_is_a_view_of_the_mapped_file(tmp_path: Path) -> None:
    values = np.arange(1000, dtype=np.float32).reshape(10, 100)
    path = save(tmp_path, [numpy_helper.from_array(values, "w")])
    with open_model(path) as model:
        [weight] = model.weights
        array = model.data(weight)
        assert (weight.storage, weight.file, weight.length) == ("raw", "model.onnx", 4000)
        assert weight.offset is not None
        assert path.read_bytes()[weight.offset :][:4000] == values.tobytes()
        assert model.file_bytes == path.stat().st_size
        assert bytes(model.raw_bytes(weight)) == values.tobytes()
        np.testing.assert_array_equal(array, values)
        assert array.base is not None
        assert not array.flags.writeable
    np.testing.assert_array_equal(array, values)  # still there after closing


def test_small_and_typed_weights_are_decoded(tmp_path: Path) -> None:
    small = numpy_helper.from_array(np.array([1, 2], np.int64), "small")
    typed = helper.make_tensor("typed", TensorProto.FLOAT, [300], np.arange(300))
    path = save(tmp_path, [small, typed])
    with open_model(path) as model:
        first, second = model.weights
        assert (first.storage, first.file, first.offset) == ("raw", None, None)
        assert (second.storage, second.file, second.length) == ("typed", "model.onnx", 1200)
        assert model.data(first).tolist() == [1, 2]
        np.testing.assert_array_equal(model.data(second), np.arange(300, dtype=np.float32))


NUMBERS = {
    "int8": (TensorProto.INT8, np.int8),
    "float16": (TensorProto.FLOAT16, np.float16),
    "bool": (TensorProto.BOOL, np.bool_),
    "int64": (TensorProto.INT64, np.int64),
    "uint32": (TensorProto.UINT32, np.uint32),
}


@pytest.mark.parametrize("dtype", NUMBERS)
def test_many_numbers_in_typed_fields_are_decoded_when_they_are_read(
    dtype: str, tmp_path: Path
) -> None:
    number, kind = NUMBERS[dtype]
    octets = np.random.default_rng().integers(0, 2, 20_000 * np.dtype(kind).itemsize, np.uint8)
    values: np.ndarray = octets.view(kind)
    typed = helper.make_tensor("w", number, [200, 100], values)
    assert not typed.HasField("raw_data")
    path = save(tmp_path, [typed])
    with open_model(path) as model:
        [weight] = model.weights
        assert weight.storage == "typed"
        assert (weight.file, weight.offset, weight.length) == (None, None, None)
        assert weight.nbytes == values.nbytes
        assert model.proto.graph.initializer[0].ByteSize() < 200
        np.testing.assert_array_equal(model.data(weight), values.reshape(200, 100))
        assert bytes(model.raw_bytes(weight)) == values.tobytes()
        assert model.read_proto().graph.initializer[0] == typed


def test_many_numbers_of_the_wrong_count_or_field_are_refused(tmp_path: Path) -> None:
    fewer = TensorProto(name="w", data_type=3, dims=[20_001], int32_data=[1] * 20_000)
    assert "should have 20,001 bytes" in refused(save(tmp_path, [fewer]))
    other = TensorProto(name="w", data_type=3, dims=[20_000], int64_data=[1] * 20_000)
    assert "but has 0;" in refused(save(tmp_path, [other]))


def test_many_numbers_of_a_sparse_tensor_are_decoded(tmp_path: Path) -> None:
    sparse = SparseTensorProto(dims=[50_000])
    sparse.values.CopyFrom(helper.make_tensor("s", TensorProto.INT32, [20_000], range(20_000)))
    sparse.indices.CopyFrom(
        helper.make_tensor("", TensorProto.INT64, [20_000], range(0, 40_000, 2))
    )
    model = of_tensors([])
    model.graph.sparse_initializer.append(sparse)
    with open_model(saved(model, tmp_path)) as opened:
        [weight] = opened.weights
        dense = opened.data(weight)
        np.testing.assert_array_equal(dense[:40_000:2], np.arange(20_000))
        assert not dense[40_000:].any()
        assert not dense[1::2].any()


@pytest.mark.parametrize(
    ("op_type", "name", "is_reference"),
    [("Trees", "splits", True), ("Constant", "value_floats", False)],
)
def test_a_long_list_of_an_attribute_is_read_on_demand(
    op_type: str, name: str, is_reference: bool, tmp_path: Path
) -> None:
    node = helper.make_node(op_type, [], ["y"])
    node.attribute.append(helper.make_attribute(name, [0.5] * 20_000))
    with open_model(save(tmp_path, [], node)) as model:
        [attribute] = model.graph.nodes[0].attribute
        assert (attribute.name, attribute.type) == (name, AttributeProto.FLOATS)
        assert (len(attribute.floats) == 0) == is_reference
        assert model.read_attribute(attribute) == node.attribute[0]
        assert model.read_proto().graph.node[0] == node


def test_external_weights_are_views_of_their_file(tmp_path: Path) -> None:
    values = np.arange(40, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(b"head" + values.tobytes())
    whole = external_tensor("a", [40], location="w.bin", offset=4, length=160)
    rest = external_tensor("b", [2, 2], location="w.bin", offset=148)
    with open_model(save(tmp_path, [whole, rest])) as model:
        a, b = model.weights
        assert (a.storage, a.file, a.offset, a.length) == ("external", "w.bin", 4, 160)
        assert (b.length, b.nbytes) == (16, 16)
        assert model.external_bytes == 164
        np.testing.assert_array_equal(model.data(a), values)
        assert model.data(b).tolist() == [[36, 37], [38, 39]]


def test_an_empty_external_weight_needs_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "w.bin").touch()
    with open_model(save(tmp_path, [external_tensor("w", [0, 4], location="w.bin")])) as model:
        [weight] = model.weights
        assert model.data(weight).shape == (0, 4)


def test_missing_external_data_is_found_on_opening(tmp_path: Path) -> None:
    path = save(tmp_path, [external_tensor("enc.w", [40], location="w.bin")])
    with pytest.raises(MissingDataError) as caught:
        open_model(path)
    assert f"{path}: initializer 'enc.w' has its data in 'w.bin'" in str(caught.value)
    (tmp_path / "w.bin").write_bytes(bytes(160))
    open_model(path).close()


def test_external_data_that_is_too_short_says_how_much(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(159))
    with pytest.raises(MissingDataError, match=r"needs 160 bytes of 'w\.bin', which has 159"):
        open_model(save(tmp_path, [external_tensor("w", [40], location="w.bin")]))


@pytest.mark.parametrize("location", ["../w.bin", "sub/../../w.bin", "/etc/hostname"])
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(160))
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    path = save(folder, [external_tensor("w", [40], location=location)])
    assert "outside the model's folder" in refused(path)


def test_external_data_in_a_folder_below_is_read(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    data = np.arange(40, dtype=np.float32)
    (tmp_path / "sub" / "w.bin").write_bytes(data.tobytes())
    path = save(tmp_path, [external_tensor("w", [40], location="sub/w.bin")])
    with open_model(path) as model:
        (weight,) = model.weights
        assert model.data(weight).tolist() == data.tolist()


def test_a_link_out_of_the_folder_is_refused_unless_the_model_lies_there_too(
    tmp_path: Path,
) -> None:
    store, folder = tmp_path / "store", tmp_path / "model"
    store.mkdir()
    folder.mkdir()
    (store / "blob-w").write_bytes(bytes(160))
    (folder / "w.bin").symlink_to(store / "blob-w")
    tensors = [external_tensor("w", [40], location="w.bin")]
    assert "outside the model's folder" in refused(save(folder, tensors))
    save(store, tensors).rename(store / "blob-m")
    (folder / "linked.onnx").symlink_to(store / "blob-m")
    open_model(folder / "linked.onnx").close()


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({}, "without a location"),
        ({"location": ""}, "without a location"),
        ({"location": "w.bin", "offset": "-4"}, "'-4' as the offset"),
        ({"location": "w.bin", "length": "many"}, "'many' as the length"),
        ({"location": "w.bin", "length": "9" * 5000}, "as the length"),
        ({"location": "w.bin", "length": 80}, "should have 160 bytes (float [40]) but has 80"),
        ({"location": "sub"}, "which is not a file"),
        ({"location": "nul\0byte"}, "which cannot be opened"),
        ({"location": "x" * 300}, "which cannot be opened"),
        ({"location": "loop"}, "which cannot be opened"),
    ],
)
def test_external_entries_that_make_no_sense(
    tmp_path: Path, entries: dict[str, object], words: str
) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(160))
    (tmp_path / "sub").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    path = save(tmp_path, [external_tensor("w", [40], **entries)])
    assert words in refused(path)


def test_a_models_own_marker_does_not_reach_into_the_file(tmp_path: Path) -> None:
    tensor = external_tensor("w", [4], location="\0memdiag:this-file", offset=8, length=16)
    assert "which cannot be opened" in refused(save(tmp_path, [tensor]))


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    assert "there is no such file" in refused(tmp_path / "none.onnx")
    assert "this is a folder" in refused(tmp_path)
    (tmp_path / "empty.onnx").touch()
    assert "the file is empty" in refused(tmp_path / "empty.onnx")
    assert "no file can have that name" in refused(tmp_path / "nul\0byte.onnx")
    os.mkfifo(tmp_path / "pipe.onnx")  # which nobody waits for
    assert "not a regular file" in refused(tmp_path / "pipe.onnx")


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, [])

    def denied(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    assert "cannot be read (Permission denied). Check its permissions." in refused(path)


@pytest.mark.parametrize(
    "model",
    [ModelProto(ir_version=8), ModelProto(graph=GraphProto(name="g")), ModelProto(domain="d")],
    ids=["no graph", "no version", "neither"],
)
def test_protobuf_that_is_no_onnx_model(tmp_path: Path, model: ModelProto) -> None:
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert "not an ONNX model" in refused(tmp_path / "m.onnx")


def test_damage_that_only_the_parser_finds(tmp_path: Path) -> None:
    path = save(tmp_path, [numpy_helper.from_array(np.ones(4, np.float32), "w")])
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\x42\x01w", b"\x42\x7fw"))
    assert "protobuf cannot decode it" in refused(path)


def test_a_closed_model_gives_no_data(tmp_path: Path) -> None:
    with open_model(save(tmp_path, [helper.make_tensor("w", 1, [1], [2.0])])) as model:
        [weight] = model.weights
        assert model.data(weight).tolist() == [2.0]
    with pytest.raises(ModelError, match="is closed"):
        model.data(weight)
    with pytest.raises(ModelError, match="is closed"):
        model.read_proto()


def test_a_model_is_read_as_onnx_has_it(tmp_path: Path) -> None:
    weights = [helper.make_tensor("w", 1, [1], [2.0])]
    path = save(tmp_path, weights, helper.make_node("Abs", ["x"], ["y"]))
    with open_model(path) as model:
        assert model.read_proto() == ModelProto.FromString(path.read_bytes())


def bad_name(place: str) -> ModelProto:
    """Return a model in which one kind of thing has the name ``bad!``."""
    model = build(
        """(bool c, float[n,4] x) => (float[n,4] y) <float[n,4] z, float[4] w = {1, 2, 3, 4}> {
        z = Add(x, w) y = If(c) <
        then_branch = t () => (float[n,4] a) { a = Mul(z, z) },
        else_branch = e () => (float[n,4] b) { b = Neg(z) }> }"""
    )
    if place == "node":
        model.graph.node[0].name = "bad!"
    elif place == "value":
        model.graph.value_info[0].name = "bad!"
    elif place == "initializer":
        model.graph.initializer.append(TensorProto(name="bad!", data_type=1, dims=[0]))
    elif place == "input":
        model.graph.input[0].name = "bad!"
    elif place == "subgraph":
        model.graph.node[1].attribute[0].g.node[0].output[0] = "bad!"
    elif place == "function":
        model.functions.append(FunctionProto(domain="local", name="bad!"))
    else:
        model.opset_import[0].domain = "bad!"
    return model


@pytest.mark.parametrize(
    "place", ["node", "value", "initializer", "input", "subgraph", "function", "domain"]
)
def test_a_name_that_is_no_text_is_refused_in_every_place(place: str, tmp_path: Path) -> None:
    data = bad_name(place).SerializeToString().replace(b"bad!", b"b\xffd!")
    (tmp_path / "m.onnx").write_bytes(data)
    assert "damaged: the name b'b\\xffd!' is not UTF-8" in refused(tmp_path / "m.onnx")
