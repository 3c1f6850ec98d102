"""A serialized model made into what is held of it while it is open, some nodes at a time."""

from typing import NamedTuple

from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto

from memdiag.errors import ModelError
from memdiag.graph.bodies import Body
from memdiag.graph.damage import NOT_ONNX
from memdiag.graph.names import check_names
from memdiag.graph.pieces import Pieces
from memdiag.graph.room import HEAD_BYTES, PARSED_BYTES, Room, TooLarge
from memdiag.graph.spool import Spool
from memdiag.graph.wire import Piece

# Fields of ModelProto, and those that are passed over: documentation, metadata, training.
_GRAPH, _FUNCTION = 7, 25
_LEFT_OUT = (6, 14, 20)
# Likewise of GraphProto: documentation, annotations of quantization, metadata.
_NODE = 1
_MANY = (_NODE, 5, 13)  # initializers and types of inner values are the others
_LEFT_OUT_OF_GRAPH = (10, 14, 16)

_AT_ONCE = 1024
"""Fields that are parsed together: protobuf's own objects take a few hundred kilobytes then."""

_MOST_BYTES = 1 << 20


class Parsed(NamedTuple):
    """A model: its `head` is what ONNX says of it but for graph, functions and documentation."""

    head: ModelProto
    graph: Body
    functions: tuple[Body, ...]


def parse(pieces: Pieces, *, origin: str) -> Parsed:
    """Return what the fields of a skeleton hold, which `origin` names in errors.

    Raises:
        ModelError: it is no ModelProto, a name in it is not text, or it has more than any memory
            should have to hold.
    """
    try:
        return _parse(pieces, origin)
    except TooLarge:
        raise ModelError(
            f"{origin}: it has so many nodes, names, strings and small tensors that looking at "
            f"them would take too much memory; {pieces.room.advice}."
        ) from None
    except (DecodeError, UnicodeDecodeError) as error:
        raise ModelError(
            f"{origin}: it is damaged or no ONNX model, protobuf cannot decode it; "
            "download or export it again."
        ) from error


def _parse(pieces: Pieces, origin: str) -> Parsed:
    head: list[bytes] = []
    functions: list[Body] = []
    graph: _Graph | None = None
    spool, room = Spool(), pieces.room
    for piece in pieces:
        if piece.in_graph:
            assert graph is not None
            graph.add(piece)
        elif piece.number == _GRAPH and not piece.nbytes:
            # Protobuf merges those that are there twice.
            graph = graph or _Graph(spool, room, origin)
        elif piece.number == _FUNCTION:
            room.check(piece.nbytes * PARSED_BYTES)
            for function in ModelProto.FromString(piece.read()).functions:
                check_names(function, origin=origin)
                functions.append(Body.of(function, spool, room))
        elif piece.number not in _LEFT_OUT:
            room.take(piece.nbytes * PARSED_BYTES)
            head.append(piece.read())
    model = ModelProto.FromString(b"".join(head))
    if graph is None or not model.ir_version:
        raise ModelError(f"{origin}: {NOT_ONNX}.")
    check_names(model, origin=origin)
    return Parsed(model, graph.body(), tuple(functions))


class _Graph:
    """The fields of the main graph: the many are parsed as they come, the others together."""

    def __init__(self, spool: Spool, room: Room, origin: str) -> None:
        self._origin = origin
        self._body = Body(GraphProto(), spool, room)
        self._head: list[bytes] = []
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    def add(self, piece: Piece) -> None:
        """Add a field."""
        if piece.number in _MANY:
            self._body.room.check(piece.nbytes * PARSED_BYTES)
            self._waiting.append(piece.read())
            self._waiting_bytes += piece.nbytes
            if len(self._waiting) >= _AT_ONCE or self._waiting_bytes > _MOST_BYTES:
                self._parse_waiting()
        elif piece.number not in _LEFT_OUT_OF_GRAPH:
            self._body.room.take(piece.nbytes * HEAD_BYTES)
            self._head.append(piece.read())

    def body(self) -> Body:
        """Return what the fields hold."""
        self._parse_waiting()
        head = GraphProto.FromString(b"".join(self._head))
        check_names(head, origin=self._origin)
        self._body.set_head(head)
        return self._body

    def _parse_waiting(self) -> None:
        part = GraphProto.FromString(b"".join(self._waiting))
        self._waiting.clear()
        self._waiting_bytes = 0
        check_names(part, origin=self._origin)
        self._body.add(part)
