"""Writing of models chunk by chunk, so that memory does not grow with their size."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import onnx
from google.protobuf.message import Message

from memdiag.errors import UsageError
from sample_models.weights import Tensor

EMBEDDED_LIMIT = 2**31 - 1
"""The largest message protobuf reads, in bytes."""

_ALIGNMENT = 65536  # of external data: the coarsest page of the systems we know
_LENGTH_DELIMITED = 2
_ON_THE_WAY = (onnx.ModelProto, onnx.GraphProto, onnx.NodeProto, onnx.AttributeProto)


def write_model(
    graph: onnx.GraphProto,
    weights: Iterable[Tensor],
    path: Path,
    external: bool,
    *,
    opset: int = 17,
    domains: Iterable[str] = (),
) -> None:
    """Write `graph` as a model to `path`, with the generated content of the tensors `weights`.

    With `external`, the content is written to `path` + ``.data``. Both files appear whole or not at
    all. `domains` are the domains of operators that are not ONNX's own.

    Raises:
        UsageError: an embedded model would exceed protobuf's limit, or a file cannot be written.
    """
    standard = onnx.helper.make_opsetid("", opset)
    model = onnx.helper.make_model(
        graph,
        producer_name="memdiag sample_models",
        ir_version=onnx.helper.find_min_ir_version_for([standard]),
        opset_imports=[standard, *(onnx.helper.make_opsetid(domain, 1) for domain in domains)],
    )
    by_name = {weight.name: weight for weight in weights}
    try:
        if external:
            _write_external(model, by_name, path)
        else:
            _write_embedded(model, by_name, path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}).") from error


def _write_external(model: onnx.ModelProto, weights: dict[str, Tensor], path: Path) -> None:
    data_path = path.with_name(path.name + ".data")
    with _replacing(data_path) as data, _replacing(path) as file:
        for tensor in _tensors(model.graph):
            if weight := weights.get(tensor.name):
                data.seek(-data.tell() % _ALIGNMENT, os.SEEK_CUR)
                tensor.data_location = onnx.TensorProto.EXTERNAL
                for key, value in (
                    ("location", data_path.name),
                    ("offset", str(data.tell())),
                    ("length", str(weight.nbytes)),
                ):
                    tensor.external_data.add(key=key, value=value)
                data.writelines(weight.chunks())
        file.write(model.SerializeToString())


def _write_embedded(model: onnx.ModelProto, weights: dict[str, Tensor], path: Path) -> None:
    pieces = list(_parts(model, weights))
    if (size := _length(pieces)) > EMBEDDED_LIMIT:
        raise UsageError(
            f"{path}: {size / 1e6:,.0f} MB is more than the 2 GB limit of an ONNX file; "
            "add --external to keep the weights in a file next to it."
        )
    with _replacing(path) as file:
        for piece in pieces:
            file.writelines(piece.chunks() if isinstance(piece, Tensor) else (piece,))


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the initializers of `graph` and of all graphs inside it, in the order of the file."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _tensors(attribute.g)
    yield from graph.initializer


def _parts(message: Message, weights: dict[str, Tensor]) -> Iterator[bytes | Tensor]:
    """Yield the serialized `message` in parts, with a `Tensor` in place of its content.

    Protobuf's serializer needs the whole content in memory twice. In its wire format
    (https://protobuf.dev/programming-guides/encoding/) a message within a message is a key, a
    length and the inner message, and fields may be in any order.
    """
    if isinstance(message, onnx.TensorProto) and (weight := weights.get(message.name)):
        yield message.SerializeToString()
        yield _header(onnx.TensorProto.RAW_DATA_FIELD_NUMBER, weight.nbytes)
        yield weight
    elif isinstance(message, _ON_THE_WAY):
        for field, value in message.ListFields():
            if field.message_type is None:
                yield _serialized_field(message, field.name, value)
                continue
            for inner in [value] if isinstance(value, Message) else value:
                pieces = list(_parts(inner, weights))
                yield _header(field.number, _length(pieces))
                yield from pieces
    else:
        yield message.SerializeToString()


def _serialized_field(message: Message, name: str, value: Any) -> bytes:
    """Return one scalar field of `message`, serialized."""
    alone = type(message)()
    if hasattr(repeated := getattr(alone, name), "extend"):
        repeated.extend(value)
    else:
        setattr(alone, name, value)
    serialized: bytes = alone.SerializeToString()
    return serialized


def _header(field_number: int, length: int) -> bytes:
    return _varint(field_number << 3 | _LENGTH_DELIMITED) + _varint(length)


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def _length(pieces: Iterable[bytes | Tensor]) -> int:
    return sum(piece.nbytes if isinstance(piece, Tensor) else len(piece) for piece in pieces)


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` at the end, or is removed on an error."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
