"""The skeleton of a model file: its protobuf with large tensor data replaced by references.

The wire format is walked over a mapping of the file, so that neither time nor memory depends on
the size of the weights. Each large raw_data (and packed float_data or double_data, which stores the
same bytes) becomes external data that names the file, an offset and a length. Everything else,
unknown fields included, is kept byte for byte. See
https://protobuf.dev/programming-guides/encoding/ and onnx.proto for the field numbers.
"""

import mmap
from collections.abc import Iterator, Mapping
from typing import Final, Literal, NamedTuple, NoReturn

from memdiag.errors import ModelError
from memdiag.units import format_size

THIS_FILE = "\x00memdiag:this-file"
"""The location that a skeleton's references name: no file can have that name."""

MIN_REFERENCED_BYTES = 1024
"""Tensor data of fewer bytes stays in the skeleton."""

MIN_NUMBERS_BYTES = 16 << 10
"""Numbers that have to be decoded stay in the skeleton if they have fewer bytes."""

MIN_LIST_BYTES = 64 << 10
"""Lists and strings in attributes stay in the skeleton if they have fewer bytes."""

MAX_SKELETON_BYTES = 256 << 20
"""A model whose graph takes more without its weights is refused; real ones take a few megabytes."""

MAX_MESSAGES = 4_000_000
"""A model with more nodes, attributes and tensors is refused: reading it would take seconds."""

MAX_MESSAGE_DEPTH = 100
"""Messages nested deeper are refused: protobuf's own limit, in every language."""

NOT_ONNX = "not an ONNX model. Name the .onnx file that an exporter wrote"

ModelBuffer = bytes | mmap.mmap

ReferenceKind = Literal[
    "raw", "typed", "int32_data", "int64_data", "uint64_data", "attribute", "list"
]
"""How referenced data is stored: as dense bytes, in raw_data or a typed field, as varints in the
field named, as a whole attribute, or as the numbers of an attribute (in ORT format)."""

_MessageKind = Literal[
    "model", "graph", "node", "attribute", "tensor", "sparse tensor", "function", "training info"
]

