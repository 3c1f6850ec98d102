"""Writes changed models: where weights are stored, and how nothing half-written remains.

A model is written to its target folder under a hidden name, verified there, and then renamed. Only
there can it refer to the original's weights, and the space is known to be sufficient.
"""

import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import xxhash

from memdiag.errors import ReportError, UsageError
from memdiag.fixing.changes import Change
from memdiag.interrupts import delayed_interrupts
from memdiag.model.file_state import FileStates
from memdiag.model.model_file import ModelFile, open_model
from memdiag.ort.loadable import OldestRelease, oldest_runtime
from memdiag.records.file_lock import locked_folders
from memdiag.records.files import resolve_output
from memdiag.regular_files import open_regular
from memdiag.rewrites.model_editor import ModelEditor, TargetStorage
from memdiag.rewrites.saving import (
    MAX_EMBEDDED_BYTES,
    can_refer_to_original,
    referenced_weight_bytes,
    write_rewritten_model,
)
from memdiag.runner.temporary import remove_stale
from memdiag.temporary_names import own_prefix
from memdiag.verify.validity import newer_declaration


@dataclass(frozen=True, kw_only=True)
class BuiltModel:
    """A changed model that was written but not published.

    Attributes:
        path: the model file.
        written: all files that were written for it.
        kept: files of the original that it also needs, relative to the target.
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


class SavedModel(NamedTuple):
    """A model that was moved to hidden names next to its target (staged).

    Attributes:
        built: the model as it was written.
        files: all files that it needs: the model first, files of the original last.
    """

    built: BuiltModel
    files: tuple[Path, ...]


class ModelWriter:
    """Writes changed versions of the model `file`, and publishes one at `target`.

    Only this class writes to the target, and only if no other process has done so: otherwise a
    report of this process might describe the model of the other one. A model that an optimizer
    wrote elsewhere is copied to the target. A model that may become the result can be staged, which
    leaves the target as it is.

    A symbolic link at `target` is kept: the model and its external data are written to the folder
    that it points to.

    Attributes:
        has_published: whether a model was put at the target.

    Raises:
        UsageError: the original would be overwritten.
        ReportError: the target, or its external data file, exists and isn't a regular file.
    """

    def __init__(self, model_file: ModelFile, target: Path) -> None:
        self.file = model_file
        self._original = FileStates(model_file.path, model_file.files)
        resolved = resolve_output(target)
        target = resolved if target.is_symlink() else target
        self._target = target
        self._staged: tuple[Path, ...] = ()
        self.has_published = False
        self._folder = target.absolute().parent
        while not self._folder.exists():
            self._folder = self._folder.parent
        if target.resolve() in model_file.files:
            raise UsageError(f"{target}: this is the original's own file. Choose another output.")
        data_path = target.with_name(f"{target.name}.data")
        if data_path.resolve() in model_file.files:
            raise UsageError(
                f"{data_path}: this file contains the original's weights. Choose another output."
            )
        resolve_output(data_path)
        for path in (model_file.path.resolve(), data_path.absolute()):
            if not _is_utf8_path(str(path)):
                raise UsageError(
                    f"{path}: its path is not UTF-8, so no model can refer to it. Rename it."
                )
        if data_path.is_symlink():
            raise ReportError(
                f"{data_path}: cannot be written (it is a link). Choose another output."
            )
        self._earlier = FileStates(target, (target, data_path))

    @property
    def target(self) -> Path:
        """The path of the target."""
        return self._target

    def notes_on_unused_target(self) -> tuple[str, ...]:
        """Return a sentence if an earlier model is at the target, where nothing is written now."""
        if not self._target.exists():
            return ()
        return (f"{self._target} was there before, and the result does not use it",)

    def check_writable(self) -> None:
        """Raise ReportError if the target folder cannot be written, before anything is measured.

        Files that a killed process left there are removed.
        """
        remove_stale(self._folder)
        try:
            with tempfile.TemporaryFile(dir=self._folder):
                pass
        except OSError as error:
            raise self._unwritable_target_error(error) from error

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
        storage = self._weight_storage(editor)
        hidden = self._hidden_path()
        own_file = hidden / self._target.name
        path = hidden.with_name(f"{hidden.name}.onnx") if storage == "in_place" else own_file
        try:
            yield self._built_model(path, self._write_model(editor, path, storage))
        finally:
            path.unlink(missing_ok=True)
            shutil.rmtree(hidden, ignore_errors=True)

    def stage(self, built: BuiltModel) -> SavedModel:
        """Move a model to hidden names next to the target, until `publish_staged` is called.

        Raises:
            ReportError: it cannot be moved.
        """
        self.discard_staged()
        hidden_path = self._hidden_path()
        is_alone = built.path.parent == self._folder
        staged = [
            hidden_path.with_name(f"{hidden_path.name}.onnx")
            if is_alone
            else hidden_path / path.name
            for path in built.written
        ]
        self._staged = tuple(staged)
        self._move_files(built.written, staged)
        return SavedModel(built, (*staged, *built.kept))

    def publish_staged(self) -> None:
        """Move the staged model to the target.

        Raises:
            ReportError: the target cannot be written, or changed during the search.
            ModelError: the original changed during the search.
        """
        self._original.check()
        self._move_files(self._staged, self.staged_targets)
        self.discard_staged()  # removes the empty folder

    @property
    def staged_targets(self) -> tuple[Path, ...]:
        """The files that `publish_staged` writes, the model first; empty if none is staged."""
        return self._target_files(self._staged)

    def discard_staged(self) -> None:
        """Remove the staged model, if there is one."""
        for path in self._staged:
            with suppress(OSError):  # the next process removes what is left
                path.unlink(missing_ok=True)
            if path.parent != self._folder:
                shutil.rmtree(path.parent, ignore_errors=True)
        self._staged = ()

    def publish_copy(self, model: Path) -> None:
        """Copy a model named like the target, and the file of its weights, to the target.

        Raises:
            ReportError, ModelError: as in `publish_staged`.
        """
        hidden_path = self._hidden_path()
        self._original.check()
        try:
            hidden_path.mkdir()
            copies = [
                Path(shutil.copyfile(file, hidden_path / file.name))
                for file in _model_and_data_files(model)
            ]
            self._move_files(copies, self.copy_targets(model))
        except OSError as error:
            raise self._unwritable_target_error(error) from error
        finally:
            shutil.rmtree(hidden_path, ignore_errors=True)

    def copy_targets(self, model: Path) -> tuple[Path, ...]:
        """Return the files that `publish_copy` writes for `model`, the model first."""
        return tuple(self._target.with_name(file.name) for file in _model_and_data_files(model))

    def _move_files(self, files: Sequence[Path], targets: Sequence[Path]) -> None:
        """Rename `files` to `targets`, the model last, when the files that it refers to exist.

        Ctrl-C takes effect before or after all renames: in between, an earlier model would have
        the weights of this one.
        """
        try:
            mode = stat.S_IMODE(self.file.path.stat().st_mode) | stat.S_IRUSR | stat.S_IWUSR
            targets[0].parent.mkdir(parents=True, exist_ok=True)
            with locked_folders([targets[0].parent]), delayed_interrupts():
                if targets[0] == self._target and self._earlier.changed:
                    raise ReportError(
                        f"{self._target}: another process has written it since. Choose another"
                        " output."
                    )
                for path, target in reversed(list(zip(files, targets, strict=True))):
                    with suppress(OSError):  # some file systems have no modes
                        path.chmod(mode)  # a model that others cannot read stays unreadable
                    os.replace(path, target)
                self.has_published = targets[0] == self._target
        except OSError as error:
            raise self._unwritable_target_error(error) from error

    def _target_files(self, written: Sequence[Path]) -> tuple[Path, ...]:
        return (self._target, self._target.with_name(f"{self._target.name}.data"))[: len(written)]

    def _hidden_path(self) -> Path:
        return self._folder / f".{own_prefix()}{secrets.token_hex(8)}"

    def without_hidden_names(self, text: str) -> str:
        """Return `text` in one line, without the hidden names of models."""
        folder, name = re.escape(f"{self._folder}{os.sep}"), re.escape(self._target.name)
        hidden_path_pattern = (
            rf"{folder}\.{re.escape(own_prefix())}[0-9a-f]+({re.escape(os.sep)}{name}|\.onnx)(: )?"
        )
        return " ".join(re.sub(hidden_path_pattern, "", text).split())

    def _write_model(
        self, editor: ModelEditor, path: Path, storage: TargetStorage
    ) -> tuple[Path, ...]:
        try:
            return write_rewritten_model(editor, path, storage)
        except ReportError as error:
            raise ReportError(str(error).replace(str(path), str(self._target))) from error

    def _built_model(self, path: Path, written: tuple[Path, ...]) -> BuiltModel:
        written_files = {path.resolve() for path in written}
        folder = path.parent.resolve()
        with open_model(path) as model_file:
            kept_files = [path for path in model_file.files if path not in written_files]
            ranges = {
                (weight.file, weight.offset, weight.nbytes)
                for weight in model_file.weights
                if weight.file is not None and (folder / weight.file).resolve() in kept_files
            }
            return BuiltModel(
                path=path,
                written=written,
                kept=tuple(
                    self._target.parent / os.path.relpath(path, folder) for path in kept_files
                ),
                kept_bytes=sum(nbytes for _, _, nbytes in ranges),
                disk_bytes=sum(path.stat().st_size for path in model_file.files),
                digest=_written_files_digest(written),
                newer=newer_declaration(self.file.read_proto(), model_file.read_proto()),
                oldest=oldest_runtime(model_file),
            )

    def _weight_storage(self, editor: ModelEditor) -> TargetStorage:
        """Return how weights are stored: as a rewrite requires, or else as in the original.

        Embedded weights that are too large for one file become external.
        """
        is_large = referenced_weight_bytes(editor) > MAX_EMBEDDED_BYTES
        if editor.storage is None and not self.file.external_bytes and not is_large:
            return "embedded"
        may_stay = editor.storage != "external" and can_refer_to_original(editor, self._target)
        return "in_place" if may_stay and self._is_original_referable() else "external"

    def _is_original_referable(self) -> bool:
        """Return whether a valid model can refer to weights in the original's own file.

        `onnx.checker` rejects external data in files with several hard links.
        """
        return bool(self.file.external_bytes) or self.file.files[0].stat().st_nlink == 1

    def _unwritable_target_error(self, error: OSError) -> ReportError:
        return ReportError(
            f"{self._target}: cannot be written ({error.strerror}). Choose another output."
        )


def _model_and_data_files(model: Path) -> list[Path]:
    """Return `model` and the file of its weights, if there is one."""
    return [path for path in (model, model.with_name(f"{model.name}.data")) if path.exists()]


def _is_utf8_path(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _written_files_digest(paths: Sequence[Path]) -> bytes:
    digest = xxhash.xxh3_128()
    for path in paths:
        with open_regular(path) as file:
            digest.update(hashlib.file_digest(file, xxhash.xxh3_128).digest())
    return digest.digest()
