"""Small models of large weights, for rules that look at how a weight is stored."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper

from tests.model_text import Array, tensor, text_model

MIB = 1024 * 1024
Make = Callable[[Array, str], TensorProto | NodeProto]


def typed(array: Array, name: str) -> TensorProto:
    """Return an initializer whose elements are in a typed field."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    made = TensorProto(name=name, data_type=kind, dims=array.shape)
    flat = array.reshape(-1)
    if array.dtype == np.float16:
        flat = flat.view(np.uint16)
    if array.dtype == np.bool_:
        flat = flat.view(np.uint8)
    field = {"float32": "float_data", "int64": "int64_data", "uint32": "uint64_data"}
    getattr(made, field.get(array.dtype.name, "int32_data")).extend(flat.tolist())
    return made


def constant(array: Array, name: str) -> NodeProto:
    """Return a Constant node with raw data."""
    return helper.make_node("Constant", [], [name], value=tensor(array, ""))


def rows(array: Array, *, make: Make = tensor, name: str = "w") -> ModelProto:
    """Return a model that gathers rows of one weight."""
    proto = text_model(f"g (int64[2] rows) => (y) {{ y = Gather({name}, rows) }}", 10, 20)
    _declare(proto.graph.output[0], array)
    _add(proto.graph, make(array, name))
    return proto


def branches(arrays: Sequence[Array], *, make: Make = tensor) -> ModelProto:
    """Return an If whose branches gather rows of a weight each, ``then_w`` and ``else_w``."""
    text = """g (int64[2] rows, bool c) => (y) { [If_0] y = If (c) <
        then_branch = a () => (then_y) { then_y = Gather(then_w, rows) },
        else_branch = b () => (else_y) { else_y = Gather(else_w, rows) }> }"""
    proto = text_model(text, 10, 20)
    _declare(proto.graph.output[0], arrays[0])
    for key, attribute, array in zip(
        ("then", "else"), proto.graph.node[0].attribute, arrays, strict=True
    ):
        _declare(attribute.g.output[0], array)
        _add(attribute.g, make(array, f"{key}_w"))
    return proto


def overridable(proto: ModelProto) -> ModelProto:
    """Return the model with all its initializers listed as inputs, too."""
    for one in proto.graph.initializer:
        value = helper.make_tensor_value_info(one.name, one.data_type, list(one.dims))
        proto.graph.input.append(value)
    return proto


def with_large_weight(model: ModelProto, folder: Path, size: int) -> ModelProto:
    """Add a weight of `size` bytes, all of it a hole in an external file."""
    with open(folder / "large.bin", "wb") as file:
        file.truncate(size)
    weight = model.graph.initializer.add(name="large", data_type=TensorProto.FLOAT)
    weight.dims.append(size // 4)
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="large.bin")
    return model


def _declare(value: onnx.ValueInfoProto, array: Array) -> None:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    value.type.CopyFrom(helper.make_tensor_type_proto(kind, [2, *array.shape[1:]]))


def _add(graph: onnx.GraphProto, made: TensorProto | NodeProto) -> None:
    if isinstance(made, NodeProto):
        graph.node.insert(0, made)
    else:
        graph.initializer.append(made)
