"""The files of changed models: where weights are stored, and how nothing half-written stays.

A model is written beside where it is to go, under a hidden name, verified there, and then renamed.
It lies beside, for only there can it refer to the original's weights, and only there is it certain
that its place is large enough.
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

from memdiag.api.fixing.changes import Change
from memdiag.errors import ReportError, UsageError
from memdiag.model.model_file import ModelFile, open_model
from memdiag.ort.loadable import Need, oldest_runtime
from memdiag.records.files import resolve_output
from memdiag.remedies.draft import Draft, Storage
from memdiag.remedies.saving import (
    LARGEST_EMBEDDED,
    can_stay,
    save,
    weight_bytes,
)
from memdiag.runner.temporary import own_prefix, remove_stale
from memdiag.verify.validity import newer


@dataclass(frozen=True, kw_only=True)
class Built:
    """A changed model: its `path`, and all files that were `written` for it.

    `kept` are the original's files that it needs as well, as seen from where it goes, and
    `kept_bytes` the bytes of its weights there. `disk_bytes` is the size of all files that it
    needs. Models of one `digest` are the same. `newer` is what it declares that asks for a newer
    runtime than the original, None if nothing; `oldest` the oldest release that can load it.
    """

    path: Path
    written: tuple[Path, ...]
    kept: tuple[Path, ...]
    kept_bytes: int
    disk_bytes: int
    digest: bytes
    newer: str | None
    oldest: Need


class Output(NamedTuple):
    """A model that was published, and its files, the original's that it needs among them."""

    built: Built
    files: tuple[Path, ...]


class FixFiles:
    """Writes models that were made of `file`, of which one may go to `target`.

    A link at `target` stays: the model, and external data beside it, go where it points.

    Raises:
        UsageError: the original would be overwritten.
        ReportError: at `target`, or where its external data goes, is no regular file.
    """

    def __init__(self, file: ModelFile, target: Path) -> None:
        self.file = file
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
            if not _is_text(path.name):
                raise UsageError(
                    f"{path}: its name is not UTF-8, and no model can refer to it. Rename it."
                )
        if data.is_symlink():
            raise ReportError(f"{data}: cannot be written (it is a link). Choose another output.")

    def check_writable(self) -> None:
        """Raise ReportError where nothing can be written: before anything is measured.

        What a killed process left there is removed.
        """
        remove_stale(self._folder)
        try:
            with tempfile.TemporaryFile(dir=self._folder):
                pass
        except OSError as error:
            raise self._unwritable(error) from error

    def draft(self, changes: Sequence[Change]) -> Draft:
        """Return the original with `changes`."""
        draft = Draft(self.file)
        for rewriter, findings in changes:
            for finding in findings:
                rewriter.apply(draft, finding)
        return draft

    @contextmanager
    def built(self, draft: Draft) -> Iterator[Built]:
        """Write `draft` where it can be verified; what was not published by the end is removed.

        Raises:
            ReportError: a file cannot be written.
            UsageError: the model is too large to embed its weights.
            ModelError: the draft is no model that can be written.
        """
        storage = self._storage(draft)
        hidden = self._folder / f".{own_prefix()}{secrets.token_hex(8)}"
        alone = hidden / self._target.name
        path = hidden.with_name(f"{hidden.name}.onnx") if storage == "in_place" else alone
        try:
            yield self._described(path, self._save(draft, path, storage))
        finally:
            path.unlink(missing_ok=True)
            shutil.rmtree(hidden, ignore_errors=True)

    def publish(self, built: Built) -> Output:
        """Move a model to its place.

        Raises:
            ReportError: it cannot be there.
            ModelError: the original became shorter meanwhile.
        """
        self.file.release()  # an error where the original became shorter
        places = [self._target, self._target.with_name(f"{self._target.name}.data")]
        moves = list(zip(built.written, places, strict=False))
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            # The model last: what it refers to is there when it is.
            for path, place in reversed(moves):
                os.replace(path, place)
        except OSError as error:
            raise self._unwritable(error) from error
        return Output(built, (*(place for _, place in moves), *built.kept))

    def shown(self, words: str) -> str:
        """Return `words` in one line, and without the hidden name of a model."""
        folder, name = re.escape(f"{self._folder}{os.sep}"), re.escape(self._target.name)
        hidden = (
            rf"{folder}\.{re.escape(own_prefix())}[0-9a-f]+({re.escape(os.sep)}{name}|\.onnx)(: )?"
        )
        return " ".join(re.sub(hidden, "", words).split())

    def _save(self, draft: Draft, path: Path, storage: Storage) -> tuple[Path, ...]:
        try:
            return save(draft, path, storage)
        except ReportError as error:
            raise ReportError(str(error).replace(str(path), str(self._target))) from error

    def _described(self, path: Path, written: tuple[Path, ...]) -> Built:
        own = {one.resolve() for one in written}
        folder = path.parent.resolve()
        with open_model(path) as made:
            kept = [one for one in made.files if one not in own]
            ranges = {
                (one.file, one.offset, one.nbytes)
                for one in made.weights
                if one.file is not None and (folder / one.file).resolve() in kept
            }
            return Built(
                path=path,
                written=written,
                kept=tuple(self._target.parent / os.path.relpath(one, folder) for one in kept),
                kept_bytes=sum(nbytes for _, _, nbytes in ranges),
                disk_bytes=sum(one.stat().st_size for one in made.files),
                digest=_digest(written),
                newer=newer(self.file.read_proto(), made.read_proto()),
                oldest=oldest_runtime(made),
            )

    def _storage(self, draft: Draft) -> Storage:
        """Return how weights are stored: as a rewrite wants it, or else as the original does."""
        large = weight_bytes(draft) > LARGEST_EMBEDDED
        if draft.storage is None and not self.file.external_bytes and not large:
            return "embedded"
        stays = draft.storage != "external" and can_stay(draft, self._target)
        return "in_place" if stays and self._is_referable() else "external"

    def _is_referable(self) -> bool:
        """Return whether a valid model can refer to the original's own file, if it holds weights.

        `onnx.checker` takes a file of external data that has several names for an attack.
        """
        return bool(self.file.external_bytes) or self.file.files[0].stat().st_nlink == 1

    def _unwritable(self, error: OSError) -> ReportError:
        return ReportError(
            f"{self._target}: cannot be written ({error.strerror}); choose another output."
        )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _digest(paths: Sequence[Path]) -> bytes:
    """Return what tells the contents of the files from those of others."""
    digest = xxhash.xxh3_128()
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, xxhash.xxh3_128).digest())
    return digest.digest()
