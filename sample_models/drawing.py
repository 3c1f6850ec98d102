"""Drawing a graph node by node, where a recipe has more of them than can be listed."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from sample_models.weights import Tensor
from sample_models.writing import write_model


class Drawing:
    """Nodes, weights and small constants in the order in which they are added.

    Every node has one output that is used, and lends it its own name.
    """

    def __init__(self) -> None:
        self._nodes: list[NodeProto] = []
        self._weights: list[Tensor] = []
        self._tensors: list[TensorProto] = []

    def node(self, operator: str, name: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        self._nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def weight(self, weight: Tensor) -> str:
        """Add an initializer that is made when the model is written, and return its name."""
        self._weights.append(weight)
        self._tensors.append(weight.tensor())
        return weight.name

    def constant(self, name: str, values: NDArray[np.generic]) -> str:
        """Add a small initializer, which always stays in the model file, and return its name."""
        self._tensors.append(numpy_helper.from_array(values, name))
        return name

    def result(self, name: str, *shape: int | str) -> ValueInfoProto:
        """Name the last node's output, which is float32, and return it as one of the graph."""
        self._nodes[-1].output[0] = name
        return floats_of(name, *shape)

    def write(
        self,
        name: str,
        inputs: list[ValueInfoProto],
        outputs: list[ValueInfoProto],
        path: Path,
        external: bool,
        **versions: Any,
    ) -> None:
        """Write the model with `write_model`, which takes `versions`.

        Raises:
            UsageError: as `write_model` does.
        """
        graph = helper.make_graph(self._nodes, name, inputs, outputs, self._tensors)
        write_model(graph, self._weights, path, external, **versions)


def floats_of(name: str, *shape: int | str) -> ValueInfoProto:
    """Return an input or output of float32."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
