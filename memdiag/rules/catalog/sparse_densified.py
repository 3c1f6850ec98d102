"""Sparse weights become dense at load: a small file takes much memory.

## Why it costs

onnxruntime has no kernels that read a sparse weight as it is. It fills up every sparse
initializer, and every Constant with a `sparse_value`, to a dense tensor while it parses
the model (1.24 to 1.32.0), in private memory. Since 1.30 values and indices stay with
the dense tensor for as long as the session.

## What to do

`externalize`: write the weight as a dense one with external data. It takes no more memory
than before: its pages are mapped from the file, shared between processes, and there are
no values and indices. The file grows; file systems and archives can keep long runs of
zeros small.

## Not reported

- Sparse weights that would save less than 1 MiB. A kernel that packs the dense form frees it, so
  that only values and indices are left.
- Sparse weights in functions, and sparse weights that no node reads.
"""

from collections.abc import Iterator
from math import prod

from onnx import SparseTensorProto

from memdiag.model.graph_index import Graph
from memdiag.model.tensor_types import ELEMENT_TYPES
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.releases import SPARSE_KEPT_SINCE
from memdiag.records.finding import Finding
from memdiag.records.weights import Weight, qualified_name
from memdiag.rules.finding_words import is_or_are
from memdiag.rules.rule import Rule
from memdiag.units import MIB, counted, format_size, some_of

RULE = Rule(
    code="MD405",
    name="sparse-densified",
    summary="Sparse weights are expanded to dense arrays when they are loaded",
    remedies=("externalize",),
)

_MIN_SPARSE_SAVING_BYTES = MIB


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield at most one finding, for all sparse weights."""
    weights = [weight for weight in ctx.model_file.weights if weight.origin == "sparse"]
    if not weights:
        return
    stored_bytes = dict(_stored_sparse_sizes(ctx.model_file.graph))
    used = [weight for weight in weights if ctx.readers(weight)]
    saving_bytes = 0
    for weight in used:
        if not ctx.session.is_freed(weight):
            saving_bytes += weight.nbytes
        if ctx.runtime >= SPARSE_KEPT_SINCE:
            saving_bytes += stored_bytes.get((weight.graph, weight.name), 0)
    if saving_bytes < _MIN_SPARSE_SAVING_BYTES:
        return
    used.sort(key=lambda weight: -weight.nbytes)
    names = [qualified_name(weight) for weight in used]
    yield RULE.finding(
        ctx,
        f"{counted(len(used), 'sparse weight')} ({some_of(names)}:"
        f" {_densified_sizes_text(used, stored_bytes)}) "
        f"{is_or_are(len(used))} expanded to dense arrays in private memory",
        detail="Dense external data of the same size would be mapped and shared.",
        weights=names,
        nbytes=saving_bytes,
        phase="parse",
    )


def _densified_sizes_text(weights: list[Weight], stored_bytes: dict[tuple[str, str], int]) -> str:
    sparse = sum(stored_bytes.get((weight.graph, weight.name), 0) for weight in weights)
    dense = sum(weight.nbytes for weight in weights)
    return f"{format_size(sparse)} become {format_size(dense)}"


def _stored_sparse_sizes(main: Graph) -> Iterator[tuple[tuple[str, str], int]]:
    """Yield the bytes of values and indices of each sparse tensor, by graph and name."""
    for path, graph in main.with_paths():
        for sparse in graph.sparse_initializers:
            yield (path, sparse.values.name), _sparse_tensor_bytes(sparse)
        for node in graph.nodes:
            if node.op_type == "Constant":
                for attribute in node.attribute:
                    if attribute.HasField("sparse_tensor"):
                        yield (path, node.output[0]), _sparse_tensor_bytes(attribute.sparse_tensor)


def _sparse_tensor_bytes(sparse: SparseTensorProto) -> int:
    parts = (sparse.values, sparse.indices)
    return sum(
        ELEMENT_TYPES[tensor.data_type].nbytes(tuple(tensor.dims))
        if tensor.data_type in ELEMENT_TYPES
        else 0
        for tensor in parts
        if prod(tensor.dims)
    )
