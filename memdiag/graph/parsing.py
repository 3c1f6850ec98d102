"""A serialized model made into what is held of it while it is open, some nodes at a time."""

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto

from memdiag.errors import ModelError
from memdiag.graph.bodies import Body
from memdiag.graph.fields import fields
from memdiag.graph.names import check_names
from memdiag.graph.spool import Spool
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


def parse(serialized: bytes, *, origin: str) -> Parsed:
    """Return what the serialized ModelProto holds, which `origin` names in errors.

    Raises:
        ModelError: it is no ModelProto, or a name in it is not text.
    """
    try:
        return _parse(serialized, origin)
    except (DecodeError, UnicodeDecodeError) as error:
        raise ModelError(
            f"{origin}: it is damaged or no ONNX model, protobuf cannot decode it; "
            "download or export it again."
        ) from error


def _parse(serialized: bytes, origin: str) -> Parsed:
    head: list[bytes] = []
    functions: list[Body] = []
    spool = Spool()
    graph = _GraphFields(serialized)
    has_graph = False
    for field in fields(serialized):
        if field.number == _GRAPH and field.content is not None:
            has_graph = True
            graph.add(field.content, field.stop)  # protobuf merges those that are there twice
        elif field.number == _FUNCTION:
            for function in ModelProto.FromString(serialized[field.start : field.stop]).functions:
                check_names(function, origin=origin)
                functions.append(Body.of(function, spool))
        elif field.number not in _LEFT_OUT:
            head.append(serialized[field.start : field.stop])
    model = ModelProto.FromString(b"".join(head))
    if not has_graph or not model.ir_version:
        raise ModelError(f"{origin}: {NOT_ONNX}.")
    check_names(model, origin=origin)
    return Parsed(model, graph.body(spool, origin), tuple(functions))


class _GraphFields:
    """The fields of the main graph: the many by where they lie, the others together."""

    def __init__(self, serialized: bytes) -> None:
        self._serialized = serialized
        self._head: list[bytes] = []
        self._places = {number: array("Q") for number in (_NODE, _INITIALIZER, _VALUE_INFO)}

    def add(self, start: int, end: int) -> None:
        """Add the fields of the graph that lies from `start` to before `end`."""
        for field in fields(self._serialized, start, end):
            if field.number in self._places:
                self._places[field.number].extend((field.start, field.stop))
            elif field.number not in _LEFT_OUT_OF_GRAPH:
                self._head.append(self._serialized[field.start : field.stop])

    def body(self, spool: Spool, origin: str) -> Body:
        """Return what the fields hold."""
        head = GraphProto.FromString(b"".join(self._head))
        check_names(head, origin=origin)
        body = Body(head, spool)
        for number in self._places:
            for part in self._parsed(number):
                check_names(part, origin=origin)
                body.add(part)
        return body

    def _parsed(self, number: int) -> Iterator[GraphProto]:
        """Yield graphs of some fields each, which together are all with that number."""
        for first in range(0, len(self._places[number]), 2 * _AT_ONCE):
            places = self._places[number][first : first + 2 * _AT_ONCE]
            pairs = zip(places[::2], places[1::2], strict=True)
            joined = b"".join(self._serialized[start:stop] for start, stop in pairs)
            yield GraphProto.FromString(joined)
