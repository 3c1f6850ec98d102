"""A model's serialized form in pieces, so that what its weights hold is copied and never read."""

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TrainingInfoProto,
)

from memdiag.model.tensor_types import ELEMENT_TYPES

Piece = bytes | TensorProto
"""Bytes, or a tensor of external data in whose place the data itself goes."""

_AROUND_TENSORS = (
    ModelProto,
    GraphProto,
    NodeProto,
    AttributeProto,
    FunctionProto,
    TrainingInfoProto,
)
_LENGTH_DELIMITED = 2


def pieces(message: Message) -> list[Piece]:
    """Return what serializing `message` would give if its external data were in it.

    In the wire format (https://protobuf.dev/programming-guides/encoding/) a message in a message
    is a key, a length and the inner message.
    """
    if isinstance(message, TensorProto) and message.data_location == TensorProto.EXTERNAL:
        head = TensorProto()
        head.CopyFrom(message)
        head.ClearField("external_data")
        head.ClearField("data_location")
        key = _key(TensorProto.RAW_DATA_FIELD_NUMBER)
        return [head.SerializeToString() + key + _varint(data_length(message)), message]
    if not _has_external(message):
        return [message.SerializeToString()]
    found: list[Piece] = []
    for field, value in message.ListFields():
        inner = [value] if isinstance(value, Message) else value
        if field.message_type is None or not any(map(_has_external, inner)):
            found.append(_alone(message, field.name, value))
            continue
        for each in inner:
            parts = pieces(each)
            found += [_key(field.number) + _varint(length(parts)), *parts]
    return found


def length(parts: list[Piece]) -> int:
    """Return the bytes of `parts` together."""
    return sum(len(one) if isinstance(one, bytes) else data_length(one) for one in parts)


def data_length(tensor: TensorProto) -> int:
    """Return the bytes of a tensor's external data, also where the reference does not say it."""
    said = next((one.value for one in tensor.external_data if one.key == "length"), "")
    return int(said) if said else ELEMENT_TYPES[tensor.data_type].nbytes(tuple(tensor.dims))


def _has_external(message: Message) -> bool:
    if isinstance(message, TensorProto):
        return message.data_location == TensorProto.EXTERNAL
    return isinstance(message, _AROUND_TENSORS) and any(map(_has_external, _children(message)))


def _children(message: Message) -> Iterator[Message]:
    for field, value in message.ListFields():
        if field.message_type is not None:
            yield from [value] if isinstance(value, Message) else value


def _alone(message: Message, name: str, value: Any) -> bytes:
    """Return the serialized form of one field of `message`."""
    alone = type(message)()
    held = getattr(alone, name)
    if isinstance(value, Message):
        held.CopyFrom(value)
    elif hasattr(held, "extend"):
        held.extend(value)
    else:
        setattr(alone, name, value)
    return bytes(alone.SerializeToString())


def _key(field_number: int) -> bytes:
    return _varint(field_number << 3 | _LENGTH_DELIMITED)


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