# The fields that may contain tensors, by message and field number.
_CHILD_MESSAGE_FIELDS: dict[_MessageKind, dict[int, _MessageKind]] = {
    "model": {7: "graph", 20: "training info", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "node": {5: "attribute"},
    "attribute": {
        **{5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
        **{22: "sparse tensor", 23: "sparse tensor"},
    },
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "function": {7: "node", 11: "attribute"},
    "training info": {1: "graph", 2: "graph"},
}
# Protobuf merges a singular field that occurs twice; two references cannot be merged.
_SINGULAR_FIELDS: dict[_MessageKind, tuple[int, ...]] = {
    "attribute": (5, 22),
    "sparse tensor": (1, 2),
}
_MODEL_GRAPH_FIELD = 7

_VARINT_WIRE, _FIXED64_WIRE, _LENGTH_WIRE, _FIXED32_WIRE = 0, 1, 2, 5
MAX_VARINT_BYTES = 10
_MAX_TENSOR_FIELDS = 1000
"""A tensor with more fields has a field for each number, and stays as it is."""

_SKELETON_RELEASE_BYTES = 8 << 20

# TensorProto.
_DATA_TYPE, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION, _EXTERNAL_LOCATION = 2, 9, 13, 14, 1
_FLOAT_DATA, _INT32_DATA, _STRING_DATA, _INT64_DATA, _DOUBLE_DATA, _UINT64_DATA = 4, 5, 6, 7, 10, 11
_TYPED_DATA = (_FLOAT_DATA, _INT32_DATA, _STRING_DATA, _INT64_DATA, _DOUBLE_DATA, _UINT64_DATA)
_STRING_TYPE = 8
# Packed typed fields with the bytes of raw_data, for these element types.
_SAME_AS_RAW = {_FLOAT_DATA: (1, 14), _DOUBLE_DATA: (11, 15)}
_VARINT_DATA_FIELDS: dict[int, ReferenceKind] = {
    _INT32_DATA: "int32_data",
    _INT64_DATA: "int64_data",
    _UINT64_DATA: "uint64_data",
}

_ATTRIBUTE_NAME_FIELD, _ATTRIBUTE_DOC_FIELD = 1, 13
_ATTRIBUTE_MARK = "\x00memdiag:attribute:"
# AttributeProto.type, which writers put last, and its values for plain numbers and strings.
_ATTRIBUTE_TYPE_TAG: Final = b"\xa0\x01"
_PLAIN_TYPES = frozenset((1, 2, 3, 6, 7, 8))

_GIT_LFS = b"version https://git-lfs"


class ModelSkeleton(NamedTuple):
    """A model without its large tensor data.

    Attributes:
        proto: the serialized ModelProto with references in place of the data.
        references: how the data at each referenced offset of the file is stored.
    """

    proto: bytes
    references: Mapping[int, ReferenceKind]


def model_skeleton(
    data: ModelBuffer, *, origin: str, location: str = THIS_FILE, compact: bool = False
) -> ModelSkeleton:
    """Return the skeleton of the serialized ModelProto `data`.

    Args:
        data: the model.
        origin: the name of the model in errors.
        location: the name of the file in references.
        compact: also replace integers in typed fields, and attributes with long lists or strings,
            except tensors of Constant nodes. Such an attribute keeps name and type, and
            `attribute_range` returns its range in the file.

    Raises:
        ModelError: `data` is of another format, damaged, or larger than any real model. Damage in
            messages that are too small to contain a large tensor is left to the parser.
    """
    if not len(data):
        raise ModelError(f"{origin}: the file is empty. Download or export it again.")
    if data[: len(_GIT_LFS)] == _GIT_LFS:
        raise ModelError(
            f"{origin}: a Git LFS pointer instead of the model. Fetch it with 'git lfs pull'."
        )
    walk = _SkeletonBuilder(data, origin, location, compact)
    replaced = walk.message("model", 0, len(data), 1)
    if replaced is None:
        walk.check_size(len(data))
    return ModelSkeleton(data[:] if replaced is None else replaced, walk.references)


def attribute_range(documentation: str) -> tuple[int, int] | None:
    """Return the range in the file of an attribute that a compact skeleton lacks.

    `documentation` is the doc_string of the attribute in the skeleton. Return None if the skeleton
    contains the whole attribute.
    """
    if not documentation.startswith(_ATTRIBUTE_MARK):
        return None
    start, _, end = documentation.removeprefix(_ATTRIBUTE_MARK).partition(":")
    return (int(start), int(end)) if start.isdecimal() and end.isdecimal() else None


def attribute_mark(start: int, end: int) -> str:
    """Return the doc_string that `attribute_range` understands."""
    return f"{_ATTRIBUTE_MARK}{start}:{end}"


class _WireField(NamedTuple):
    """One field of a message.

    Attributes:
        number, wire: the field number and the wire type.
        start: the offset of the tag.
        content, stop: the range of the value.
    """

    number: int
    wire: int
    start: int
    content: int
    stop: int


class _SkeletonBuilder:
    """Reader of a serialized ModelProto that replaces large data by references.

    Attributes:
        data: the bytes of the ModelProto.
        references: the references made so far, as in `ModelSkeleton`.
    """

    def __init__(self, data: ModelBuffer, origin: str, location: str, compact: bool) -> None:
        self.data = data
        self.compact = compact
        self.references: dict[int, ReferenceKind] = {}
        self._origin = origin
        self._location = _external_data_entry(b"location", location.encode())
        self._has_graph = False
        self._messages = 0
        self._released = 0

    def message(self, kind: _MessageKind, start: int, end: int, depth: int) -> bytes | None:
        """Return the message from `start` to `end` with references; None if it needs none."""
        if depth > MAX_MESSAGE_DEPTH:
            self._raise_refused(
                f"more than {MAX_MESSAGE_DEPTH} messages are nested. Download or export it again."
            )
        if kind == "tensor":
            return self._tensor_with_reference(start, end)
        if kind == "attribute" and self._is_plain(start, end):
            is_large = self.compact and end - start >= MIN_LIST_BYTES
            return self._attribute_without_list(start, end) if is_large else None
        children, singular = _CHILD_MESSAGE_FIELDS[kind], _SINGULAR_FIELDS.get(kind, ())
        seen_numbers: set[int] = set()
        parts: list[bytes] = []
        copied, kept_bytes = start, 0
        for field in self._message_fields(kind, start, end):
            number = field.number
            if field.wire != _LENGTH_WIRE or number not in children:
                continue
            if number in singular and number in seen_numbers:
                self._raise_damaged(field.start)
            seen_numbers.add(number)
            self._has_graph |= kind == "model" and number == _MODEL_GRAPH_FIELD
            self._count_message()
            if field.stop - field.content < MIN_REFERENCED_BYTES:
                continue
            replaced = self.message(children[number], field.content, field.stop, depth + 1)
            self._release_pages(field.stop)
            if replaced is not None:
                kept_bytes += field.start - copied + len(replaced)
                self.check_size(kept_bytes)
                parts += (self.data[copied : field.start], _length_field(number, replaced))
                copied = field.stop
        if not parts:
            return None
        self.check_size(kept_bytes + end - copied)
        return b"".join((*parts, self.data[copied:end]))

    def check_size(self, nbytes: int) -> None:
        """Raise an error if `nbytes` exceeds the maximum size of a parsed graph without weights."""
        if nbytes > MAX_SKELETON_BYTES:
            size = format_size(MAX_SKELETON_BYTES)
            self._raise_refused(
                f"its graph takes more than {size} without the weights. memdiag does not analyze"
                " models of that size."
            )

    def _count_message(self) -> None:
        self._messages += 1
        if self._messages > MAX_MESSAGES:
            self._raise_refused(
                f"it has more than {MAX_MESSAGES:,} nodes, attributes and tensors. memdiag does not"
                " analyze models of that size."
            )

    def _release_pages(self, end: int) -> None:
        """Release the mapped pages before `end`, which are not needed any more."""
        if end - self._released >= _SKELETON_RELEASE_BYTES and isinstance(self.data, mmap.mmap):
            begin = self._released // mmap.PAGESIZE * mmap.PAGESIZE
            self.data.madvise(mmap.MADV_DONTNEED, begin, end - begin)
            self._released = end

    def _tensor_with_reference(self, start: int, end: int) -> bytes | None:
        """Return the TensorProto from `start` to `end` with a reference for its data; None if
        small."""
        fields: list[_WireField] = []
        element_type = 0
        for field in self._message_fields("tensor", start, end):
            if field.wire == _VARINT_WIRE and field.number == _DATA_TYPE:
                element_type = self._read_varint(field.content, field.stop)[0]
            elif (
                field.wire == _VARINT_WIRE
                and field.number == _DATA_LOCATION
                and self._read_varint(field.content, field.stop)[0] == _EXTERNAL_LOCATION
            ):
                return None
            if element_type == _STRING_TYPE or len(fields) > _MAX_TENSOR_FIELDS:
                return None
            fields.append(field)
        data_field = _replaceable_data_field(fields, element_type, self.compact)
        if data_field is None:
            return None
        data, stored = data_field
        dropped_numbers = (data.number, _EXTERNAL_DATA, _DATA_LOCATION)
        kept_fields = [part for part in fields if part.number not in dropped_numbers]
        parts = [self.data[part.start : part.stop] for part in kept_fields]
        self.references[data.content] = stored
        return b"".join(
            (
                *parts,
                self._location,
                _external_data_entry(b"offset", str(data.content).encode()),
                _external_data_entry(b"length", str(data.stop - data.content).encode()),
                bytes([_DATA_LOCATION << 3, _EXTERNAL_LOCATION]),
            )
        )

    def _message_fields(self, kind: _MessageKind, start: int, end: int) -> Iterator[_WireField]:
        data, pos = self.data, start
        while pos < end:
            begin = pos
            tag, pos = (data[pos], pos + 1) if data[pos] < 0x80 else self._read_varint(pos, end)
            number, wire = tag >> 3, tag & 7
            if wire == _LENGTH_WIRE and number:
                length, pos = self._read_varint(pos, end)
                stop = pos + length
                if (
                    stop > end
                    and kind == "model"
                    and (self._has_graph or number == _MODEL_GRAPH_FIELD)
                ):
                    missing = format_size(stop - end)
                    self._raise_refused(
                        f"incomplete: it ends at least {missing} too early. Download or export it"
                        " again."
                    )
            elif wire == _VARINT_WIRE and number:
                stop = pos + 1 if pos < end and data[pos] < 0x80 else self._read_varint(pos, end)[1]
            elif wire in (_FIXED32_WIRE, _FIXED64_WIRE) and number:
                stop = pos + (4 if wire == _FIXED32_WIRE else 8)
            else:  # field 0, a group (ONNX has none), or no wire type at all
                self._raise_damaged(pos)
            if stop > end:
                self._raise_damaged(pos)
            yield _WireField(number, wire, begin, pos, stop)
            pos = stop

    def _read_varint(self, pos: int, end: int) -> tuple[int, int]:
        """Return the varint at `pos` and the position after it."""
        data, value = self.data, 0
        if pos < end and data[pos] < 0x80:
            return data[pos], pos + 1
        for index in range(MAX_VARINT_BYTES):
            if pos + index >= end:
                self._raise_damaged(end)
            byte = data[pos + index]
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                return value, pos + index + 1
        self._raise_damaged(pos + MAX_VARINT_BYTES)

    def _is_plain(self, start: int, end: int) -> bool:
        """Return whether an attribute ends with a type field that means a number, string or
        list."""
        tail = self.data[end - 3 : end]
        return end - start >= 3 and tail[:2] == _ATTRIBUTE_TYPE_TAG and tail[2] in _PLAIN_TYPES

    def _attribute_without_list(self, start: int, end: int) -> bytes | None:
        """Return a plain attribute with a reference in place of its list or string.

        Return None if the name is not its first field, or if it is an attribute of a Constant.
        """
        name = next(self._message_fields("attribute", start, end))
        text = self.data[name.content : name.stop]
        if name.number != _ATTRIBUTE_NAME_FIELD or text.startswith(b"value"):
            return None
        self.references[start] = "attribute"
        mark = attribute_mark(start, end).encode()
        documentation = _length_field(_ATTRIBUTE_DOC_FIELD, mark)
        return b"".join(
            (self.data[name.start : name.stop], documentation, self.data[end - 3 : end])
        )

    def _raise_damaged(self, pos: int) -> NoReturn:
        """Raise the error for a field at `pos` that cannot be read."""
        if not self._has_graph:
            raise ModelError(f"{self._origin}: {NOT_ONNX}.")
        self._raise_refused(f"damaged at byte {pos:,}. Download or export it again.")

    def _raise_refused(self, problem: str) -> NoReturn:
        raise ModelError(f"{self._origin}: {problem}")


def _replaceable_data_field(
    fields: list[_WireField], element_type: int, compact: bool
) -> tuple[_WireField, ReferenceKind] | None:
    """Return the data field of a tensor that a reference can replace with its storage; else
    None."""
    data = [part for part in fields if part.number in (_RAW_DATA, *_TYPED_DATA)]
    raw = [part for part in data if part.number == _RAW_DATA and part.wire == _LENGTH_WIRE]
    if raw:
        last = raw[-1]  # protobuf keeps the last one
        return (last, "raw") if last.stop - last.content >= MIN_REFERENCED_BYTES else None
    if len(data) != 1 or data[0].wire != _LENGTH_WIRE:
        return None
    field, size = data[0], data[0].stop - data[0].content
    if element_type in _SAME_AS_RAW.get(field.number, ()):
        width = 4 if field.number == _FLOAT_DATA else 8
        return (field, "typed") if size >= MIN_REFERENCED_BYTES and size % width == 0 else None
    if compact and field.number in _VARINT_DATA_FIELDS and size >= MIN_NUMBERS_BYTES:
        return field, _VARINT_DATA_FIELDS[field.number]
    return None


def _external_data_entry(key: bytes, value: bytes) -> bytes:
    """Return a serialized entry of a TensorProto's external_data."""
    return _length_field(_EXTERNAL_DATA, _length_field(1, key) + _length_field(2, value))


def _length_field(number: int, content: bytes) -> bytes:
    if number < 16 and len(content) < 0x80:
        return bytes((number << 3 | _LENGTH_WIRE, len(content))) + content
    return _encode_varint(number << 3 | _LENGTH_WIRE) + _encode_varint(len(content)) + content


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
