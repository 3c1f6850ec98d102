"""Models from ONNX text and weights, and tables of cases in text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import onnx
from numpy.typing import DTypeLike, NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper, parser


def build(
    graph: str,
    *,
    opset: int = 17,
    ir: int = 9,
    domains: Mapping[str, int] | None = None,
    functions: str = "",
    weights: Mapping[str, Any] | None = None,
) -> ModelProto:
    """Return the model of a graph, whose text begins with its inputs: ``(float[n] x) => …``.

    Args:
        graph: the text of the graph, without a name.
        opset: the version of ai.onnx.
        ir: the version of the IR.
        domains: versions of other operator sets by domain.
        functions: the text of the functions, with their own headers.
        weights: values by name; those that no node reads are left out.
    """
    versions = {"": opset, **(domains or {})}
    imports = ", ".join(f'"{domain}": {version}' for domain, version in versions.items())
    model: ModelProto = parser.parse_model(
        f"<ir_version: {ir}, opset_import: [{imports}]> g {graph} {functions}"
    )
    computed = {name for node in model.graph.node for name in node.output}
    read = set(_inputs_of_nodes(model.graph)) - computed
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(values), name)
        for name, values in (weights or {}).items()
        if name in read
    )
    return model


def _inputs_of_nodes(graph: GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            yield from _inputs_of_nodes(attribute.g)


def saved(
    model: ModelProto, folder: Path, name: str = "model.onnx", *, external: bool = False
) -> Path:
    """Write `model` to `folder`, its weights to another file if `external`; return the path."""
    path = folder / name
    if external:
        model = ModelProto.FromString(model.SerializeToString())  # `save` empties its weights
    onnx.save(model, path, save_as_external_data=external, location="data", size_threshold=0)
    return path


def noise(*shape: int, seed: int = 0, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Return normally distributed values, or 8-bit integers over their whole range."""
    random = np.random.default_rng(seed)
    if np.dtype(dtype).itemsize == 1:
        return random.integers(0, 256, shape).astype(np.uint8).view(dtype)
    return random.standard_normal(shape, np.float32).astype(dtype)


def cases(table: str, **parts: str) -> dict[str, tuple[str, str]]:
    """Return what each case of `table` expects and its text, by its name.

    A case is a line ``name: what is expected | text``, in which what is expected may be missing,
    and the text may follow in indented lines instead. ``$part`` stands for one of the `parts`.
    Lines that begin with ``#`` are comments.
    """
    found: dict[str, tuple[str, str]] = {}
    name = ""
    for line in Template(table).substitute(parts).splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if line[0] == " ":
            expected, text = found[name]
            found[name] = expected, f"{text} {line.strip()}".strip()
        else:
            head, _, text = line.partition(" | ")
            name, _, expected = head.partition(":")
            assert name not in found, f"two cases are called {name}"
            found[name] = expected.strip(), text
    return found


def of_tensors(
    tensors: Iterable[TensorProto] | Mapping[str, NDArray[Any]], *nodes: NodeProto
) -> ModelProto:
    """Return a model of these initializers and nodes, without inputs and outputs."""
    if isinstance(tensors, Mapping):
        tensors = [numpy_helper.from_array(values, name) for name, values in tensors.items()]
    graph = helper.make_graph(nodes, "g", [], [], list(tensors))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def external_tensor(name: str, shape: Sequence[int], **entries: object) -> TensorProto:
    """Return a tensor of floats whose data is where `entries` say: location, offset, length."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor
