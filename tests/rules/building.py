"""Small models of large weights, for rules that look at how a weight is stored."""

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
)

MIB = 1024 * 1024
Made = TensorProto | NodeProto
Make = Callable[[NDArray[np.generic], str], Made]


def values(shape: Sequence[int], dtype: type[np.generic] = np.float32, seed: int = 0) -> NDArray:  # type: ignore[type-arg] # of any dtype
    """Return random values, different for each seed."""
    generator = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.integer):
        return generator.integers(0, 100, shape).astype(dtype)
    return generator.standard_normal(shape, np.float32).astype(dtype)


def raw(array: NDArray[np.generic], name: str) -> TensorProto:
    """Return an initializer with raw data."""
    return onnx.numpy_helper.from_array(array, name)


def typed(array: NDArray[np.generic], name: str) -> TensorProto:
    """Return an initializer whose elements are in a typed field."""
    tensor = TensorProto(
        name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape
    )
    flat = array.reshape(-1)
    if array.dtype == np.float16:
        flat = flat.view(np.uint16)
    if array.dtype == np.bool_:
        flat = flat.view(np.uint8)
    field = {"float32": "float_data", "int64": "int64_data", "uint32": "uint64_data"}
    getattr(tensor, field.get(array.dtype.name, "int32_data")).extend(flat.tolist())
    return tensor


def constant(array: NDArray[np.generic], name: str) -> NodeProto:
    """Return a Constant node with raw data."""
    return helper.make_node("Constant", [], [name], name=f"make_{name}", value=raw(array, ""))


def rows(array: NDArray[np.generic], *, make: Make = raw, name: str = "w") -> ModelProto:
    """Return a model that gathers rows of one weight."""
    graph = _gathering(make(array, name), array, name, "y")
    graph.input.append(indices())
    return model(graph)


def branches(
    arrays: Sequence[NDArray[np.generic]], *, make: Make = raw, ending: Sequence[NodeProto] = ()
) -> ModelProto:
    """Return an If whose branches gather rows of a weight each, ``then_w`` and ``else_w``."""
    node = helper.make_node("If", ["c"], ["y"], name="If_0")
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    dtype = helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
    output = helper.make_tensor_value_info("y", dtype, None)
    proto = model(helper.make_graph([node], "main", [indices(), condition], [output]))
    # Large weights are copied once, where the helpers of onnx copy a graph three times.
    for key, array in zip(("then", "else"), arrays, strict=True):
        body = proto.graph.node[0].attribute.add(name=f"{key}_branch", type=AttributeProto.GRAPH).g
        body.CopyFrom(_gathering(make(array, f"{key}_w"), array, f"{key}_w", f"{key}_y"))
        body.node.extend(ending)
    return proto


def indices() -> ValueInfoProto:
    """Return the input of rows to be gathered."""
    return helper.make_tensor_value_info("rows", TensorProto.INT64, [2])


def model(graph: GraphProto, **more: object) -> ModelProto:
    """Return a model of opset 20."""
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, **{"ir_version": 10, "opset_imports": opsets} | more)


def overridable(proto: ModelProto) -> ModelProto:
    """Return the model with all its initializers listed as inputs, too."""
    for tensor in proto.graph.initializer:
        proto.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        )
    return proto


def _gathering(made: Made, array: NDArray[np.generic], name: str, output: str) -> GraphProto:
    node = helper.make_node("Gather", [name, "rows"], [output], name=f"gather_{name}")
    is_node = isinstance(made, NodeProto)
    dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
    shape = [2, *array.shape[1:]]
    return helper.make_graph(
        [made, node] if is_node else [node],
        "main",
        [],
        [helper.make_tensor_value_info(output, dtype, shape)],
        initializer=[] if is_node else [made],
    )
