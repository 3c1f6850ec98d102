"""Writing a draft: its weights stay where they lie, move to external data, or go into the file.

Weights are copied from file to file and are never held in memory. Files are written beside their
place and renamed, so that an error leaves what was there.

Tensors in attributes of other nodes than Constant, and sparse ones, are embedded in any case, by
way of memory.
"""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from google.protobuf.message import EncodeError
from onnx import ModelProto, TensorProto

from memdiag.errors import ReportError, UsageError
from memdiag.remedies.copying import copy_range, write
from memdiag.remedies.draft import Draft, Storage, placed_tensors, tensors
from memdiag.remedies.wire_pieces import Piece, data_length, length, pieces
from memdiag.runner.temporary import own_prefix

ALIGNMENT = 4096
"""Of weights in external data: the page, by which files are mapped."""

IN_PLACE_ALIGNMENT = 64
"""Of weights that stay where they lie: what onnxruntime gives its own tensors, on which kernels may
rely."""

LARGEST_EMBEDDED = 64 << 20
"""Models whose weights have more bytes than this are better off with external data."""

_LARGEST_PROTO = (1 << 31) - 1
_SMALLEST_MOVED = 1 << 16
"""A weight that a rewrite made, and of so many bytes, becomes external data as well."""


class _Source(NamedTuple):
    path: Path
    offset: int
    length: int


def save(draft: Draft, path: Path, storage: Storage) -> tuple[Path, ...]:
    """Write `draft` to `path` and return the files written, the model first.

    Raises:
        UsageError: `path` is one of the original's own files, or the weights cannot be referenced
            from its folder, or are too many to embed.
        ReportError: a file cannot be written.
        ModelError: the draft cannot be written as a model.
    """
    data = path.with_name(f"{path.name}.data")
    if path.resolve() in draft.file.files:
        raise UsageError(f"{path}: this is the original's own file. Choose another output.")
    if storage == "external" and data.resolve() in draft.file.files:
        raise UsageError(
            f"{data}: this file contains the original's weights. Choose another output."
        )
    for target in (path, data):
        if target.is_dir():
            raise UsageError(f"{target}: this is a folder. Choose another output.")
    proto = draft.proto()
    beside = path.with_name(f".{own_prefix()}{secrets.token_hex(8)}")
    data_beside = beside.with_name(f"{beside.name}.data")
    moved = False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for tensor, stays_inside in placed_tensors(proto):
            if stays_inside:
                _embed(tensor, draft)
        if storage == "in_place":
            _refer(proto, draft, path)
        elif storage == "external":
            moved = _move(proto, draft, data_beside, data.name)
        _write_model(proto, draft, path, beside, referred=storage != "embedded")
        if moved:
            os.replace(data_beside, data)
        os.replace(beside, path)
    except OSError as error:
        raise ReportError(
            f"{path}: cannot be written ({error.strerror}); free space or choose another output."
        ) from error
    finally:
        for left in (beside, data_beside):
            with contextlib.suppress(OSError):
                left.unlink(missing_ok=True)
    return (path, data) if moved else (path,)


def weight_bytes(draft: Draft) -> int:
    """Return the bytes of the distinct ranges of files that `draft` refers to."""
    sources = {_source(tensor, draft) for tensor in _external(draft.proto())}
    return sum(source.length for source in sources)


def can_stay(draft: Draft, path: Path) -> bool:
    """Return whether a model at `path` can refer to the weights where they lie.

    They have to lie in its own folder or below. Those that cannot be referred to (`_stays`) go into
    the new file, so they must be few.
    """
    folder = path.resolve().parent
    sources = _movable(draft.proto(), draft)
    near = all(one.path.is_relative_to(folder) for one in sources)
    return near and _bytes_inside(sources, draft) <= LARGEST_EMBEDDED


def aligned(draft: Draft, alignment: int) -> bool:
    """Return whether all weights that could be moved lie at multiples of `alignment`."""
    return all(one.offset % alignment == 0 for one in _movable(draft.proto(), draft))


def _stays(source: _Source, draft: Draft) -> bool:
    """Return whether `source` can be referred to as it lies.

    Data that the original refers to can: a kernel meets it where it did. In the original's own file
    nothing is aligned but by chance.
    """
    is_external = source.path != draft.file.path.resolve()
    return is_external or source.offset % IN_PLACE_ALIGNMENT == 0


