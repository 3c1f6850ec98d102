"""A serialized model made into what is held of it while it is open, some nodes at a time."""

from array import array
from collections.abc import Iterator
from sys import intern
from typing import NamedTuple

from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto

from memdiag.errors import ModelError
from memdiag.graph.bodies import Body, Kept, Node
from memdiag.graph.fields import fields
from memdiag.graph.names import check_names
from memdiag.graph.wire import NOT_ONNX

# Fields of ModelProto, and those that are passed over: documentation, metadata, training.
_GRAPH, _FUNCTION = 7, 25
_LEFT_OUT = (6, 14, 20)
# Likewise of GraphProto: documentation, annotations of quantization, metadata.
_NODE, _INITIALIZER, _VALUE_INFO = 1, 5, 13
_LEFT_OUT_OF_GRAPH = (10, 14, 16)

_AT_ONCE = 1024
"""Fields that are parsed together: protobuf's own objects take a few hundred kilobytes then."""


class Parsed(NamedTuple):
    """A model: its `head` is what ONNX says of it but for graph, functions and documentation."""

    head: ModelProto
    graph: Body
    functions: tuple[Body, ...]


def parse(serialized: bytes, *, origin: str, kept: Kept = intern) -> Parsed:
    """Return what the serialized ModelProto holds, which `origin` names in errors.

    Of each name the copy is kept that `kept` returns.

    Raises:
        ModelError: it is no ModelProto, or a name in it is not text.
    """
    try:
        return _parse(serialized, origin, kept)
    except (DecodeError, UnicodeDecodeError) as error:
        raise ModelError(
            f"{origin}: it is damaged or no ONNX model, protobuf cannot decode it; "
            "download or export it again."
        ) from error


def _parse(serialized: bytes, origin: str, kept: Kept) -> Parsed:
    head: list[bytes] = []
    functions: list[Body] = []
    graph = _GraphFields(serialized, kept)
    has_graph = False
    for field in fields(serialized):
        if field.number == _GRAPH and field.content is not None:
            has_graph = True
            graph.add(field.content, field.stop)  # protobuf merges those that are there twice
        elif field.number == _FUNCTION:
            for function in ModelProto.FromString(serialized[field.start : field.stop]).functions:
                check_names(function, origin=origin)
                functions.append(Body.of(function, kept))
        elif field.number not in _LEFT_OUT:
            head.append(serialized[field.start : field.stop])
    model = ModelProto.FromString(b"".join(head))
    if not has_graph or not model.ir_version:
        raise ModelError(f"{origin}: {NOT_ONNX}.")
    check_names(model, origin=origin)
    return Parsed(model, graph.body(origin), tuple(functions))


class _GraphFields:
    """The fields of the main graph: the many by where they lie, the others together."""

    def __init__(self, serialized: bytes, kept: Kept) -> None:
        self._serialized = serialized
        self._kept = kept
        self._head: list[bytes] = []
        self._places = {number: array("Q") for number in (_NODE, _INITIALIZER, _VALUE_INFO)}

    def add(self, start: int, end: int) -> None:
        """Add the fields of the graph that lies from `start` to before `end`."""
        for field in fields(self._serialized, start, end):
            if field.number in self._places:
                self._places[field.number].extend((field.start, field.stop))
            elif field.number not in _LEFT_OUT_OF_GRAPH:
                self._head.append(self._serialized[field.start : field.stop])

    def body(self, origin: str) -> Body:
        """Return what the fields hold."""
        head = GraphProto.FromString(b"".join(self._head))
        check_names(head, origin=origin)
        for part in self._parsed(_VALUE_INFO):
            check_names(part, origin=origin)
        return Body(
            head,
            self._nodes(origin),
            self._initializers(origin),
            self._joined(_VALUE_INFO, slice(None)),
            self._kept,
        )

    def _nodes(self, origin: str) -> Iterator[Node]:
        for part in self._parsed(_NODE):
            check_names(part, origin=origin)
            yield from (Node(node, self._kept) for node in part.node)

    def _initializers(self, origin: str) -> Iterator[bytes]:
        for part in self._parsed(_INITIALIZER):
            check_names(part, origin=origin)
            yield from (tensor.SerializeToString() for tensor in part.initializer)

    def _parsed(self, number: int) -> Iterator[GraphProto]:
        """Yield graphs of some fields each, which together are all with that number."""
        for first in range(0, len(self._places[number]), 2 * _AT_ONCE):
            yield GraphProto.FromString(self._joined(number, slice(first, first + 2 * _AT_ONCE)))

    def _joined(self, number: int, part: slice) -> bytes:
        places = self._places[number][part]
        pairs = zip(places[::2], places[1::2], strict=True)
        return b"".join(self._serialized[start:stop] for start, stop in pairs)
