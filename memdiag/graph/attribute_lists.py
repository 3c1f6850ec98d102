"""Long lists and strings in attributes: told by how much they are, and not held.

Tree ensembles have lists of many numbers and strings, which take several times their bytes once
they are parsed; others hold a whole file as one string. In a skeleton only the beginning is left of
them, and in the attribute's documentation a line that says what the whole holds.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from onnx import AttributeProto

from memdiag.graph.fields import FIXED32, LENGTH, VARINT, Buffer, Field, fields, varint
from memdiag.graph.reference_fields import length_field
from memdiag.graph.tensor_data import CONSTANT_FIELDS

SHORT = 15
"""Characters of a string that C++ keeps in the string itself; longer ones take a block apart."""

_NAME, _STRING, _FLOATS, _INTS, _STRINGS, _DOCUMENTATION = 1, 4, 7, 8, 9, 13
_AT_ONCE = 1 << 20
_BEGINNING = 1 << 10
"""Bytes that are left of a string."""

_MORE = 0x80
_INT_TAG, _STRING_TAG = bytes([_INTS << 3 | VARINT]), bytes([_STRINGS << 3 | LENGTH])

_MARK = "\x00memdiag:left-out"
# Where it was, so that two are not taken for the same, and what `Lists` says.
_MARKED = re.compile(rf"{_MARK} \d+ (\d{{1,15}}) (\d{{1,15}}) (\d{{1,15}}) (\d{{1,15}})")


class Lists(NamedTuple):
    """How many numbers and strings an attribute's lists hold, and the bytes of long strings.

    Long are strings of more than `SHORT` bytes.
    """

    ints: int = 0
    floats: int = 0
    strings: int = 0
    long_bytes: int = 0


def lists_of(attribute: AttributeProto) -> Lists:
    """Return what the lists of an attribute hold, also of one that is left out of a skeleton."""
    marked = _MARKED.fullmatch(attribute.doc_string)
    if marked is not None:
        return Lists(*map(int, marked.groups()))
    return Lists(
        len(attribute.ints),
        len(attribute.floats),
        len(attribute.strings),
        sum(size for text in attribute.strings if (size := len(text)) > SHORT),
    )


def shortened(data: Buffer, start: int, end: int, passed: Callable[[int], None]) -> bytes | None:
    """Return the attribute at `start` to `end` with the beginning of its list or string only.

    Its type comes last, as writers put it. `passed` is called with where it was read to. None where
    it has neither, or more than that and a name, or is the value of a Constant, which is a weight.
    """
    try:
        return _shortened(data, start, end, passed)
    except DecodeError:
        return None  # protobuf says what is wrong


def _shortened(data: Buffer, start: int, end: int, passed: Callable[[int], None]) -> bytes | None:
    name, first = b"", None
    for field in fields(data, start, end):
        if field.number == _NAME and field.content is not None:
            name = data[field.content : field.stop]
        if field.number in (_STRING, _FLOATS, _INTS, _STRINGS):
            first = field
            break
    last = end - 3  # the type's
    if first is None or name.decode(errors="replace") in CONSTANT_FIELDS:
        return None
    if first.content is not None and first.number != _STRINGS:
        lists = _of_one_field(data, first, passed) if first.stop == last else None
    else:
        lists = _of_many_fields(data, first, last, passed)
    if lists is None:
        return None
    mark = " ".join((_MARK, str(first.start), *map(str, lists)))
    marked = length_field(_DOCUMENTATION, mark.encode())
    return data[start : first.start] + _beginning(data, first) + marked + data[last:end]


def _of_one_field(data: Buffer, field: Field, passed: Callable[[int], None]) -> Lists | None:
    """Return what a packed list holds, or a string, which is no list."""
    assert field.content is not None
    size = field.stop - field.content
    if field.number == _STRING:
        return Lists()
    if field.number == _FLOATS:
        return Lists(floats=size // 4) if size % 4 == 0 else None
    count, octets = 0, b""
    for start in range(field.content, field.stop, _AT_ONCE):
        octets = data[start : min(start + _AT_ONCE, field.stop)]
        count += int(np.count_nonzero(np.frombuffer(octets, np.uint8) < _MORE))
        passed(start + len(octets))
    return Lists(ints=count) if octets and octets[-1] < _MORE else None


def _of_many_fields(
    data: Buffer, first: Field, end: int, passed: Callable[[int], None]
) -> Lists | None:
    """Return what a list holds that has a field for each element, the `first` one and on."""
    fits = {_FLOATS: _floats, _INTS: _ints, _STRINGS: _Strings().fits}[first.number]
    lists = Lists()
    start = first.start
    while start < end:
        octets = data[start : min(start + _AT_ONCE, end)]
        octets = octets[: fits(octets)]
        more = _parsed(octets, first.number) if octets else _long_string(data, start, end)
        if more is None:
            return None
        lists = Lists(*map(sum, zip(lists, more, strict=True)))
        start = start + len(octets) if octets else next(fields(data, start, end)).stop
        passed(start)
    return lists


def _parsed(octets: bytes, number: int) -> Lists | None:
    """Return what the fields in `octets` hold, all of that number."""
    parsed = AttributeProto.FromString(octets)
    if [known.number for known, _ in parsed.ListFields()] != [number]:
        return None
    return lists_of(parsed)


def _long_string(data: Buffer, start: int, end: int) -> Lists | None:
    """Return what one string of a list holds that is longer than what is read at once."""
    field = next(fields(data, start, end))
    if field.number != _STRINGS or field.content is None:
        return None
    size = field.stop - field.content
    return Lists(strings=1, long_bytes=size if size > SHORT else 0)


def _beginning(data: Buffer, field: Field) -> bytes:
    """Return the beginning of a string, or the first element of a list, as a field of its own."""
    if field.content is None:
        return data[field.start : field.stop]
    if field.number in (_STRING, _STRINGS):
        return length_field(
            field.number, data[field.content : min(field.stop, field.content + _BEGINNING)]
        )
    if field.number == _FLOATS:
        return bytes([_FLOATS << 3 | FIXED32]) + data[field.content : field.content + 4]
    return _INT_TAG + data[field.content : varint(data, field.content, field.stop)[1]]


def _floats(octets: bytes) -> int:
    """Return how many bytes are whole floats, with a tag each."""
    return len(octets) // 5 * 5


def _ints(octets: bytes) -> int:
    """Return how many bytes are whole numbers, with a tag of one byte each."""
    ends = np.flatnonzero(np.frombuffer(octets, np.uint8) < _MORE)
    whole = len(ends) // 2
    return int(ends[2 * whole - 1]) + 1 if whole else 0


class _Strings:
    """Strings with a tag each, passed over at the speed of C where such lengths were met."""

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._known = re.compile(b"")

    def fits(self, octets: bytes) -> int:
        """Return how many bytes are whole strings."""
        position = 0
        while True:
            found = self._known.match(octets, position)
            position = found.end() if found is not None else position
            try:
                field = next(fields(octets, position))
            except (DecodeError, StopIteration):
                return position
            if field.number != _STRINGS or field.content is None:
                return position
            length = field.stop - field.content
            if length < _MORE and length not in self._lengths:
                self._lengths.append(length)
                each = (_STRING_TAG + bytes([one]) for one in self._lengths)
                known = zip(map(re.escape, each), self._lengths, strict=True)
                choice = b"|".join(head + b".{%d}" % length for head, length in known)
                self._known = re.compile(b"(?:" + choice + b")*+", re.DOTALL)
            else:
                position = field.stop
