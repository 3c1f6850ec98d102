"""The oldest release of onnxruntime that can load a model, by what the model declares."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from onnx import OperatorSetIdProto

from memdiag.model.graph_index import MICROSOFT_DOMAIN, GraphIndex, Node, integer_attribute
from memdiag.model.model_file import ModelFile
from memdiag.ort.releases import (
    MATMULNBITS_8_BITS_SINCE,
    NEW_CONTRIB_OPERATORS,
    NEWEST_IR_VERSION,
    NEWEST_OPSETS,
    OLDEST_RELEASE,
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


def oldest_runtime(model_file: ModelFile) -> OldestRelease:
    """Return the oldest supported release that can load `model_file`.

    It depends on the version of the IR, the versions of ONNX's own operator sets, and the operators
    of the runtime itself. Operators of other domains need custom libraries and are ignored.
    """
    needs = (
        *_releases_for_versions(model_file.proto.ir_version, _all_opset_imports(model_file)),
        *(_release_for_node(node) for node in _all_model_nodes(model_file)),
    )
    newest = max(needs, key=lambda need: need.runtime or Runtime(9999, 0))
    return newest._replace(why="") if newest.runtime == OLDEST_RELEASE else newest


def _releases_for_versions(
    ir_version: int, imports: Sequence[OperatorSetIdProto]
) -> Iterator[OldestRelease]:
    yield OldestRelease(
        _first_release_with(NEWEST_IR_VERSION, ir_version), f"version {ir_version} of the IR"
    )
    for opset in imports:
        domain = "" if opset.domain == "ai.onnx" else opset.domain
        if domain in NEWEST_OPSETS:
            runtime = _first_release_with(NEWEST_OPSETS[domain], opset.version)
            yield OldestRelease(runtime, f"opset {opset.version} of {domain or 'ai.onnx'}")


def _release_for_node(node: Node) -> OldestRelease:
    if node.domain != MICROSOFT_DOMAIN:
        return OldestRelease(OLDEST_RELEASE, "")
    since = _SINCE_BY_OPERATOR.get(node.op_type, OLDEST_RELEASE)
    if node.op_type == "MatMulNBits" and integer_attribute(node, "bits", 4) == 8:
        return OldestRelease(MATMULNBITS_8_BITS_SINCE, "MatMulNBits of 8 bits")
    return OldestRelease(since, f"the operator {node.op_type} of {MICROSOFT_DOMAIN}")


def _first_release_with(newest_by_release: dict[Runtime, int], version: int) -> Runtime | None:
    """Return the first release whose newest version is `version` or later."""
    releases = (release for release, newest in newest_by_release.items() if version <= newest)
    return next(releases, None)


def _all_opset_imports(model_file: ModelFile) -> list[OperatorSetIdProto]:
    return [
        opset
        for imports in (
            model_file.proto.opset_import,
            *(function.opset_import for function in model_file.proto.functions),
        )
        for opset in imports
    ]


def _all_model_nodes(model_file: ModelFile) -> Iterator[Node]:
    for _, scope in GraphIndex(model_file):
        yield from scope.nodes