def _bytes_inside(sources: Sequence[_Source], draft: Draft) -> int:
    """Return the bytes of those `sources` that cannot be referred to."""
    return sum(one.length for one in sources if not _stays(one, draft))


def _movable(proto: ModelProto, draft: Draft) -> list[_Source]:
    sources = [
        _source(tensor, draft)
        for tensor, stays_inside in placed_tensors(proto)
        if tensor.data_location == TensorProto.EXTERNAL and not stays_inside
    ]
    return [source for source in sources if source.length]


def _external(proto: ModelProto) -> Iterator[TensorProto]:
    for tensor in tensors(proto):
        if tensor.data_location == TensorProto.EXTERNAL:
            yield tensor


def _source(tensor: TensorProto, draft: Draft) -> _Source:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries["location"]
    own = draft.file.path.resolve()
    path = own if location == own.name else (draft.file.path.parent / location).resolve()
    return _Source(path, int(entries.get("offset") or 0), data_length(tensor))


def _refer(proto: ModelProto, draft: Draft, path: Path) -> None:
    if _bytes_inside(_movable(proto, draft), draft) > LARGEST_EMBEDDED:
        raise UsageError(
            f"{path}: weights inside {draft.file.path} are not aligned and too large to be copied"
            " into another model; let them be external data."
        )
    folder = path.resolve().parent
    for tensor in _external(proto):
        source = _source(tensor, draft)
        if not source.length or not _stays(source, draft):
            _embed(tensor, draft)
        elif not source.path.is_relative_to(folder):
            raise UsageError(
                f"{path}: weights can only be referenced from their own folder,"
                f" {source.path.parent}; write the output there, or let them be copied."
            )
        else:
            location = source.path.relative_to(folder).as_posix()
            _set(tensor, location, source.offset, source.length)


def _move(proto: ModelProto, draft: Draft, target: Path, name: str) -> bool:
    """Copy what is referenced to `target`, which will be called `name`; tell whether any was."""
    placed: dict[_Source, int] = {}
    with target.open("xb", buffering=0) as out:
        for tensor, stays_inside in placed_tensors(proto):
            if tensor.data_location == TensorProto.EXTERNAL:
                source = _source(tensor, draft)
                if not source.length:
                    _embed(tensor, draft)
                    continue
                if source not in placed:
                    placed[source] = _aligned(out)
                    _append(source, out)
                _set(tensor, name, placed[source], source.length)
            elif len(tensor.raw_data) >= _SMALLEST_MOVED and not stays_inside:
                offset = _aligned(out)
                write(out, tensor.raw_data)
                _set(tensor, name, offset, len(tensor.raw_data))
                tensor.data_location = TensorProto.EXTERNAL
                tensor.ClearField("raw_data")
        return out.tell() > 0


def _aligned(out: FileIO) -> int:
    """Go to the next aligned position and return it."""
    return out.seek(-(-out.tell() // ALIGNMENT) * ALIGNMENT)


def _append(source: _Source, out: FileIO) -> None:
    copy_range(source.path, source.offset, source.length, out)


def _embed(tensor: TensorProto, draft: Draft) -> None:
    """Read the bytes of `tensor` into it, if they are elsewhere."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return
    source = _source(tensor, draft)
    data = b""
    if source.length:
        with source.path.open("rb") as file:
            file.seek(source.offset)
            data = file.read(source.length)
    if len(data) != source.length:
        raise OSError(errno.EIO, "a file of the model became shorter")
    tensor.raw_data = data
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


def _set(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def _write_model(
    proto: ModelProto, draft: Draft, path: Path, beside: Path, *, referred: bool
) -> None:
    """Write `proto`, which will be called `path`, to `beside`: weights inside unless `referred`."""
    try:
        parts: list[Piece] = [proto.SerializeToString()] if referred else pieces(proto)
    except (EncodeError, ValueError):
        parts = []
    if not parts or length(parts) > _LARGEST_PROTO:
        raise UsageError(f"{path}: a file of 2 GB and more cannot embed its weights.")
    with beside.open("xb", buffering=0) as out:
        for part in parts:
            if isinstance(part, bytes):
                write(out, part)
            else:
                _append(_source(part, draft), out)
