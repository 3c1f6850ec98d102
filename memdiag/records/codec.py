"""Records to JSON and back, strictly: a file that does not match its schema is refused."""

import json
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
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror}).") from error
    return decode(data, kind, origin=str(path))


def json_schema(kind: type[Record]) -> str:
    """Return the JSON Schema of `kind` as text, keys sorted, ending in a newline."""
    schema: dict[str, Any] = msgspec.json.schema(kind)
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"
