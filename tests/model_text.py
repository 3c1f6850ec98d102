"""Models as text, with weights that the text declares."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper, parser

Array = NDArray[Any]


def text_model(text: str, ir: int = 10, opset: int = 17, /, **weights: Array) -> ModelProto:
    """Return the model of `text`, its graph and functions, with `weights` as initializers.

    A weight is put where the text declares it, like ``<float[2] w>`` or ``w = Constant()``. What is
    declared and not among `weights` gets random values, different for each.
    """
    imports = f'"" : {opset}, "local" : 1'
    model = parser.parse_model(f"<ir_version: {ir}, opset_import: [{imports}]> {text}")
    _put_initializers(model.graph, weights, count())
    _fill_constants([*model.graph.node], weights)
    for function in model.functions:
        _fill_constants([*function.node], weights)
    return model


def with_weights(text: str, ir: int = 10, opset: int = 17, /, **weights: Array) -> ModelProto:
    """Return the model of `text` with `weights` as initializers of its main graph."""
    model = text_model(text, ir, opset)
    model.graph.initializer.extend(tensor(values, name) for name, values in weights.items())
    return model


def declared(**weights: Array) -> str:
    """Return `weights` as the text of a model declares them."""
    kinds = {"float32": "float", "float64": "double"}
    return ", ".join(
        f"{kinds.get(array.dtype.name, array.dtype.name)}"
        f"{list(array.shape) if array.ndim else ''} {name}"
        for name, array in weights.items()
    )


def random(shape: Sequence[int], seed: int = 0, dtype: Any = np.float32) -> Array:
    """Return random values."""
    generator = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.floating):
        return generator.standard_normal(shape).astype(dtype)
    if dtype == np.bool_:
        return generator.integers(0, 2, shape).astype(np.bool_)
    return generator.integers(0, 100, shape).astype(dtype)


def tensor(array: Array, name: str) -> TensorProto:
    """Return a tensor with raw data."""
    return numpy_helper.from_array(array, name)


def _put_initializers(
    graph: onnx.GraphProto, weights: Mapping[str, Array], seeds: Iterator[int]
) -> None:
    """Make initializers of what is declared and no node makes, also in subgraphs."""
    made = {name for node in graph.node for name in node.output}
    for value in [value for value in graph.value_info if value.name not in made]:
        kind = value.type.tensor_type
        values = weights.get(value.name)
        if values is None:
            shape = [axis.dim_value for axis in kind.shape.dim]
            values = random(shape, next(seeds), helper.tensor_dtype_to_np_dtype(kind.elem_type))
        graph.initializer.append(tensor(values, value.name))
        graph.value_info.remove(value)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _put_initializers(attribute.g, weights, seeds)


def _fill_constants(nodes: Sequence[onnx.NodeProto], weights: Mapping[str, Array]) -> None:
    """Give Constants without a value the one that is called like their output."""
    for node in nodes:
        if node.op_type == "Constant" and node.output[0] in weights and not node.attribute:
            value = tensor(weights[node.output[0]], "")
            node.attribute.append(helper.make_attribute("value", value))
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _fill_constants([*attribute.g.node], weights)
