"""Codec of records: strict JSON. A file that does not match its schema is refused."""

import json
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from memdiag.errors import RecordError
from memdiag.paths import path_text
from memdiag.records.base import Record
from memdiag.regular_files import read_regular

R = TypeVar("R", bound=Record)

MAX_TEXT = 1 << 20
"""Characters of a text in a record: names and messages are far shorter."""

MAX_SHOWN_SCHEMA = 80
"""Characters of an unknown schema that an error quotes."""

SAVE_AGAIN_SENTENCE = "Save it again with this version of memdiag."
_ANY_RECORD = "Give a JSON file that memdiag saved, such as profile.json or run.json."
_NEVER_NEGATIVE = re.compile(
    r".*_s|.*_count|(peak_|baseline_|steady_)?rss_bytes|disk_bytes|external_bytes|weight_bytes"
    r"|kept_bytes|(peak|steady)_spread_bytes|pairs|sessions"
)
"""Names of fields with sizes, durations and counts. Other fields may be differences, which can be
negative."""
_CAPITAL_LETTER = re.compile("[A-Z]")
# U+007F to U+009F; the Arabic letter mark; marks, separators and overrides from U+200E; isolates.
_TERMINAL_CONTROLS = re.compile(
    rb"\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]"
)
_decoders_lock = threading.Lock()
_decoder_by_record: dict[type[Record], msgspec.json.Decoder[Any]] = {}

MAX_RECORD_BYTES = 256 << 20
"""Bytes of a saved record: the largest of real models have a few megabytes."""

MAX_NUMBER = 1 << 62
"""Maximum of numbers in a record: sizes, addresses and times are far smaller."""


def escaped_record(record: R) -> R:
    r"""Return `record` with lone surrogates escaped, such as ``\udcff``.

    In Python, file names that are not UTF-8 contain them; JSON and reports cannot.
    """
    try:
        msgspec.json.encode(record)
    except UnicodeEncodeError:
        record_decoder(type(record))
        return msgspec.convert(_escaped_value(msgspec.to_builtins(record)), type(record))
    return record


def _escaped_value(value: Any) -> Any:
    if isinstance(value, str):
        return path_text(value)
    if isinstance(value, dict):
        return {_escaped_value(key): _escaped_value(item) for key, item in value.items()}
    return [_escaped_value(item) for item in value] if isinstance(value, list | tuple) else value


def encode(record: Record) -> bytes:
    """Return `record` as JSON, each field of the top level on a line of its own."""
    fields = msgspec.structs.asdict(escaped_record(record))
    lines = [
        b'"%s": %s' % (name.encode(), msgspec.json.encode(value)) for name, value in fields.items()
    ]
    return _printable_json(b"{\n" + b",\n".join(lines) + b"\n}\n")


def encode_readable(record: Record) -> bytes:
    """Return `record` as sorted, indented JSON, for people and version control."""
    compact = msgspec.json.encode(escaped_record(record), order="sorted")
    return _printable_json(msgspec.json.format(compact, indent=2) + b"\n")


def _printable_json(json: bytes) -> bytes:
    r"""Return `json` with characters escaped that a terminal would obey (``\u202e``).

    These are the control characters that JSON allows, and the characters that reorder text. They
    occur only in texts.
    """

    def escape(match: re.Match[bytes]) -> bytes:
        return b"\\u%04x" % ord(match[0].decode())

    return _TERMINAL_CONTROLS.sub(escape, json)


def record_decoder(kind: type[R]) -> msgspec.json.Decoder[R]:
    """Return the decoder of `kind`. Threads that may decode the same types at once must use it.

    If two threads decode a type for the first time at once, or types that share a type, msgspec
    (up to 0.22 at least) crashes with SIGSEGV: one thread uses what the other has half prepared.
    """
    with _decoders_lock:
        decoder = _decoder_by_record.get(kind)
        if decoder is None:
            decoder = _decoder_by_record[kind] = msgspec.json.Decoder(kind)
    return decoder


def decode(data: bytes, kind: type[R], *, origin: str = "record") -> R:
    """Return the record of type `kind` in the JSON `data`; `origin` is the subject of errors.

    Raises:
        RecordError: `data` is not JSON, or does not match `kind`; the message has the position.
    """
    try:
        _check_values(msgspec.json.decode(data))
        return record_decoder(kind).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        name = _CAPITAL_LETTER.sub(r" \g<0>", kind.__name__).strip().lower()
        raise RecordError(
            f"{origin}: not a valid {name}: {error}. {SAVE_AGAIN_SENTENCE}"
        ) from error


