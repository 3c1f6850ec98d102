"""The fields of a serialized protobuf message, without a word on what they mean.

See https://protobuf.dev/programming-guides/encoding/ for the format.
"""

import mmap
from collections.abc import Iterator
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

Buffer = bytes | mmap.mmap

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5
"""The wire types; the two others, for groups, ONNX has no use for."""

LONGEST_VARINT = 10


class Field(NamedTuple):
    """A field of a message: its number, where it starts, where its content does, where it stops.

    `content` is None for numbers, which have no length.
    """

    number: int
    start: int
    content: int | None
    stop: int


def fields(message: Buffer, start: int = 0, end: int | None = None) -> Iterator[Field]:
    """Yield the fields of the message that lies in the bytes from `start` to before `end`.

    Raises:
        DecodeError: it is no message, as protobuf would say.
    """
    end = len(message) if end is None else end
    pos = start
    try:
        while pos < end:
            begin = pos
            tag, pos = varint(message, pos, end)
            content, wire = None, tag & 7
            if wire == LENGTH:
                length, content = varint(message, pos, end)
                pos = content + length
            elif wire == VARINT:
                pos = varint(message, pos, end)[1]
            elif wire in (FIXED32, FIXED64):
                pos += 4 if wire == FIXED32 else 8
            else:
                raise DecodeError(f"there is no field at byte {begin}")
            if pos > end:
                raise EOFError
            yield Field(tag >> 3, begin, content, pos)
    except (EOFError, ValueError) as error:
        raise DecodeError(f"the message ends inside the field at byte {begin}") from error


def varint(data: Buffer, pos: int, end: int) -> tuple[int, int]:
    """Return the number at `pos` and the position after it.

    Raises:
        EOFError: the data end inside it.
        ValueError: it is longer than `LONGEST_VARINT` bytes.
    """
    if pos < end and data[pos] < 0x80:
        return data[pos], pos + 1  # most of them are one byte
    value = 0
    for place in range(LONGEST_VARINT):
        if pos + place >= end:
            raise EOFError
        byte = data[pos + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, pos + place + 1
    raise ValueError(f"a number of more than {LONGEST_VARINT} bytes")
