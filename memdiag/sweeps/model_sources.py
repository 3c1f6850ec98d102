"""The models of a sweep: named by paths, folders, patterns, lists and URLs, with their digests."""

import errno
import glob
import hashlib
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from memdiag.comparison.environments import cache_folder
from memdiag.errors import MemdiagError, MissingDataError, ModelError, UsageError
from memdiag.model.axis_roles import dims_by_role
from memdiag.model.count_inputs import free_axes
from memdiag.model.dimensions import unsized_axes
from memdiag.model.model_file import open_model
from memdiag.paths import MODEL_SUFFIXES, distinct_names, path_text
from memdiag.regular_files import open_regular, read_regular
from memdiag.runner.temporary import remove_stale
from memdiag.temporary_names import own_prefix
from memdiag.units import GIB, format_size

MAX_CACHE_BYTES = 20 * GIB
"""Bytes of fetched models that are kept, the most recently used first. If half of the free space of
the disk is less, that is the limit."""

MAX_EXTERNAL_FILES = 10_000
"""Files of external data that are fetched for one model."""

_ENDINGS_TEXT = " or ".join(MODEL_SUFFIXES)
_COMPLETE_MARKER = ".complete"
_STATE_FOLDER = re.compile("[0-9a-f]{32}")
"""Names of folders in the cache."""


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """A model of a sweep.

    Attributes:
        name: its name: the path below the folder that was given, or the name of the file.
        address: the path as it was given, or the URL.
        digest: the digest of the content of all its files; empty if they cannot be read.
        file_bytes: the size of all files.
        problem: why the files cannot be read; empty otherwise.
        dim_names: the names of its free dimensions; None if the model is damaged.
        dim_roles: the free dimension by role, such as ``batch``, if exactly one has the role.
        dims: sizes of free dimensions that a list gave for this model.
        other_names: the names of other models with the same content.
    """

    name: str
    address: str
    digest: str = ""
    file_bytes: int = 0
    problem: str = ""
    dim_names: frozenset[str] | None = None
    dim_roles: dict[str, str] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    other_names: tuple[str, ...] = ()


def find_sweep_models(
    paths: Sequence[str], *, on_progress: Callable[[str], None] = lambda step: None
) -> list[ModelSource]:
    """Return the models that `paths` name, without duplicates, and those that cannot be read.

    Args:
        paths: models, folders, patterns such as ``zoo/**/*.onnx``, lists (``.toml``), or URLs of
            any of these.
        on_progress: called with the model that is read.

    Raises:
        UsageError: a list is damaged, or fsspec is not installed.
    """
    sources = list(_named_sources(paths))
    models: dict[object, ModelSource] = {}
    for source, name in zip(sources, _distinct_source_names(sources), strict=True):
        on_progress(name)
        model = replace(source, name=name)
        if not model.problem:
            model = _read_source(model)
        key = (model.digest, tuple(sorted(model.dims.items()))) if model.digest else model.address
        same_model = models.get(key)
        if same_model is None:
            models[key] = model
        elif same_model.address != model.address:
            names = (*same_model.other_names, model.name)
            models[key] = replace(same_model, other_names=names)
    return list(models.values())


def local_path(address: str) -> Path:
    """Return the path of the model at `address`, which is fetched if it is a URL.

    Raises:
        ModelError: the URL cannot be read.
        UsageError: fsspec is not installed.
    """
    return fetch_model(address) if is_url(address) else Path(address)


def absolute_address(address: str) -> str:
    """Return a URL as it is, and the absolute path of another address."""
    return address if is_url(address) else os.path.abspath(address)


def model_files_digest(path: Path) -> str:
    """Return the digest of the files of the model at `path`, of any names; it may be damaged.

    Raises:
        OSError: a file cannot be read.
    """
    return _model_digest(_model_file_paths(path))


def is_url(address: str) -> bool:
    """Return whether `address` is a URL."""
    return "://" in address


def _named_sources(paths: Iterable[str], lists: tuple[Path, ...] = ()) -> Iterator[ModelSource]:
    """Yield the models that `paths`, entries of nested `lists`, name, without their digests."""
    for text in paths:
        path = Path(text)
        if is_url(text):
            yield from _url_sources(text)
        elif path.suffix == ".toml":
            yield from _list_sources(path, lists)
        elif path.is_dir():
            models = sorted(
                model
                for suffix in MODEL_SUFFIXES
                for model in path.rglob(f"*{suffix}")
                if model.is_file()
            )
            for model in models:
                name = path_text(model.relative_to(path))
                yield _path_source(model, name)
            if not models:
                yield _unreadable_source(text, f"there is no {_ENDINGS_TEXT} file in this folder.")
        elif glob.has_magic(text) and not path.exists():
            matches = sorted(glob.glob(text, recursive=True))
            for match in matches:
                yield _path_source(Path(match))
            if not matches:
                yield _unreadable_source(text, "no file matches this pattern.")
        else:
            yield _path_source(path)


