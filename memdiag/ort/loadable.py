"""The oldest release of onnxruntime that can load a model, by what the model declares."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from onnx import OperatorSetIdProto

from memdiag.model.graph_index import MICROSOFT_DOMAIN, GraphIndex, Node, integer
from memdiag.model.model_file import ModelFile
from memdiag.ort.releases import (
    MATMULNBITS_8_BITS_SINCE,
    NEW_CONTRIB_OPERATORS,
    NEWEST_IR_VERSION,
    NEWEST_OPSETS,
    OLDEST,
)
from memdiag.ort.runtime import Runtime

_SINCE_BY_OPERATOR = {
    name: since for since, names in NEW_CONTRIB_OPERATORS.items() for name in names
}


class OldestRelease(NamedTuple):
    """The oldest release that can load a model.

    Attributes:
        runtime: the release; None if none is known.
        why: the part of the model that needs it; empty if every supported release can load it.
    """

    runtime: Runtime | None
    why: str


def oldest_runtime(model: ModelFile) -> OldestRelease:
    """Return the oldest supported release that can load `model`.

    It depends on the version of the IR, the versions of ONNX's own operator sets, and the operators
    of the runtime itself. Operators of other domains need custom libraries and are ignored.
    """
    needs = (
        *_of_versions(model.proto.ir_version, _imports(model)),
        *(_of_node(node) for node in _nodes(model)),
    )
    found = max(needs, key=lambda need: need.runtime or Runtime(9999, 0))
    return found._replace(why="") if found.runtime == OLDEST else found


def _of_versions(ir_version: int, imports: Sequence[OperatorSetIdProto]) -> Iterator[OldestRelease]:
    yield OldestRelease(_first(NEWEST_IR_VERSION, ir_version), f"version {ir_version} of the IR")
    for opset in imports:
        domain = "" if opset.domain == "ai.onnx" else opset.domain
        if domain in NEWEST_OPSETS:
            runtime = _first(NEWEST_OPSETS[domain], opset.version)
            yield OldestRelease(runtime, f"opset {opset.version} of {domain or 'ai.onnx'}")


def _of_node(node: Node) -> OldestRelease:
    if node.domain != MICROSOFT_DOMAIN:
        return OldestRelease(OLDEST, "")
    since = _SINCE_BY_OPERATOR.get(node.op_type, OLDEST)
    if node.op_type == "MatMulNBits" and integer(node, "bits", 4) == 8:
        return OldestRelease(MATMULNBITS_8_BITS_SINCE, "MatMulNBits of 8 bits")
    return OldestRelease(since, f"the operator {node.op_type} of {MICROSOFT_DOMAIN}")


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
