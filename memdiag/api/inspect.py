"""The use case of ``memdiag inspect``: the inventory of a model, without loading its weights."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from onnx import ValueInfoProto

from memdiag.api.arguments import model_path
from memdiag.api.inputs import choose_inputs
from memdiag.attribution.intervals import normal, total
from memdiag.errors import UsageError
from memdiag.model.attribute_lists import AttributeList, attribute_lists
from memdiag.model.dimensions import axes_of, tensor_type
from memdiag.model.graph_index import Graph, GraphIndex, function_path, joined
from memdiag.model.model_file import ModelFile, open_model
from memdiag.model.readers import readers
from memdiag.model.tensor_types import ELEMENT_TYPES
from memdiag.paths import path_text
from memdiag.records.dimension import Dimension
from memdiag.records.inventory import (
    INVENTORY_SCHEMA,
    ExternalFile,
    GraphValue,
    Inventory,
    LargeWeight,
    Operator,
    SubgraphSummary,
    WeightTotal,
)
from memdiag.records.weights import Weight

MAX_LISTED_WEIGHTS = 20
MAX_LISTED_READERS = 4


def inspect(model: str | Path) -> Inventory:
    """Return the contents of `model`: its weights, graphs, files and operators.

    Raises:
        ModelError: the file is missing, is not an ONNX model, or lacks its external data.
    """
    with open_model(model_path(model)) as opened:
        return _inventory(opened)


def _inventory(model: ModelFile) -> Inventory:
    head = model.proto
    lists = list(attribute_lists(model))
    weights = [*model.weights, *(each.weight for each in lists)]
    graphs = list(model.graph.with_paths())
    for function in model.functions:
        graphs += function.with_paths(function_path(function.key))
    return Inventory(
        schema=INVENTORY_SCHEMA,
        path=path_text(model.path),
        file_bytes=model.file_bytes,
        external_bytes=model.external_bytes,
        ir_version=head.ir_version,
        opsets={opset.domain or "ai.onnx": opset.version for opset in head.opset_import},
        producer=f"{head.producer_name} {head.producer_version}".strip(),
        inputs=tuple(map(_value, model.graph.required_inputs)),
        outputs=tuple(map(_value, model.graph.output_values)),
        node_count=model.node_count,
        weight_count=len(weights),
        weight_bytes=sum(weight.nbytes for weight in weights),
        by_dtype=_tallies((weight.dtype, weight.nbytes) for weight in weights),
        by_origin=_tallies((_origin(weight), weight.nbytes) for weight in weights),
        by_storage=_tallies((weight.storage, weight.nbytes) for weight in weights),
        subgraphs=tuple(_subgraphs(graphs, weights)),
        external_files=tuple(_external_files(model)),
        operators=_operators(graph for _, graph in graphs),
        largest=tuple(_largest(model, lists)),
        dimensions=_dimensions(model),
    )


def _dimensions(model: ModelFile) -> tuple[Dimension, ...]:
    try:
        return choose_inputs(model, dims={}, given={}).dimensions
    except UsageError:
        return ()  # an input that cannot be made, such as a map


def _tallies(sizes: Iterable[tuple[str, int]]) -> tuple[WeightTotal, ...]:
    counts: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for name, nbytes in sizes:
        counts[name] += 1
        totals[name] += nbytes
    found = (WeightTotal(name=name, count=counts[name], bytes=totals[name]) for name in counts)
    return tuple(sorted(found, key=lambda tally: (-tally.bytes, tally.name)))


def _origin(weight: Weight) -> str:
    in_subgraph = weight.origin == "initializer" and weight.graph
    return "subgraph initializer" if in_subgraph else weight.origin


def _subgraphs(
    graphs: Iterable[tuple[str, Graph]], weights: Iterable[Weight]
) -> Iterator[SubgraphSummary]:
    owned: defaultdict[str, list[Weight]] = defaultdict(list)
    for weight in weights:
        owned[weight.graph].append(weight)
    for path, graph in graphs:
        if path:
            yield SubgraphSummary(
                path=path,
                node_count=len(graph.nodes) if graph.is_function else graph.node_count,
                weight_count=len(owned[path]),
                weight_bytes=sum(weight.nbytes for weight in owned[path]),
            )


def _external_files(model: ModelFile) -> Iterator[ExternalFile]:
    ranges: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for weight in model.weights:
        if weight.storage == "external" and weight.file is not None:
            start = weight.offset or 0
            ranges[weight.file].append((start, start + (weight.length or 0)))
    for name, pairs in sorted(ranges.items()):
        size = (model.path.parent / name).stat().st_size
        yield ExternalFile(name=name, bytes=size, used_bytes=total(normal(pairs)))


def _operators(graphs: Iterable[Graph]) -> tuple[Operator, ...]:
    counts = Counter((node.domain_key, node.op_type) for graph in graphs for node in graph.nodes)
    found = (
        Operator(domain=domain, op_type=op_type, count=count)
        for (domain, op_type), count in counts.items()
    )
    return tuple(
        sorted(found, key=lambda operator: (-operator.count, operator.domain, operator.op_type))
    )


def _largest(model: ModelFile, lists: Sequence[AttributeList]) -> Iterator[LargeWeight]:
    graphs = GraphIndex(model)
    nodes = {each.weight: each.node for each in lists}
    ordered = sorted(
        (*model.weights, *nodes), key=lambda weight: (-weight.nbytes, weight.graph, weight.name)
    )
    for weight in ordered[:MAX_LISTED_WEIGHTS]:
        operators = dict.fromkeys(use.node.op_type for use in readers(graphs, weight))
        if weight in nodes:
            operators = {nodes[weight].op_type: None}
        yield LargeWeight(
            name=joined(weight.graph, weight.name),
            dtype=weight.dtype,
            shape=weight.shape,
            bytes=weight.nbytes,
            origin=weight.origin,
            storage=weight.storage,
            readers=tuple(operators)[:MAX_LISTED_READERS],
        )


def _value(value: ValueInfoProto) -> GraphValue:
    axes, tensor = axes_of(value), tensor_type(value.type)
    element = ELEMENT_TYPES.get(tensor.elem_type) if tensor is not None else None
    return GraphValue(
        name=value.name,
        dtype=element.name if element is not None else "unknown",
        shape=None
        if axes is None
        else tuple(axis.symbol or "?" if axis.size is None else axis.size for axis in axes),
    )
