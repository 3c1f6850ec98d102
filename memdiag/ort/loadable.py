"""The oldest release of onnxruntime that can load a model, by what the model declares.

Seen with 1.20.1, 1.21.0, 1.22.1, 1.23.2, 1.24.4, each minor release from 1.25 to 1.30, and 1.31.1:
which versions they load, and which operators their lists of schemas have.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from onnx import OperatorSetIdProto

from memdiag.model.graph_index import GraphIndex, Node, integer
from memdiag.model.model_file import ModelFile
from memdiag.ort.runtime import Runtime

OLDEST_SUPPORTED = Runtime(1, 20)
"""Features of this release may be older: older releases are not supported."""

_NEWEST_IR = {
    OLDEST_SUPPORTED: 10,
    Runtime(1, 23): 11,
    Runtime(1, 24): 13,
}
_NEWEST_OPSETS = {
    "": {
        OLDEST_SUPPORTED: 21,
        Runtime(1, 21): 22,
        Runtime(1, 23): 23,
        Runtime(1, 24): 25,
        Runtime(1, 25): 26,
    },
    "ai.onnx.ml": {OLDEST_SUPPORTED: 5},
}
_CONTRIB = "com.microsoft"
_CONTRIB_SINCE = {
    Runtime(1, 23): ("PagedAttention",),
    Runtime(1, 26): ("CausalConvWithState", "LinearAttention"),
    Runtime(1, 27): ("MatMulNBitsMlp", "MatMulNBitsQkv"),
    Runtime(1, 29): (
        "GatedAdd",
        "GatedRMSNorm",
        "LinearAttentionGate",
        "MRotaryEmbedding",
        "MatMulBlockQuantizedFp4Weight",
        "MatMulBlockQuantizedFp8Weight",
    ),
    Runtime(1, 30): (
        "EngramGate",
        "GatedDeltaNet",
        "NGramHashMapping",
        "VarlenCausalConvWithState",
    ),
    Runtime(1, 31): (
        "BranchwiseRMSNorm",
        "DynamicSparseAttention",
        "HyperConnectionPostMix",
        "HyperConnectionPreMix",
        "PackedSparseAttentionIndexer",
        "ScaledSiLU",
        "SparseAttentionIndexer",
        "SparsePagedAttention",
        "VarlenNGramHashMapping",
    ),
}
_BY_NAME = {name: since for since, names in _CONTRIB_SINCE.items() for name in names}
_EIGHT_BITS_SINCE = Runtime(1, 22)


class Need(NamedTuple):
    """The oldest release that can load a model.

    Attributes:
        runtime: the release; None if none is known.
        why: the part of the model that needs it; empty if every supported release can load it.
    """

    runtime: Runtime | None
    why: str


def oldest_runtime(model: ModelFile) -> Need:
    """Return the oldest supported release that can load `model`.

    It depends on the version of the IR, the versions of ONNX's own operator sets, and the operators
    of the runtime itself. Operators of other domains need custom libraries and are ignored.
    """
    needs = (
        *_of_versions(model.proto.ir_version, _imports(model)),
        *(_of_node(node) for node in _nodes(model)),
    )
    found = max(needs, key=lambda need: need.runtime or Runtime(9999, 0))
    return found._replace(why="") if found.runtime == OLDEST_SUPPORTED else found


def _of_versions(ir_version: int, imports: Sequence[OperatorSetIdProto]) -> Iterator[Need]:
    yield Need(_first(_NEWEST_IR, ir_version), f"version {ir_version} of the IR")
    for opset in imports:
        domain = "" if opset.domain == "ai.onnx" else opset.domain
        if domain in _NEWEST_OPSETS:
            runtime = _first(_NEWEST_OPSETS[domain], opset.version)
            yield Need(runtime, f"opset {opset.version} of {domain or 'ai.onnx'}")


def _of_node(node: Node) -> Need:
    if node.domain != _CONTRIB:
        return Need(OLDEST_SUPPORTED, "")
    since = _BY_NAME.get(node.op_type, OLDEST_SUPPORTED)
    if node.op_type == "MatMulNBits" and integer(node, "bits", 4) == 8:
        return Need(_EIGHT_BITS_SINCE, "MatMulNBits of 8 bits")
    return Need(since, f"the operator {node.op_type} of {_CONTRIB}")


def _first(newest: dict[Runtime, int], version: int) -> Runtime | None:
    """Return the first release whose newest version is `version` or later."""
    return next((release for release, known in newest.items() if version <= known), None)


def _imports(model: ModelFile) -> list[OperatorSetIdProto]:
    return [
        opset
        for imports in (
            model.proto.opset_import,
            *(function.opset_import for function in model.proto.functions),
        )
        for opset in imports
    ]


def _nodes(model: ModelFile) -> Iterator[Node]:
    for _, scope in GraphIndex(model):
        yield from scope.nodes
