"""The fields of a tensor that hold its data, and which of them a reference can stand for."""

from typing import Literal, NamedTuple

Stored = Literal["raw", "typed", "int32_data", "int64_data", "uint64_data"]
"""How referenced data is stored: as its dense bytes, in raw_data or a typed field, or as the
numbers of the field that is named."""

NUMBERS_THRESHOLD = 16 << 10
"""Numbers that have to be decoded take at least so many bytes to be referenced: below it they are
as soon had from the skeleton."""

DATA_TYPE, STRING_DATA, RAW_DATA = 2, 6, 9
FLOAT_DATA, DOUBLE_DATA = 4, 10
TYPED_DATA = (FLOAT_DATA, 5, STRING_DATA, 7, DOUBLE_DATA, 11)

STRING_TYPE = 8

# Packed typed fields that hold what raw_data would: field, element types, bytes of a number.
_SAME_AS_RAW = ((FLOAT_DATA, (1, 14), 4), (DOUBLE_DATA, (11, 15), 8))
# Typed fields whose numbers take as many bytes as they need.
NUMBERS: dict[int, Stored] = {5: "int32_data", 7: "int64_data", 11: "uint64_data"}


class Span(NamedTuple):
    """A field of a tensor: where it starts, where its content does, and where both stop."""

    number: int
    start: int
    content: int
    stop: int
    has_length: bool


def replaceable(spans: list[Span], element_type: int) -> Span | None:
    """Return the field of a tensor's data, if it is one whose bytes are those of raw_data."""
    raw = [span for span in spans if span.number == RAW_DATA and span.has_length]
    if raw:
        return raw[-1]  # the last one counts, as protobuf reads a field that is there twice
    typed = [span for span in spans if span.number in TYPED_DATA]
    if len(typed) == 1 and typed[0].has_length:
        size = typed[0].stop - typed[0].content
        for number, element_types, width in _SAME_AS_RAW:
            if typed[0].number == number and element_type in element_types and size % width == 0:
                return typed[0]
    return None


def numbers(spans: list[Span]) -> Span | None:
    """Return the field of a tensor's data, if it is one of many numbers that must be decoded."""
    held = [span for span in spans if span.number in (RAW_DATA, *TYPED_DATA)]
    if len(held) == 1 and held[0].number in NUMBERS and held[0].has_length:
        return held[0] if held[0].stop - held[0].content >= NUMBERS_THRESHOLD else None
    return None
