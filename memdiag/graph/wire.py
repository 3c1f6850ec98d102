"""A model's skeleton: its protobuf with each large tensor's bytes replaced by a reference to them.

The wire format is walked over a mapping of the file, so that neither time nor memory depends on
the size of the weights: each raw_data (and packed float_data or double_data, which holds the same
bytes) becomes external data, naming the file, an offset and a length; so do the numbers of other
packed fields, where that is asked for. All else, unknown fields included, is kept byte for byte.
See https://protobuf.dev/programming-guides/encoding/ for the format and onnx.proto for the field
numbers.

What the walk leaves alone is still correct, only larger: it skips messages too small to hold
a large tensor, and stops replacing after `MAX_FIELDS`. Pages of the mapping are given back behind
it, or a file of many small weights would be resident as a whole.
"""

import mmap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, NoReturn

from memdiag.errors import ModelError
from memdiag.graph.attribute_lists import shortened
from memdiag.graph.damage import Damage, check_format
from memdiag.graph.fields import (
    FIXED32,
    FIXED64,
    LENGTH,
    LONGEST_VARINT,
    VARINT,
    Buffer,
    varint,
)
from memdiag.graph.messages import CHILDREN, NAME, ONCE, Kind, noun_of
from memdiag.graph.reference_fields import (
    DATA_LOCATION,
    EXTERNAL,
    EXTERNAL_DATA,
    length_field,
    location_entry,
    reference,
)
from memdiag.graph.tensor_fields import (
    DATA_TYPE,
    NUMBERS,
    NUMBERS_THRESHOLD,
    RAW_DATA,
    STRING_TYPE,
    TYPED_DATA,
    Span,
    Stored,
    numbers,
    replaceable,
)

THIS_FILE = "\x00memdiag:this-file"
"""The location that a skeleton's references name: no file can be called so."""

THRESHOLD = 1024
"""Tensor data of at least so many bytes is referenced, the rest stays in the skeleton."""

MAX_DEPTH = 100
"""Messages nested deeper are refused: protobuf's own limit, in every language."""

MAX_FIELDS = 4_000_000
"""The walk stops after so many fields (some seconds), which no real model was seen to reach."""


_ATTRIBUTE_TYPE = b"\xa0\x01"  # the tag of AttributeProto.type, which writers put last of all
_PLAIN_TYPES = frozenset((1, 2, 3, 6, 7, 8))  # FLOAT, INT, STRING and lists of them: no tensors

_GRAPH = 7
_LONGEST_NAME = 200
_RELEASE = 8 << 20  # bytes between the places where pages are given back


class Skeleton(NamedTuple):
    """A skeleton: the protobuf bytes, and for each referenced offset how its data is stored."""

    proto: bytes
    references: Mapping[int, Stored]


def skeleton(
    data: Buffer,
    *,
    origin: str,
    location: str = THIS_FILE,
    threshold: int = THRESHOLD,
    numbers: bool = False,
) -> Skeleton:
    """Return the skeleton of the serialized ModelProto `data`, which `origin` names in errors.

    Tensors of at least `threshold` bytes become external data in `location`, whose offsets and
    lengths are those in `data`. Where `numbers` says so, so do numbers in typed fields, and long
    lists and strings in attributes are shortened, from `NUMBERS_THRESHOLD` on.

    Raises:
        ModelError: `data` is of another format, or no well-formed ModelProto as far as the walk
            went (what cannot hold a large tensor is left to the parser).
    """
    walk = walk_of(data, origin, location, threshold, numbers)
    try:
        replaced = walk.message("model", 0, len(data), 1)
    except Damage as damage:
        raise ModelError(f"{origin}: {damage.sentence()}.") from None
    return Skeleton(data[:] if replaced is None else replaced, walk.references)


def walk_of(
    data: Buffer,
    origin: str,
    location: str,
    threshold: int,
    numbers: bool,
    check: Callable[[int], None] = lambda nbytes: None,
) -> "Walk":
    """Return a walk over a serialized ModelProto, whose beginning is that of one."""
    check_format(data, origin=origin)
    return Walk(data, location, max(threshold, 1), numbers, check)


class Piece(NamedTuple):
    """A field of a skeleton: of its main graph if `in_graph` says so.

    The graph itself is there without its fields, which come after it. `read` returns the field,
    serialized, which takes `nbytes`.
    """

    in_graph: bool
    number: int
    nbytes: int
    read: Callable[[], bytes]


