"""Whatever a model looks like, its skeleton and references are the whole of it; damage is told."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    helper,
)
from onnx.parser import parse_model

from memdiag.errors import ModelError
from memdiag.model.inputs import plan_inputs
from memdiag.model.model_file import open_model
from memdiag.model.wire import THIS_FILE, model_skeleton

UNKNOWN_FIELD = b"\xa2\x7d\x03new"  # field 2004, three bytes: not in onnx.proto


@st.composite
def tensors(draw: st.DrawFn) -> TensorProto:
    count = draw(st.sampled_from([0, 1, 3, 40, 300]))
    values = np.random.default_rng(count).integers(0, 100, count)
    name = draw(st.sampled_from(["", "w", "weight/ä"]))
    tensor = TensorProto(name=name, dims=[count], data_type=TensorProto.INT32)
    kind = draw(st.sampled_from(["raw", "FLOAT", "DOUBLE", "INT64", "INT32", "STRING", "external"]))
    if kind == "raw":
        tensor.raw_data = values.astype(np.int32).tobytes()
    elif kind == "external":
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="w.bin")
    else:
        tensor.data_type = TensorProto.DataType.Value(kind)
        content = {"STRING": [b"%d" % value for value in values], "FLOAT": values / 7}
        content["DOUBLE"] = content["FLOAT"]
        getattr(tensor, f"{kind.lower()}_data").extend(content.get(kind, values))
    if draw(st.booleans()):
        tensor.MergeFromString(UNKNOWN_FIELD)
    return tensor


@st.composite
def sparse_tensors(draw: st.DrawFn) -> SparseTensorProto:
    return SparseTensorProto(values=draw(tensors()), indices=draw(tensors()), dims=[500])


@st.composite
def nodes(draw: st.DrawFn, depth: int) -> NodeProto:
    node = NodeProto(op_type="Op", name=draw(st.sampled_from(["", "n"])))
    for _ in range(draw(st.integers(0, 2))):
        attribute = node.attribute.add(name="a")
        kind = draw(
            st.sampled_from(["t", "tensors", "g", "graphs", "sparse", "sparses", "floats", "s"])
        )
        if kind == "t":
            attribute.t.CopyFrom(draw(tensors()))
            attribute.type = AttributeProto.TENSOR
        elif kind == "tensors":
            attribute.tensors.extend(draw(st.lists(tensors(), max_size=2)))
        elif kind == "sparse":
            attribute.sparse_tensor.CopyFrom(draw(sparse_tensors()))
        elif kind == "sparses":
            attribute.sparse_tensors.append(draw(sparse_tensors()))
        elif kind == "g" and depth:
            attribute.g.CopyFrom(draw(graphs(depth - 1)))
        elif kind == "graphs" and depth:
            attribute.graphs.append(draw(graphs(depth - 1)))
        elif kind == "floats":
            attribute.floats.extend([1.5] * 600)
            attribute.type = AttributeProto.FLOATS
        else:
            attribute.s = b"s" * 2000
    return node


@st.composite
def graphs(draw: st.DrawFn, depth: int = 2) -> GraphProto:
    graph = GraphProto(name="g", doc_string="text" * draw(st.integers(0, 400)))
    graph.initializer.extend(draw(st.lists(tensors(), max_size=3)))
    graph.sparse_initializer.extend(draw(st.lists(sparse_tensors(), max_size=1)))
    graph.node.extend(draw(st.lists(nodes(depth), max_size=2)))
    return graph


@st.composite
def models(draw: st.DrawFn) -> ModelProto:
    model = ModelProto(ir_version=10, graph=draw(graphs()))
    if draw(st.booleans()):
        model.training_info.add(initialization=draw(graphs(0)), algorithm=draw(graphs(0)))
    if draw(st.booleans()):
        model.functions.append(FunctionProto(name="f", node=[draw(nodes(1))]))
    if draw(st.booleans()):
        model.MergeFromString(UNKNOWN_FIELD)
    return model


def tensors_in(message: object) -> Iterator[TensorProto]:
    """Yield all tensors in a message, found by asking protobuf for every field that is set."""
    if isinstance(message, TensorProto):
        yield message
    elif hasattr(message, "ListFields"):
        for _, value in message.ListFields():
            parts = [value] if hasattr(value, "ListFields") else value
            if not isinstance(parts, str | bytes | int | float):
                for part in parts:
                    yield from tensors_in(part)


def restored(proto: bytes, original: bytes) -> tuple[ModelProto, int]:
    """Return a skeleton with its references filled in again, and how many there were."""
    model = ModelProto.FromString(proto)
    count = 0
    for tensor in tensors_in(model):
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries.get("location") != THIS_FILE:
            continue
        count += 1
        offset, length = int(entries["offset"]), int(entries["length"])
        data = original[offset : offset + length]
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
        if tensor.data_type == TensorProto.FLOAT:
            tensor.float_data.extend(np.frombuffer(data, np.float32))
        elif tensor.data_type == TensorProto.DOUBLE:
            tensor.double_data.extend(np.frombuffer(data, np.float64))
        else:
            tensor.raw_data = data
    return model, count


@given(model=models(), threshold=st.sampled_from([1, 100, 1024]))
def test_a_skeleton_and_its_references_are_the_whole_model(
    model: ModelProto, threshold: int
) -> None:
    original = model.SerializeToString()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("memdiag.model.wire.MIN_REFERENCED_BYTES", threshold)
        parts = model_skeleton(original, origin="m.onnx")
    again, count = restored(parts.proto, original)
    assert again == model
    assert count == len(parts.references)
    for tensor in tensors_in(ModelProto.FromString(parts.proto)):
        if tensor.data_type != TensorProto.STRING and tensor.data_location == TensorProto.DEFAULT:
            assert len(tensor.raw_data) < threshold
            assert 4 * len(tensor.float_data) < threshold
            assert 8 * len(tensor.double_data) < threshold


def real_enough() -> bytes:
    """Return a valid model with a subgraph, a function and tensors of every storage."""
    body = "g () => (float[300] z) { z = Add(w, inner) }"
    model = parse_model(f"""<ir_version: 10, opset_import: ["" : 17]>
        main (bool c, int64[batch, n] ids) => (float[300] z)
        <float[300] typed = {{{", ".join(["1.0"] * 300)}}}> {{
        z = If(c) <then_branch = {body}, else_branch = {body}>
        e = Gather(typed, ids) }}
        <domain: "local", opset_import: ["" : 17]> Double (a) => (b) {{ b = Add(a, a) }}""")
    for graph, name in (
        (model.graph, "w"),
        *((attribute.g, "inner") for attribute in model.graph.node[0].attribute),
    ):
        weight = helper.make_tensor(name, TensorProto.FLOAT, [300], b"\x01" * 1200, raw=True)
        graph.initializer.append(weight)
    return bytes(model.SerializeToString())


MODEL = real_enough()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


def read(path: Path, data: bytes) -> str:
    """Return what opening `data` and planning its inputs says: an error's text or nothing."""
    path.write_bytes(data)
    try:
        with open_model(path) as model:
            for weight in model.weights:
                model.raw_bytes(weight)
            plan_inputs(model, dims={}, given={})
    except ModelError as error:
        return str(error)
    except Exception as error:
        # Valid models that ask for the impossible are the user's business, and say so as well.
        if type(error).__name__ != "UsageError":
            raise
    return ""