def _path_source(path: Path, name: str = "") -> ModelSource:
    text = path_text(path)
    problem = "" if text == str(path) else f"{text}: its name is not UTF-8. Rename it."
    return ModelSource(name=name or path_text(path.name), address=text, problem=problem)


def _list_sources(path: Path, lists: tuple[Path, ...]) -> Iterator[ModelSource]:
    """Yield the models of a list: paths next to it, or tables with `path`, `name` and `dims`.

    Raises:
        UsageError: the list cannot be read, or is one of `lists`, which contain it.
    """
    if path.resolve() in lists:
        raise UsageError(f"{path}: the list contains itself. Remove it from the list.")
    try:
        entries = tomllib.loads(read_regular(path).decode()).get("models")
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path}: cannot be read as a list of models ({reason}).") from error
    if not isinstance(entries, list):
        raise UsageError(f'{path}: there is no list. Write models = ["a.onnx", "zoo/"].')
    for entry in entries:
        table: Any = {"path": entry} if isinstance(entry, str) else entry
        is_table = isinstance(table, dict) and table.keys() <= {"path", "name", "dims"}
        dims = table.get("dims", {}) if is_table else {}
        texts = [table.get("path"), table.get("name", "")] if is_table else [None]
        if (
            not all(isinstance(text, str) for text in texts)
            or not isinstance(dims, dict)
            or not all(type(size) is int for size in dims.values())
        ):
            raise UsageError(
                f"{path}: {entry!r} is not a model. Write a path, or a table such as"
                ' {path = "a.onnx", name = "A", dims = {batch = 4}}.'
            )
        address = table["path"] if is_url(table["path"]) else str(path.parent / table["path"])
        for source in _named_sources([address], (*lists, path.resolve())):
            yield replace(source, dims=dims, name=table.get("name") or source.name)


def _distinct_source_names(sources: Sequence[ModelSource]) -> list[str]:
    """Return the names of models; with more folders where several have the same name."""
    names = [source.name for source in sources]
    addresses = [Path(source.address.replace("://", "/")) for source in sources]
    distinct = distinct_names(addresses)
    return [distinct[index] if names.count(name) > 1 else name for index, name in enumerate(names)]


def _unreadable_source(address: str, problem: str) -> ModelSource:
    return ModelSource(name=PurePath(address).name, address=address, problem=problem)


def _read_source(source: ModelSource) -> ModelSource:
    """Return `source` with the digest of its files, or with the reason why they cannot be read."""
    try:
        path = local_path(source.address)
        files, names, roles = [path], None, dict[str, str]()
        with suppress(ModelError), open_model(path) as model_file:  # damaged: its job reports how
            files = list(model_file.files)
            axes = unsized_axes(free_axes(model_file.graph))
            names = frozenset(axis.key for axis in axes)
            roles = dims_by_role(model_file.graph, model_file.functions)
        # Reading a pipe, a device or a file that the kernel generates may never end.
        irregular = next(
            (file for file in files if not file.is_file() or not _file_size(file)), None
        )
        if irregular is not None and irregular.exists():
            return replace(source, problem=f"{irregular}: it is empty, or no regular file.")
        digest = _model_digest(files)
        size = sum(map(_file_size, files))
    except OSError as error:
        return replace(
            source, problem=f"{source.address}: cannot be read ({_read_error_text(error)})."
        )
    except ModelError as error:
        return replace(source, problem=str(error))
    return replace(source, digest=digest, file_bytes=size, dim_names=names, dim_roles=roles)


def _file_size(file: Path) -> int:
    return file.stat().st_size


def _model_file_paths(path: Path) -> list[Path]:
    with suppress(ModelError), open_model(path) as model_file:
        return list(model_file.files)
    return [path]


