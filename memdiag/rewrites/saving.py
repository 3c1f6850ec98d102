"""Writing a rewritten model: weights are referenced, moved to external data, or embedded.

External weights are copied from file to file by onnx_ir and are never in memory. Its own writer of
external data is not used: it leaves Constant nodes in the model and writes tensors that share a
range of a file once each. Files are written under hidden names and renamed, so that an error leaves
earlier files unchanged.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import onnx_ir as ir
from google.protobuf.message import EncodeError
from onnx import ModelProto, TensorProto

from memdiag.errors import ReportError, UsageError
from memdiag.rewrites.edited_weights import FileRange
from memdiag.rewrites.model_editor import ModelEditor, TargetStorage, model_tensors
from memdiag.temporary_names import own_prefix

EXTERNAL_ALIGNMENT = 4096
"""Alignment of external weights: the page, by which files are mapped."""

IN_PLACE_ALIGNMENT = 64
"""Alignment of weights that are referenced in the original's model file. Kernels may rely on it,
because onnxruntime aligns its own tensors in this way."""

MAX_EMBEDDED_BYTES = 64 << 20
"""Models with larger weights are better stored with external data."""

_MAX_PROTO_BYTES = (1 << 31) - 1
_MIN_EXTERNAL_BYTES = 1 << 16
"""New weights of at least this size also become external data."""


def write_rewritten_model(
    editor: ModelEditor, path: Path, storage: TargetStorage
) -> tuple[Path, ...]:
    """Write the model to `path` and return the files written, the model first.

    Files at `path` and of its external data are replaced; `ModelWriter` refuses targets that are
    the original's own files.

    Raises:
        UsageError: the weights cannot be referenced from the folder of `path`, or are too large to
            embed.
        ReportError: a file cannot be written.
        ModelError: the graph cannot be written.
    """
    data_path = path.with_name(f"{path.name}.data")
    proto = editor.proto()
    hidden_path = path.with_name(f".{own_prefix()}{secrets.token_hex(8)}")
    hidden_data_path = hidden_path.with_name(f"{hidden_path.name}.data")
    has_data = False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for tensor, must_embed in model_tensors(proto):
            if _is_external_tensor(tensor) and (must_embed or storage == "embedded"):
                _embed_tensor(tensor)
        if storage == "in_place":
            _refer_to_original(proto, editor, path)
        elif storage == "external":
            has_data = _write_external_data(proto, hidden_data_path, data_path.name)
        hidden_path.write_bytes(_serialized_model(proto, path))
        if has_data:
            os.replace(hidden_data_path, data_path)
        os.replace(hidden_path, path)
    except OSError as error:
        raise ReportError(
            f"{path}: cannot be written ({error.strerror or error})."
            " Free space or choose another output."
        ) from error
    finally:
        for leftover in (hidden_path, hidden_data_path):
            with contextlib.suppress(OSError):
                leftover.unlink(missing_ok=True)
    return (path, data_path) if has_data else (path,)


def referenced_weight_bytes(editor: ModelEditor) -> int:
    """Return the bytes of the distinct file ranges that the model refers to."""
    ranges = {
        _proto_file_range(tensor)
        for tensor, _ in model_tensors(editor.proto())
        if _is_external_tensor(tensor)
    }
    return sum(file_range.nbytes for file_range in ranges)


def can_refer_to_original(editor: ModelEditor, path: Path) -> bool:
    """Return whether a model at `path` can refer to the weights in the original's files.

    The files have to be in its folder or below. Weights that cannot be referenced are embedded in
    the new file, so they must be small.
    """
    folder = path.resolve().parent
    ranges = list(_movable_ranges(editor.proto()))
    is_near = all(file_range.path.is_relative_to(folder) for file_range in ranges)
    return is_near and _unreferable_bytes(ranges, editor) <= MAX_EMBEDDED_BYTES


def is_aligned(editor: ModelEditor, alignment: int) -> bool:
    """Return whether all weights that can be moved are at multiples of `alignment` in files."""
    ranges = _movable_ranges(editor.proto())
    return all(file_range.offset % alignment == 0 for file_range in ranges)


def _is_referable_range(file_range: FileRange, editor: ModelEditor) -> bool:
    """Return whether a rewritten model can refer to this range of one of the original's files.

    It can refer to external data, which kernels already read there. In the original's model file
    weights are aligned only by chance.
    """
    is_original_data = file_range.path != editor.file.path.resolve()
    return is_original_data or file_range.offset % IN_PLACE_ALIGNMENT == 0


def _unreferable_bytes(ranges: Sequence[FileRange], editor: ModelEditor) -> int:
    return sum(
        file_range.nbytes for file_range in ranges if not _is_referable_range(file_range, editor)
    )


def _movable_ranges(proto: ModelProto) -> Iterator[FileRange]:
    for tensor, must_embed in model_tensors(proto):
        if _is_external_tensor(tensor) and not must_embed:
            file_range = _proto_file_range(tensor)
            if file_range.nbytes:
                yield file_range


def _is_external_tensor(tensor: TensorProto) -> bool:
    return tensor.data_location == TensorProto.EXTERNAL


def _external_source_tensor(tensor: TensorProto) -> ir.ExternalTensor:
    source = ir.serde.deserialize_tensor(tensor)
    assert isinstance(source, ir.ExternalTensor)
    return source


def _proto_file_range(tensor: TensorProto) -> FileRange:
    return FileRange.of(_external_source_tensor(tensor))


def _refer_to_original(proto: ModelProto, editor: ModelEditor, path: Path) -> None:
    """Refer to weights in the original's files; embed weights that cannot be referenced."""
    if _unreferable_bytes(list(_movable_ranges(proto)), editor) > MAX_EMBEDDED_BYTES:
        raise UsageError(
            f"{path}: weights inside {editor.file.path} are not aligned and too large to be copied"
            " into another model. Store them as external data."
        )
    folder = path.resolve().parent
    for tensor, _ in model_tensors(proto):
        if not _is_external_tensor(tensor):
            continue
        source = _proto_file_range(tensor)
        if not source.nbytes or not _is_referable_range(source, editor):
            _embed_tensor(tensor)
        elif not source.path.is_relative_to(folder):
            raise UsageError(
                f"{path}: weights can only be referenced from their own folder,"
                f" {source.path.parent}. Write the output there."
            )
        else:
            location = source.path.relative_to(folder).as_posix()
            _set_reference(tensor, location, source.offset, source.nbytes)


