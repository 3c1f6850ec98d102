"""Records to JSON and back, strictly: a file that does not match its schema is refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from memdiag.errors import RecordError
from memdiag.records.base import Record

R = TypeVar("R", bound=Record)


def encode(record: Record) -> bytes:
    """Return `record` as JSON, each field of the top level on a line of its own."""
    fields = msgspec.structs.asdict(record)
    lines = [
        b'"%s": %s' % (name.encode(), msgspec.json.encode(value)) for name, value in fields.items()
    ]
    return b"{\n" + b",\n".join(lines) + b"\n}\n"


def encode_readable(record: Record) -> bytes:
    """Return `record` as JSON that people read and version control compares: sorted, indented."""
    compact = msgspec.json.encode(record, order="sorted")
    return msgspec.json.format(compact, indent=2) + b"\n"


def decode(data: bytes, kind: type[R], *, origin: str = "record") -> R:
    """Return the record of type `kind` that `data` holds; `origin` names it in errors.

    Raises:
        RecordError: `data` is not JSON, or does not match `kind` (the message says where).
    """
    try:
        return msgspec.json.decode(data, type=kind, strict=True)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"{origin}: not a valid {kind.__name__.lower()}: {error}.") from error


def load(path: Path, kind: type[R]) -> R:
    """Return the record of type `kind` saved at `path`.

    Raises:
        RecordError: the file cannot be read or does not match `kind`.
    """
    return decode(_read(path), kind, origin=str(path))


def load_any(path: Path, kinds: Mapping[str, type[R]]) -> R:
    """Return the record saved at `path`, of that one of `kinds`, by schema, which it says it is.

    Raises:
        RecordError: the file cannot be read, is of no such schema, or does not match it.
    """
    data = _read(path)
    try:
        schema = msgspec.json.decode(data, type=_Head).schema
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: not a saved record: {error}.") from error
    if schema not in kinds:
        raise RecordError(f"{path}: its schema is {schema!r}, not one of {', '.join(kinds)}.")
    return decode(data, kinds[schema], origin=str(path))


class _Head(msgspec.Struct):
    """The field by which records tell what they are; the others are not looked at."""

    schema: str


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror}).") from error


def json_schema(kind: type[Record]) -> str:
    """Return the JSON Schema of `kind` as text, keys sorted, ending in a newline."""
    schema: dict[str, Any] = msgspec.json.schema(kind)
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"
