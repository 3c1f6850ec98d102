"""Large attributes of a node stay in memory as parsed, after its kernel has read them.

## Why it costs

Kernels such as those of tree ensembles, support vector machines and scalers read their
parameters from attributes into structures of their own when a session is created. The
node still keeps the attributes, in every release up to 1.32.0: 8 bytes an integer,
4 a float, about 56 a string, tensors with their bytes. In a subgraph there are three such
copies. A TreeEnsembleRegressor or TreeEnsembleClassifier has six integers, two floats and
a string for each node of its trees, which is several times what its kernel makes of them.

## What to do

- Export trees as the newer `TreeEnsemble` (ai.onnx.ml 5), which takes a quarter of the attributes.
- Leave out optional lists without information: `nodes_hitrates`, on which no result
  depends, and `nodes_missing_value_tracks_true` where all are 0.
- Fewer or shallower trees.

There is no option that frees them.

## Not reported

Less than 4 MiB a node; nodes in functions; Constant nodes, whose value becomes a weight.
"""

from collections.abc import Iterator
from typing import NamedTuple

from onnx import AttributeProto, TensorProto

from memdiag.model.graph_index import Node, qualified_label
from memdiag.model.model_file import ModelFile
from memdiag.model.tensor_types import ELEMENT_TYPES, STRING_ELEMENT
from memdiag.ort.analysis import AnalysisContext
from memdiag.records.finding import ExpectedCopies, Finding
from memdiag.records.weights import Weight, qualified_name
from memdiag.rules.rule import Rule
from memdiag.units import KIB, MIB, format_size, some_of

RULE = Rule(
    code="MD407",
    name="tensor-attributes",
    summary="Large attributes of a node stay in memory after its kernel has read them",
)

_MIN_ATTRIBUTE_BYTES = 4 * MIB
_MIN_ATTRIBUTE_TENSOR_BYTES = 64 * KIB
_ATTRIBUTE_INTEGER_BYTES, _ATTRIBUTE_FLOAT_BYTES = 8, 4
_STRING_BYTES = 56
"""A pointer, and a std::string in a block of malloc; long ones are in another block."""

_MAX_SHORT_STRING_LENGTH = 15
"""Characters of a string that C++ stores in the string itself."""

_SUBGRAPH_ATTRIBUTE_COPIES = 3
_TREE_OPERATORS = ("TreeEnsembleRegressor", "TreeEnsembleClassifier")


class _LargeAttribute(NamedTuple):
    """An attribute that stays in memory.

    Attributes:
        name: the name of the attribute.
        nbytes: its size in memory.
    """

    name: str
    nbytes: int


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield a finding for each node whose attributes take much memory."""
    tensors_by_node: dict[tuple[str, str], list[Weight]] = {}
    for weight in ctx.model_file.weights:
        if weight.origin == "attribute" and weight.nbytes >= _MIN_ATTRIBUTE_TENSOR_BYTES:
            node_name = weight.name.rpartition(".")[0]
            tensors_by_node.setdefault((weight.graph, node_name), []).append(weight)
    for path, scope in ctx.graphs:
        if scope.is_function:
            continue
        copies = _SUBGRAPH_ATTRIBUTE_COPIES if path else 1
        for node in scope.nodes:
            if node.op_type == "Constant" or not node.has_attributes:
                continue
            attributes = list(_large_attributes(ctx.model_file, node))
            total = sum(attribute.nbytes for attribute in attributes) * copies
            if total < _MIN_ATTRIBUTE_BYTES:
                continue
            name = qualified_label(path, node.label)
            largest = sorted(attributes, key=lambda attribute: -attribute.nbytes)
            tensors = tensors_by_node.get((path, node.label), [])
            parts = [f"{attribute.name} {format_size(attribute.nbytes)}" for attribute in largest]
            yield RULE.finding(
                ctx,
                f"{_name_with_operator(name, node)} keeps its attributes "
                f"with {format_size(total)} after its kernel has read them ({some_of(parts)})",
                detail=f"They are in memory {copies} times, as the node is in a subgraph."
                if copies > 1
                else "",
                weights=map(qualified_name, tensors),
                nodes=[name],
                graph=path,
                nbytes=total,
                phase="parse",
                expected=(
                    ExpectedCopies(
                        weights=(qualified_name(weight),),
                        kind="original",
                        count=copies,
                        bytes=weight.nbytes * copies,
                    )
                    for weight in tensors
                ),
                remedies=None if node.op_type in _TREE_OPERATORS else (),
            )


def _name_with_operator(name: str, node: Node) -> str:
    """Return the name of a node, with its operator unless the name says it."""
    return name if node.label.startswith(node.op_type) else f"{name} ({node.op_type})"


def _large_attributes(model_file: ModelFile, node: Node) -> Iterator[_LargeAttribute]:
    for attribute in node.attribute:
        nbytes = _attribute_bytes(model_file.read_attribute(attribute))
        if nbytes:
            yield _LargeAttribute(attribute.name, nbytes)


def _attribute_bytes(attribute: AttributeProto) -> int:
    """Return the size in memory of the numbers, strings and tensors of an attribute."""
    size = (
        len(attribute.ints) * _ATTRIBUTE_INTEGER_BYTES
        + len(attribute.floats) * _ATTRIBUTE_FLOAT_BYTES
    )
    if attribute.strings:
        lengths = list(map(len, attribute.strings))
        size += len(lengths) * _STRING_BYTES + sum(
            length for length in lengths if length > _MAX_SHORT_STRING_LENGTH
        )
    tensors = [*attribute.tensors, *([attribute.t] if attribute.HasField("t") else [])]
    return size + sum(map(_attribute_tensor_bytes, tensors))


def _attribute_tensor_bytes(tensor: TensorProto) -> int:
    element = ELEMENT_TYPES.get(tensor.data_type)
    # Large tensors of the model's own file are references in the skeleton, like external ones;
    # kernels cannot read external data from attributes.
    if element is None or element is STRING_ELEMENT or min(tensor.dims, default=0) < 0:
        return 0
    return element.nbytes(tuple(tensor.dims))