def _write_external_data(proto: ModelProto, target: Path, name: str) -> bool:
    """Write all large weights to `target`, which will be called `name`; return whether any exist.

    Tensors that share a range of a file share the copy.
    """
    offsets: dict[FileRange, int] = {}
    with target.open("xb") as out:
        for tensor, must_embed in model_tensors(proto):
            if _is_external_tensor(tensor):
                source = _proto_file_range(tensor)
                if not source.nbytes:
                    _embed_tensor(tensor)
                    continue
                if source not in offsets:
                    offsets[source] = _seek_aligned(out)
                    _external_source_tensor(tensor).tofile(out)
                _set_reference(tensor, name, offsets[source], source.nbytes)
            elif len(tensor.raw_data) >= _MIN_EXTERNAL_BYTES and not must_embed:
                offset = _seek_aligned(out)
                out.write(tensor.raw_data)
                _set_reference(tensor, name, offset, len(tensor.raw_data))
                tensor.data_location = TensorProto.EXTERNAL
                tensor.ClearField("raw_data")
        return out.tell() > 0


def _seek_aligned(out: BinaryIO) -> int:
    """Move to the next aligned position and return it."""
    return out.seek(-(-out.tell() // EXTERNAL_ALIGNMENT) * EXTERNAL_ALIGNMENT)


def _embed_tensor(tensor: TensorProto) -> None:
    """Read the bytes of an external tensor into it."""
    content = BytesIO()
    if _proto_file_range(tensor).nbytes:
        _external_source_tensor(tensor).tofile(content)
    tensor.raw_data = content.getvalue()
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


def _set_reference(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def _serialized_model(proto: ModelProto, path: Path) -> bytes:
    try:
        content: bytes = proto.SerializeToString()
    except (EncodeError, ValueError):
        content = b""
    if not content or len(content) > _MAX_PROTO_BYTES:
        raise UsageError(f"{path}: a file of 2 GB and more cannot embed its weights.")
    return content
