"""Long lists in attributes: the parameters of trees, support vectors and linear models.

Operators of ai.onnx.ml have their parameters in attributes instead of initializers, such as
``nodes_values`` of a TreeEnsembleRegressor. The runtime keeps the lists as parsed, next to what its
kernel makes of them.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from onnx import AttributeProto

from memdiag.model.graph_index import Graph, Node, function_path
from memdiag.model.model_file import ModelFile
from memdiag.model.tensor_types import Array
from memdiag.records.weights import Weight

MIN_LISTED_BYTES = 1024
"""Lists of fewer bytes are skipped."""

MIN_NUMBERS = MIN_LISTED_BYTES // 8


class AttributeList(NamedTuple):
    """A long list in an attribute.

    Attributes:
        weight: its name, graph, type and size, as of a weight.
        node: the node.
        attribute: the attribute, without the list if it is very long.
    """

    weight: Weight
    node: Node
    attribute: AttributeProto


def attribute_lists(model_file: ModelFile) -> Iterator[AttributeList]:
    """Yield the long lists of numbers and strings in attributes of a model.

    Each list is read to count its elements. Operators of ONNX's own domain have no such lists.
    """
    graphs = list(model_file.graph.with_paths())
    for function in model_file.functions:
        graphs += function.with_paths(function_path(function.key))
    for path, graph in graphs:
        yield from _attribute_lists_in_graph(model_file, path, graph)


def _attribute_lists_in_graph(
    model_file: ModelFile, path: str, graph: Graph
) -> Iterator[AttributeList]:
    for node in graph.nodes:
        if node.is_onnx or not node.has_attributes:
            continue
        for attribute in node.attribute:
            whole = model_file.read_attribute(attribute)
            if whole.floats:
                dtype, count, nbytes = "float", len(whole.floats), 4 * len(whole.floats)
            elif whole.ints:
                dtype, count, nbytes = "int64", len(whole.ints), 8 * len(whole.ints)
            elif len(whole.strings) >= MIN_NUMBERS:
                dtype, count = "string", len(whole.strings)
                nbytes = sum(map(len, whole.strings))
            else:
                continue
            if nbytes >= MIN_LISTED_BYTES:
                weight = Weight(
                    name=f"{node.label}.{attribute.name}",
                    graph=path,
                    origin="attribute",
                    dtype=dtype,
                    shape=(count,),
                    nbytes=nbytes,
                    storage="typed",
                    file=None,
                    offset=None,
                    length=None,
                )
                yield AttributeList(weight, node, attribute)


def list_values(model_file: ModelFile, attribute_list: AttributeList) -> Array:
    """Return the elements of a list, as they are in the memory of a session."""
    whole = model_file.read_attribute(attribute_list.attribute)
    match attribute_list.weight.dtype:
        case "float":
            return np.fromiter(whole.floats, "<f4", len(whole.floats))
        case "int64":
            return np.fromiter(whole.ints, "<i8", len(whole.ints))
        case _:
            return np.array(list(whole.strings), object)