def _check_values(value: Any) -> None:
    """Check that no number in decoded JSON is too large or negative for a report.

    Raises:
        msgspec.DecodeError: a number is too large or negative, or a text is too long.
    """
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending.extend(value.values())
            pending.extend(value)  # the names, which are texts too
            for name, item in value.items():
                is_negative = isinstance(item, int | float) and -MAX_NUMBER <= item < 0
                if is_negative and _NEVER_NEGATIVE.fullmatch(name):
                    raise msgspec.DecodeError(f"{name} is negative")
        elif isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, int | float) and not -MAX_NUMBER <= value <= MAX_NUMBER:
            # A whole number of more than 308 digits has no float.
            text = f"{value:.3g}" if -1e308 < value < 1e308 else "above 1e+308"
            raise msgspec.DecodeError(f"the number {text} in it is too large")
        elif isinstance(value, str) and len(value) > MAX_TEXT:
            raise msgspec.DecodeError(f"a text in it is longer than {MAX_TEXT:,} characters")


def load(path: Path, kind: type[R], *, otherwise: str = "") -> R:
    """Return the record of type `kind` saved at `path`, or in the folder `path`.

    Raises:
        RecordError: the file cannot be read or does not match `kind`, or the folder has no such
            record, or several. For another kind of record the message ends with the sentence
            `otherwise`.
    """
    if path.is_dir():
        path = _record_path(path, {_schema_of(kind): kind})
    data = _read_record_file(path)
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        schema = msgspec.json.decode(data, type=_SchemaField).schema
        if schema != (expected := _schema_of(kind)):
            schema_text = repr(schema[:MAX_SHOWN_SCHEMA])
            raise RecordError(
                f"{path}: its schema is {schema_text}, not {expected!r}."
                f" {otherwise or SAVE_AGAIN_SENTENCE}"
            )
    return decode(data, kind, origin=str(path))


def _schema_of(kind: type[Record]) -> str:
    (schema,) = get_args(get_type_hints(kind)["schema"])
    return str(schema)


def load_any_record(path: Path, kinds: Mapping[str, type[R]]) -> R:
    """Return the record saved at `path`, one of `kinds`, a type for each schema.

    `path` may also be a folder with one such record.

    Raises:
        RecordError: the file cannot be read, has another schema, or does not match its schema; or
            the folder has no record, or several.
    """
    if path.is_dir():
        path = _record_path(path, kinds)
    data = _read_record_file(path)
    try:
        schema = msgspec.json.decode(data, type=_SchemaField).schema
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if data.lstrip().startswith(b"{"):
            raise RecordError(
                f"{path}: not a saved record: {error}. {SAVE_AGAIN_SENTENCE}"
            ) from error
        neighbors = [record.name for record in _record_paths(path.parent, kinds)]
        action = f"Next to it: {', '.join(neighbors)}." if neighbors else _ANY_RECORD
        raise RecordError(f"{path}: not a saved record, which is JSON. {action}") from error
    if schema not in kinds:
        kind, _, _ = schema.partition("/")
        if versions := [name for name in kinds if name.startswith(f"{kind}/")]:
            raise RecordError(
                f"{path}: its schema is {schema[:MAX_SHOWN_SCHEMA]!r}, not {versions[0]!r}."
                f" {SAVE_AGAIN_SENTENCE}"
            )
        names = ", ".join(name.removeprefix("memdiag.").partition("/")[0] for name in kinds)
        raise RecordError(
            f"{path}: its schema is {schema[:MAX_SHOWN_SCHEMA]!r}, which cannot be read here. Give"
            f" a record of one of these kinds: {names}."
        )
    return decode(data, kinds[schema], origin=str(path))


def _record_path(folder: Path, kinds: Mapping[str, type[R]]) -> Path:
    """Return the file of the record in `folder`.

    Raises:
        RecordError: there is none, or there are several.
    """
    paths = _record_paths(folder, kinds)
    if not paths:
        raise RecordError(f"{folder}: no saved record in this folder. {_ANY_RECORD}")
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise RecordError(f"{folder}: several records in this folder: {names}. Name one of them.")
    return paths[0]


def _record_paths(folder: Path, kinds: Mapping[str, type[R]]) -> list[Path]:
    """Return the files in `folder` with a record of one of `kinds`, sorted by name."""
    paths = []
    for path in sorted(folder.glob("*.json")):
        with suppress(RecordError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if msgspec.json.decode(_read_record_file(path), type=_SchemaField).schema in kinds:
                paths.append(path)
    return paths


class _SchemaField(msgspec.Struct):
    """The field of a saved record that names its schema; other fields are ignored."""

    schema: str


def _read_record_file(path: Path) -> bytes:
    try:
        return read_regular(path, MAX_RECORD_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RecordError(f"{path}: cannot be read ({reason}). Check the path.") from error


def json_schema(kind: type[Record]) -> str:
    """Return the JSON Schema of `kind` as text, keys sorted, ending in a newline."""
    schema: dict[str, Any] = msgspec.json.schema(kind)
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"