def _model_digest(files: Sequence[Path]) -> str:
    """Return the digest of the content of a model's files, whatever their names are."""
    total = hashlib.sha256()
    for path in files:
        with open_regular(path) as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def _url_sources(url: str) -> Iterator[ModelSource]:
    """Yield the models at a URL, which is that of a model, of a folder, or a pattern."""
    fsspec = require_fsspec()
    if url.endswith(MODEL_SUFFIXES) and not glob.has_magic(url):
        yield ModelSource(name=PurePath(url).name, address=url)
        return
    try:
        system, path = fsspec.core.url_to_fs(url)
        if glob.has_magic(path):
            models = system.glob(path)
        else:
            folder = path.rstrip("/")
            models = [
                model
                for suffix in MODEL_SUFFIXES
                for model in system.glob(f"{folder}/**/*{suffix}")
            ]
        addresses = sorted(system.unstrip_protocol(model) for model in models)
    except Exception as error:  # from any of the libraries behind fsspec
        yield _unreadable_source(
            url, f"{url}: cannot be listed ({_read_error_text(error)}). Check the URL."
        )
        return
    if not addresses:
        yield _unreadable_source(url, f"{url}: there is no {_ENDINGS_TEXT} file.")
    source_prefix = f"{system.unstrip_protocol(path).rstrip('/')}/"
    for address in addresses:
        name = address.removeprefix(source_prefix)
        name = PurePath(address).name if is_url(name) else name
        yield ModelSource(name=name, address=address)


def fetch_model(url: str) -> Path:
    """Return the path of the model at `url` in the cache; fetch it with its data if it is missing.

    Raises:
        ModelError: it cannot be read.
        UsageError: fsspec is not installed.
    """
    fsspec = require_fsspec()
    cache = cache_folder() / "models"
    name = PurePath(url).name or "model.onnx"
    try:
        system, path = fsspec.core.url_to_fs(url)
        # The state of the content, so that a file that was replaced is fetched again.
        state = hashlib.sha256(f"{url} {system.ukey(path)}".encode()).hexdigest()[:32]
        folder = cache / state
        cache.mkdir(parents=True, exist_ok=True)
        remove_stale(cache)
        if (folder / _COMPLETE_MARKER).exists():
            (folder / _COMPLETE_MARKER).touch()
            return folder / name
        building = cache / f".{own_prefix()}{state}"
        try:
            _download_model(system, path, building, name)
            (building / _COMPLETE_MARKER).touch()
            if not folder.exists():
                building.rename(folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        _limit_cache(cache, folder)
    except (MemdiagError, KeyboardInterrupt):
        raise
    except Exception as error:  # from any of the libraries behind fsspec
        raise ModelError(
            f"{url}: cannot be fetched ({_read_error_text(error)}). Check the URL."
        ) from error
    return folder / name


def _download_model(system: Any, path: str, folder: Path, name: str) -> None:
    folder.mkdir()
    limit = shutil.disk_usage(folder).free // 2

    def check_size(size: int | None, value: int, **_: object) -> None:
        if max(size or 0, value) > limit:
            raise ModelError(
                f"{path}: it is larger than {format_size(limit)}, half of the free space of"
                " the cache. Set XDG_CACHE_HOME to a folder with more."
            )

    callback = require_fsspec().callbacks.Callback(hooks={"size": check_size})
    system.get_file(path, str(folder / name), callback=callback)
    for _ in range(MAX_EXTERNAL_FILES):
        try:
            open_model(folder / name).close()
        except MissingDataError as error:
            if not error.location:
                return
            target = folder / error.location
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                source = f"{path.rpartition('/')[0]}/{error.location}"
                system.get_file(source, str(target), callback=callback)
            except FileNotFoundError:
                return  # the job reports that it is missing
        except ModelError:
            return
        else:
            return


def _limit_cache(cache: Path, newest: Path) -> None:
    """Remove the least recently used models from the cache until it is small enough."""
    limit = min(MAX_CACHE_BYTES, shutil.disk_usage(cache).free // 2)
    total = 0
    markers = (
        path
        for path in cache.glob(f"*/{_COMPLETE_MARKER}")
        if _STATE_FOLDER.fullmatch(path.parent.name)
    )
    newest_first = sorted(markers, key=lambda path: -path.stat().st_mtime)
    for marker in newest_first:
        folder = marker.parent
        total += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        if total > limit and folder != newest:
            marker.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)


def require_fsspec() -> ModuleType:
    """Return fsspec.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import fsspec
    except ImportError as error:
        raise UsageError(
            "models at a URL need fsspec, which is not installed. Install it:"
            " pip install 'memdiag[sweep]'."
        ) from error
    module: ModuleType = fsspec
    return module


def _read_error_text(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, FileNotFoundError):  # fsspec raises it without a number
        number = errno.ENOENT
    text = os.strerror(number) if number else str(error)
    return (text or type(error).__name__)[:200]