def test_the_undamaged_model_is_read(folder: Path) -> None:
    assert read(folder / "whole.onnx", MODEL) == ""


@settings(deadline=5000)
@given(size=st.integers(0, len(MODEL) - 1))
def test_a_truncated_model_is_a_model_error(folder: Path, size: int) -> None:
    # Cut between two top-level fields a model may still be one: only its graph must be whole.
    graph_end = MODEL.rindex(b"local") - 30
    message = read(folder / "cut.onnx", MODEL[:size])
    if size < graph_end:
        assert message.startswith(str(folder / "cut.onnx"))
        assert message.endswith(".")
    else:
        assert message == "" or message.startswith(str(folder / "cut.onnx"))


@settings(deadline=5000)
@given(data=st.data())
def test_flipped_bytes_are_read_or_a_model_error(folder: Path, data: st.DataObject) -> None:
    damaged = bytearray(MODEL)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(MODEL) - 1))] = data.draw(st.integers(0, 255))
    message = read(folder / "flipped.onnx", bytes(damaged))
    assert message == "" or message.startswith(str(folder / "flipped.onnx"))


@settings(deadline=5000)
@given(data=st.binary(max_size=200))
def test_random_bytes_are_a_model_error(folder: Path, data: bytes) -> None:
    assert read(folder / "random.onnx", data)
