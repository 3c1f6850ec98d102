"""Writes changed models: where weights are stored, and how nothing half-written remains.

A model is written to its target folder under a hidden name, verified there, and then renamed. Only
there can it refer to the original's weights, and the space is known to be sufficient.
"""

import hashlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import xxhash

from memdiag.errors import ReportError, UsageError
from memdiag.fixing.changes import Change
from memdiag.model.file_state import FileStates
from memdiag.model.model_file import ModelFile, open_model
from memdiag.ort.loadable import OldestRelease, oldest_runtime
from memdiag.records.files import resolve_output
from memdiag.rewrites.model_editor import ModelEditor, TargetStorage
from memdiag.rewrites.saving import (
    MAX_EMBEDDED_BYTES,
    can_refer,
    save,
    weight_bytes,
)
from memdiag.runner.temporary import own_prefix, remove_stale
from memdiag.verify.validity import undeclared_before


@dataclass(frozen=True, kw_only=True)
class BuiltModel:
    """A changed model that was written but not published.

    Attributes:
        path: the model file.
        written: all files that were written for it.
        kept: files of the original that it needs as well, relative to the target.
        kept_bytes: bytes of its weights in these files.
        disk_bytes: size of all files that it needs.
        digest: hash of the written files.
        newer: the declared version that needs a newer runtime than the original; None if none does.
        oldest: the oldest release that can load it.
    """

    path: Path
    written: tuple[Path, ...]
    kept: tuple[Path, ...]
    kept_bytes: int
    disk_bytes: int
    digest: bytes
    newer: str | None
    oldest: OldestRelease


class PublishedModel(NamedTuple):
    """A model that was moved to its target.

    Attributes:
        built: the model as it was written.
        files: all files that it needs: the model first, files of the original last.
    """

    built: BuiltModel
    files: tuple[Path, ...]


class ModelWriter:
    """Writes changed versions of the model `file`, and publishes one at `target`.

    A symbolic link at `target` is kept: the model and its external data are written to the folder
    that it points to.

    Raises:
        UsageError: the original would be overwritten.
        ReportError: the target, or its external data file, exists and is no regular file.
    """

    def __init__(self, file: ModelFile, target: Path) -> None:
        self.file = file
        self._original = FileStates(file.path, file.files)
        resolved = resolve_output(target)
        target = resolved if target.is_symlink() else target
        self._target = target
        self._folder = target.absolute().parent
        while not self._folder.exists():
            self._folder = self._folder.parent
        if target.resolve() in file.files:
            raise UsageError(f"{target}: this is the original's own file. Choose another output.")
        data = target.with_name(f"{target.name}.data")
        if data.resolve() in file.files:
            raise UsageError(
                f"{data}: this file contains the original's weights. Choose another output."
            )
        resolve_output(data)
        for path in (file.path.resolve(), data):
            if not _is_text(str(path)):
                raise UsageError(
                    f"{path}: its path is not UTF-8, so no model can refer to it. Rename it."
                )
        if data.is_symlink():
            raise ReportError(f"{data}: cannot be written (it is a link). Choose another output.")

    def check_writable(self) -> None:
        """Raise ReportError if the target folder cannot be written, before anything is measured.

        Files that a killed process left there are removed.
        """
        remove_stale(self._folder)
        try:
            with tempfile.TemporaryFile(dir=self._folder):
                pass
        except OSError as error:
            raise self._unwritable(error) from error

    def editor(self, changes: Sequence[Change]) -> ModelEditor:
        """Return the original with `changes`."""
        editor = ModelEditor(self.file)
        for rewriter, findings in changes:
            for finding in findings:
                rewriter.apply(editor, finding)
        return editor

    @contextmanager
    def built(self, editor: ModelEditor) -> Iterator[BuiltModel]:
        """Write the model of `editor` under a hidden name; remove it at the end if not published.

        Raises:
            ReportError: a file cannot be written.
            ModelError: the model cannot be written.
        """
        storage = self._storage(editor)
        hidden = self._folder / f".{own_prefix()}{secrets.token_hex(8)}"
        own_file = hidden / self._target.name
        path = hidden.with_name(f"{hidden.name}.onnx") if storage == "in_place" else own_file
        try:
            yield self._described(path, self._save(editor, path, storage))
        finally:
            path.unlink(missing_ok=True)
            shutil.rmtree(hidden, ignore_errors=True)

    def publish(self, built: BuiltModel) -> PublishedModel:
        """Move a model to the target.

        Raises:
            ReportError: the target cannot be written.
            ModelError: the original changed meanwhile.
        """
        self._original.check()
        targets = [self._target, self._target.with_name(f"{self._target.name}.data")]
        moves = list(zip(built.written, targets, strict=False))
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            # The model comes last, when the files that it refers to are there.
            for path, target in reversed(moves):
                os.replace(path, target)
        except OSError as error:
            raise self._unwritable(error) from error
        return PublishedModel(built, (*(target for _, target in moves), *built.kept))

    def without_hidden_names(self, text: str) -> str:
        """Return `text` in one line, without the hidden names of models."""
        folder, name = re.escape(f"{self._folder}{os.sep}"), re.escape(self._target.name)
        hidden = (
            rf"{folder}\.{re.escape(own_prefix())}[0-9a-f]+({re.escape(os.sep)}{name}|\.onnx)(: )?"
        )
        return " ".join(re.sub(hidden, "", text).split())

    def _save(self, editor: ModelEditor, path: Path, storage: TargetStorage) -> tuple[Path, ...]:
        try:
            return save(editor, path, storage)
        except ReportError as error:
            raise ReportError(str(error).replace(str(path), str(self._target))) from error

    def _described(self, path: Path, written: tuple[Path, ...]) -> BuiltModel:
        own = {path.resolve() for path in written}
        folder = path.parent.resolve()
        with open_model(path) as model:
            kept = [path for path in model.files if path not in own]
            ranges = {
                (weight.file, weight.offset, weight.nbytes)
                for weight in model.weights
                if weight.file is not None and (folder / weight.file).resolve() in kept
            }
            return BuiltModel(
                path=path,
                written=written,
                kept=tuple(self._target.parent / os.path.relpath(path, folder) for path in kept),
                kept_bytes=sum(nbytes for _, _, nbytes in ranges),
                disk_bytes=sum(path.stat().st_size for path in model.files),
                digest=_digest(written),
                newer=undeclared_before(self.file.read_proto(), model.read_proto()),
                oldest=oldest_runtime(model),
            )

    def _storage(self, editor: ModelEditor) -> TargetStorage:
        """Return how weights are stored: as a rewrite requires, or else as in the original."""
        large = weight_bytes(editor) > MAX_EMBEDDED_BYTES
        if editor.storage is None and not self.file.external_bytes and not large:
            return "embedded"
        stays = editor.storage != "external" and can_refer(editor, self._target)
        return "in_place" if stays and self._is_referable() else "external"

    def _is_referable(self) -> bool:
        """Return whether a valid model can refer to weights in the original's own file.

        `onnx.checker` rejects external data in files with several hard links.
        """
        return bool(self.file.external_bytes) or self.file.files[0].stat().st_nlink == 1

    def _unwritable(self, error: OSError) -> ReportError:
        return ReportError(
            f"{self._target}: cannot be written ({error.strerror}). Choose another output."
        )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _digest(paths: Sequence[Path]) -> bytes:
    """Return a hash of the contents of the files."""
    digest = xxhash.xxh3_128()
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, xxhash.xxh3_128).digest())
    return digest.digest()
