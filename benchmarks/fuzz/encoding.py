"""What is done to the encoding of a protobuf message, and to bytes of any kind."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

from onnx import ModelProto

NUMBERS = (
    *(-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 15, 16, 17, 31, 64, 255, 4096),
    *(2**16, 2**20, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1),
)
"""Numbers at which something overflows, ends or is too much, as sizes, axes, types or lengths."""


class Field(NamedTuple):
    """A field as it is encoded: its place in the bytes, its number, and its wire type."""

    start: int
    payload: int
    end: int
    number: int
    wire_type: int


_LENGTH = 2
_DEEPEST = 12


def mutate_encoding(data: bytes, random: Random) -> bytes:
    """Return `data` with one to four of its encoded fields dropped, repeated, moved or changed."""
    for _ in range(random.choice((1, 1, 2, 4))):
        fields = list(_fields(data, 0, len(data), ModelProto.DESCRIPTOR, 0))
        if not fields:
            break
        chosen, other = random.choice(fields), random.choice(fields)
        whole, payload = data[chosen.start : chosen.end], data[chosen.payload : chosen.end]
        kind = random.randrange(8)
        if kind == 0:
            new = b""
        elif kind == 1:
            new = whole * random.choice((2, 3, 50))
        elif kind == 2:  # another field's place, at times in another message
            new = data[other.start : other.end]
        elif kind == 3:
            new = varint(
                (random.choice((chosen.number, 1, 5, 99, 2**28)) << 3) | random.randrange(8)
            )
            new += data[chosen.start + 1 : chosen.end]
        elif kind == 4:  # a length or a number that is another one
            new = varint(chosen.number << 3 | chosen.wire_type) + varint(
                random.choice(NUMBERS) % 2**64
            )
            new += payload if chosen.wire_type == _LENGTH else b""
        elif kind == 5:  # written with more bytes than it takes, or without an end
            new = data[chosen.start : chosen.start + 1] + random.choice((b"\x80" * 9, b"\xff" * 12))
            new += payload
        elif kind == 6:  # groups, begun and at times ended
            new = bytes([chosen.number << 3 & 0x7F | 3]) * random.choice((1, 150)) + whole
            new += bytes([chosen.number << 3 & 0x7F | 4]) * random.choice((0, 1, 150))
        else:
            inner = mutate_bytes(payload, random)
            new = data[chosen.start : chosen.start + 1]
            new += (varint(len(inner)) if chosen.wire_type == _LENGTH else b"") + inner
        data = _replaced(data, fields, chosen, new, keep_lengths=random.random() < 0.3)
    return data


def _replaced(
    data: bytes, fields: Sequence[Field], chosen: Field, new: bytes, *, keep_lengths: bool
) -> bytes:
    """Return `data` with `new` in place of a field, and the lengths around it put right or not."""
    around = [each for each in fields if each.payload <= chosen.start and chosen.end <= each.end]
    data = data[: chosen.start] + new + data[chosen.end :]
    grown = len(new) - (chosen.end - chosen.start)
    if keep_lengths:
        return data
    for each in sorted(around, key=lambda field: -field.start):
        if each != chosen:
            head = varint(each.number << 3 | each.wire_type)
            head += varint(each.end - each.payload + grown)
            data = data[: each.start] + head + data[each.payload :]
            grown += len(head) - (each.payload - each.start)
    return data


def _fields(data: bytes, at: int, end: int, descriptor: Any, depth: int) -> Iterator[Field]:
    """Yield the fields of an encoded message, and those of the messages in it, until one is bad."""
    while at < end:
        start = at
        tag, at = _read_varint(data, at, end)
        number, wire_type = tag >> 3, tag & 7
        payload = at
        if wire_type == 0:
            _, at = _read_varint(data, at, end)
        elif wire_type == _LENGTH:
            length, payload = _read_varint(data, at, end)
            at = payload + length
        elif wire_type in (1, 5):
            at += 8 if wire_type == 1 else 4
        else:
            return
        if at > end:
            return
        yield Field(start, payload, at, number, wire_type)
        field = descriptor.fields_by_number.get(number)
        if wire_type == _LENGTH and field is not None and field.message_type and depth < _DEEPEST:
            yield from _fields(data, payload, at, field.message_type, depth + 1)


def _read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    return value, end + 1


def varint(value: int) -> bytes:
    """Return a number of 0 or more as protobuf encodes it."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def nest(data: bytes, depth: int) -> bytes:
    """Return a model `data` with a graph of If in If in If, deeper than the library encodes."""
    graph = b""
    for _ in range(depth):
        attribute = _text(1, b"then_branch") + _text(6, graph) + varint(20 << 3) + varint(5)
        node = _text(1, b"c") + _text(2, b"y") + _text(4, b"If") + _text(5, attribute)
        graph = _text(1, node)
    return data + _text(7, graph)


def _text(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | _LENGTH) + varint(len(payload)) + payload


def mutate_bytes(data: bytes, random: Random) -> bytes:
    """Return `data` with one to four changes of its bytes."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(changed) + 1)
        kind = random.randrange(6)
        if kind == 0:
            del changed[at:]
        elif kind == 1:
            changed[at : at + 1] = bytes([random.randrange(256)])
        elif kind == 2:
            changed[at:at] = random.randbytes(random.choice((1, 2, 12)))
        elif kind == 3:
            del changed[at : at + random.choice((1, 2, 50, 4000))]
        elif kind == 4:
            changed[at:at] = changed[at : at + random.choice((1, 30, 300))]
        else:
            changed[at : at + 1] = b"\xff" * random.randrange(1, 10) + b"\x7f"
    return bytes(changed)