class Walk:
    """A walk over a serialized ModelProto; `references` are those that it made, by their offset.

    `check` is told how many bytes a message will take with references, and may raise.
    """

    def __init__(
        self,
        data: Buffer,
        location: str,
        threshold: int,
        numbers: bool,
        check: Callable[[int], None] = lambda nbytes: None,
    ) -> None:
        self.data = data
        self.size = len(data)
        self.location = location_entry(location)
        self.threshold = threshold
        self.numbers = numbers
        self.check = check
        self.fields_left = MAX_FIELDS
        self.released = 0
        self.references: dict[int, Stored] = {}

    def message(self, kind: Kind, start: int, end: int, depth: int, noun: str = "") -> bytes | None:
        """Return the message at `start` to `end` with references, or None if it has none to make.

        `noun` is what an error calls it.
        """
        if depth > MAX_DEPTH:
            raise Damage(f"it nests more than {MAX_DEPTH} messages in each other, inside")
        place = _Place()
        with self._naming(kind, noun, place):
            if kind == "tensor":
                return self._tensor(start, end, place)
            if kind == "attribute" and self._is_plain(start, end):
                if not self.numbers or end - start < NUMBERS_THRESHOLD:
                    return None
                return shortened(self.data, start, end, self._release)
            pieces: list[bytes] = []
            copied, held = start, 0
            for field in self._fields(kind, start, end, depth, place):
                if field.replaced is not None:
                    held += field.start - copied + len(field.replaced)
                    self.check(held)
                    pieces += (self.data[copied : field.start], field.replaced)
                    copied = field.stop
            if not pieces:
                return None
            self.check(held + end - copied)
            return b"".join((*pieces, self.data[copied:end]))

    def pieces(self) -> Iterator[Piece]:
        """Yield the fields of the model and of its graph, with references."""
        place = _Place()
        with self._naming("model", "", place):
            for field in self._fields("model", 0, self.size, 1, place, to_the_end=True):
                if field.number == _GRAPH and field.content is not None:
                    yield Piece(False, _GRAPH, 0, bytes)
                    yield from self._pieces_of_graph(field.content, field.stop)
                else:
                    yield self._piece(False, field)

    def _pieces_of_graph(self, start: int, end: int) -> Iterator[Piece]:
        place = _Place()
        with self._naming("graph", "", place):
            for field in self._fields("graph", start, end, 2, place, to_the_end=True):
                yield self._piece(True, field)

    def _piece(self, in_graph: bool, field: "_Field") -> Piece:
        nbytes = field.stop - field.start if field.replaced is None else len(field.replaced)
        return Piece(in_graph, field.number, nbytes, partial(self._bytes, field))

    def _bytes(self, field: "_Field") -> bytes:
        return self.data[field.start : field.stop] if field.replaced is None else field.replaced

    @contextmanager
    def _naming(self, kind: Kind, noun: str, place: "_Place") -> Iterator[None]:
        """Add to damage that is met what names the message it is in."""
        try:
            yield
        except Damage as damage:
            damage.in_graph = damage.in_graph or kind != "model" or place.graph_seen
            if not damage.subject:
                damage.subject = self._subject(kind, noun, place)
            raise

    def _fields(
        self,
        kind: Kind,
        start: int,
        end: int,
        depth: int,
        place: "_Place",
        *,
        to_the_end: bool = False,
    ) -> Iterator["_Field"]:
        """Yield the fields of a message; those `to_the_end` without the main graph replaced."""
        children, once = CHILDREN[kind], ONCE.get(kind, ())
        pos = start
        while pos < end and (self.fields_left > 0 or to_the_end):
            field_start = pos
            number, wire, pos, stop = self._field(kind, pos, end, depth)
            content = pos if wire == LENGTH else None
            replaced = None
            if wire == LENGTH and number in children:
                if number in once and number in place.seen:
                    raise Damage("it holds one tensor twice, inside")
                place.seen.add(number)
                place.graph_seen = place.graph_seen or (kind == "model" and number == _GRAPH)
                is_main = to_the_end and kind == "model" and number == _GRAPH
                if stop - pos >= self.threshold and self.fields_left > 0 and not is_main:
                    noun = noun_of(kind, number)
                    child = self.message(children[number], pos, stop, depth + 1, noun)
                    if child is not None:
                        replaced = length_field(number, child)
                    self._release(stop)
            elif wire == LENGTH and number == NAME.get(kind):
                place.name = pos, stop
            yield _Field(number, field_start, content, stop, replaced)
            pos = stop

    def _release(self, end: int) -> None:
        """Give back the pages that the walk has passed on its way to `end`, if they are many."""
        if end - self.released < _RELEASE or not isinstance(self.data, mmap.mmap):
            return
        if hasattr(self.data, "madvise"):
            start = self.released // mmap.PAGESIZE * mmap.PAGESIZE
            self.data.madvise(mmap.MADV_DONTNEED, start, end - start)
        self.released = end

    def _tensor(self, start: int, end: int, place: "_Place") -> bytes | None:
        """Return the TensorProto at `start` to `end` with its data as a reference, or None."""
        spans: list[Span] = []
        element_type = 0
        pos = start
        while pos < end:
            field_start = pos
            number, wire, pos, stop = self._field("tensor", pos, end, 0)
            if number == DATA_TYPE and wire == VARINT:
                element_type = self._varint(pos, stop)[0]
            elif number == DATA_LOCATION and wire == VARINT:
                if self._varint(pos, stop)[0] == EXTERNAL:
                    return None
            elif number == NAME["tensor"] and wire == LENGTH:
                place.name = pos, stop
            # Strings have a field each, and are not referenced.
            if element_type == STRING_TYPE or self.fields_left <= 0:
                return None
            spans.append(Span(number, field_start, pos, stop, wire == LENGTH))
            pos = stop
        data = replaceable(spans, element_type)
        if data is None and self.numbers:
            data = numbers(spans)
        if data is None or data.stop - data.content < self.threshold:
            return None
        dropped = (data.number, EXTERNAL_DATA, DATA_LOCATION)
        kept = [self.data[span.start : span.stop] for span in spans if span.number not in dropped]
        stored: Stored = "raw" if data.number == RAW_DATA else "typed"
        self.references[data.content] = NUMBERS.get(data.number, stored)
        return b"".join((*kept, reference(self.location, data.content, data.stop - data.content)))

    def _field(self, kind: Kind, pos: int, end: int, depth: int) -> tuple[int, int, int, int]:
        """Return number and wire type of the field at `pos`, start and stop of its content."""
        self.fields_left -= 1
        tag, pos = self._varint(pos, end)
        number, wire = tag >> 3, tag & 7
        if wire == LENGTH and number:
            length, pos = self._varint(pos, end)
            stop = pos + length
            if stop > end:
                self._overrun(kind, number, pos, stop, end, depth)
        elif wire == VARINT and number:
            stop = self._varint(pos, end)[1]
        elif wire in (FIXED32, FIXED64) and number:
            stop = pos + (4 if wire == FIXED32 else 8)
            if stop > end:
                self._ends(pos, end)
        else:  # field 0, a group (ONNX has none), or no wire type at all
            self._damaged(pos)
        return number, wire, pos, stop

    def _varint(self, pos: int, end: int) -> tuple[int, int]:
        """Return the number at `pos` and the position after it."""
        try:
            return varint(self.data, pos, end)
        except EOFError:
            self._ends(end, end)
        except ValueError:
            self._damaged(pos + LONGEST_VARINT)

    def _is_plain(self, start: int, end: int) -> bool:
        """Tell whether an attribute holds no tensor, by its last field: a type that has none."""
        tail = self.data[end - 3 : end]
        return end - start >= 3 and tail[:2] == _ATTRIBUTE_TYPE and tail[2] in _PLAIN_TYPES

    def _subject(self, kind: Kind, noun: str, place: "_Place") -> str:
        """Return what an error calls this message, or nothing if its parent has a better name."""
        if place.name is None or kind not in NAME:
            return f"an {noun}" if noun else ""
        start, stop = place.name
        text = self.data[start : min(stop, start + _LONGEST_NAME)].decode(errors="replace")
        return f"{noun or kind} {text!r}"

    def _overrun(
        self, kind: Kind, number: int, pos: int, stop: int, end: int, depth: int
    ) -> NoReturn:
        """Raise for a field that is longer than what holds it, naming the innermost it is in."""
        if end < self.size:
            self._damaged(pos)
        child = CHILDREN[kind].get(number)
        if child is not None:
            # The field that the file really ends in is further inside, and has the better name.
            self.message(child, pos, end, depth + 1, noun_of(kind, number))
        detail = ""
        if kind == "tensor" and number in (RAW_DATA, *TYPED_DATA):
            detail = f" ({stop - pos:,} bytes announced, {end - pos:,} there)"
        damage = Damage("the file ends inside", detail)
        damage.in_graph = child is not None
        raise damage

    def _ends(self, pos: int, end: int) -> NoReturn:
        if end < self.size:
            self._damaged(pos)
        raise Damage("the file ends inside")

    def _damaged(self, pos: int) -> NoReturn:
        raise Damage(f"it is damaged at byte {pos:,}, inside")


class _Field(NamedTuple):
    """A field as in `fields`, and what it is `replaced` by, tag and all, if it is."""

    number: int
    start: int
    content: int | None
    stop: int
    replaced: bytes | None


@dataclass(slots=True)
class _Place:
    """What the walk knows of the message it is in."""

    name: tuple[int, int] | None = None
    seen: set[int] = field(default_factory=set)
    graph_seen: bool = False
