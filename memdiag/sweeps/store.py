"""The store of sweeps: a folder with the record of each job, and its figures as Parquet data sets.

    store.json                        the version of the store
    records/KEY[:2]/KEY.json          the result of a job (`memdiag.records.sweep_job.JobResult`)
    profiles.parquet/onnxruntime=…/machine=…/*.parquet
    findings.parquet/…                the same partitions
    copies.parquet/…

The record of a job is created whole and never replaced: it alone states that the job is done, so
that if two sweeps measure the same job, the first one wins. Rows are added in batches, under a lock
and only for keys that have none. After a sweep was killed, the next one adds the missing rows.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import chain, starmap
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from memdiag.errors import RecordError, ReportError, UsageError
from memdiag.records import codec
from memdiag.records.file_lock import file_lock
from memdiag.records.profile import Profile
from memdiag.records.sweep_job import JobResult
from memdiag.regular_files import open_regular, read_regular
from memdiag.temporary_names import own_prefix

STORE_VERSION = 1
_VERSION_FILE = "store.json"
_RECORDS_FOLDER = "records"

_KEY_NAME = re.compile("[0-9a-f]{32}")
"""Names of records and of files of rows, without suffixes. Other files in a store are not ours."""

_FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk without space for the file."""

MAX_PENDING = 200
"""Results that wait for their rows. They are written sooner where the caller asks for it."""

PARTITION_COLUMNS = ("onnxruntime", "machine")
_TEXT_COLUMNS = ("model", "digest", "address", "memdiag", "dims", "options", "status", "sentence")
_SIZE_COLUMNS = (
    "peak_bytes",
    "kept_bytes",
    "steady_bytes",
    "baseline_bytes",
    "estimated_peak_bytes",
    "estimated_steady_bytes",
    "weight_bytes",
)
DATASET_COLUMNS = {
    "profiles.parquet": {
        "key": "text",
        **dict.fromkeys(_TEXT_COLUMNS, "text"),
        "started_at": "time",
        "phase": "text",
        **dict.fromkeys(_SIZE_COLUMNS, "bytes"),
        "duration_s": "seconds",
        "latency_s": "seconds",
        "is_alone": "flag",
    },
    "findings.parquet": {
        "key": "text",
        "model": "text",
        "rule": "text",
        "bytes_steady": "bytes",
        "bytes_peak": "bytes",
        "message": "text",
        "remedy": "text",
    },
    "copies.parquet": {
        "key": "text",
        "model": "text",
        "weight": "text",
        "layout": "text",
        "owner": "text",
        "bytes": "bytes",
        "mapped_bytes": "bytes",
    },
}
"""The columns of each data set, with the kind of their values, without the partitions. The first
data set has rows for every job."""

_PROFILES_DATASET = next(iter(DATASET_COLUMNS))

StoreRow = dict[str, Any]


class SweepStore:
    """A store, which is created if it is missing.

    Args:
        folder: the folder.

    Raises:
        UsageError: pyarrow is not installed.
        RecordError: the store is of another memdiag, or the folder contains something else.
        ReportError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pyarrow = require_pyarrow()
        self._pending: list[JobResult] = []
        self._stored_keys: set[str] = set()
        self._read_files: set[Path] = set()
        check_version(folder, is_required=False)
        save_if_missing(folder / _VERSION_FILE, msgspec.json.encode({"version": STORE_VERSION}))

    def has(self, key: str) -> bool:
        """Return whether the job with `key` is done."""
        return self._record_path(key).exists()

    def result(self, key: str) -> JobResult:
        """Return the result of a job.

        Raises:
            RecordError: there is none, or it cannot be read.
        """
        return codec.load(self._record_path(key), JobResult)

    def add(self, result: JobResult) -> bool:
        """Store `result`, unless its job is done already; return whether it was stored.

        Raises:
            ReportError: it cannot be written.
        """
        path = self._record_path(result.key)
        if not save_if_missing(path, codec.encode(result), folder=self.folder):
            return False
        self._pending.append(result)
        if len(self._pending) >= MAX_PENDING:
            self.flush()
        return True

    def flush(self) -> None:
        """Write the rows of the results that were added.

        Raises:
            ReportError: they cannot be written.
        """
        if not self._pending:
            return
        with self._locked_store():
            self._add_rows(self._pending)
        self._pending = []

    def repair(self) -> int:
        """Add the rows of jobs that have none, as of a sweep that was killed; return their number.

        Records that cannot be read are removed, so that their jobs are done again. If a file of
        rows is damaged, all rows are written again.

        Raises:
            ReportError: the rows cannot be written.
        """
        count = 0
        with self._locked_store():
            files = (
                (path, dataset) for dataset in DATASET_COLUMNS for path in self._row_files(dataset)
            )
            if not all(starmap(self._is_readable, files)):
                for path in self._all_row_files():
                    path.unlink()
            self._read_new_keys()
            batch: list[JobResult] = []
            for path in sorted((self.folder / _RECORDS_FOLDER).glob("??/*.json")):
                if not _KEY_NAME.fullmatch(path.stem) or path.stem in self._stored_keys:
                    continue
                try:
                    batch.append(codec.load(path, JobResult))
                except RecordError:
                    path.unlink(missing_ok=True)
                    continue
                if len(batch) >= MAX_PENDING:
                    count += self._add_rows(batch)
                    batch = []
            return count + self._add_rows(batch)

    def remove(self, keys: Collection[str]) -> None:
        """Remove the records and rows of jobs, so that they are done again.

        Raises:
            ReportError: a file cannot be replaced.
        """
        if not keys:
            return
        with self._locked_store():
            for key in keys:
                self._record_path(key).unlink(missing_ok=True)
            for path in self._all_row_files():
                self._remove_rows(path, keys)
            self._stored_keys -= set(keys)

    def _record_path(self, key: str) -> Path:
        return self.folder / _RECORDS_FOLDER / key[:2] / f"{key}.json"

    @contextmanager
    def _locked_store(self) -> Iterator[None]:
        with _disk_errors(self.folder), file_lock(self.folder / ".lock"):
            yield

    def _row_files(self, dataset: str) -> list[Path]:
        files = (self.folder / dataset).glob("*/*/*.parquet")
        return sorted(path for path in files if _KEY_NAME.fullmatch(path.stem))

    def _all_row_files(self) -> Iterator[Path]:
        for dataset in DATASET_COLUMNS:
            yield from self._row_files(dataset)

    def _is_readable(self, path: Path, dataset: str) -> bool:
        """Return whether all rows of the file at `path` can be read."""
        schema = self._arrow_schema(dataset)
        try:
            with open_regular(path) as file:
                self._pyarrow.parquet.read_table(file).cast(schema)
        except (self._pyarrow.ArrowException, ValueError, OSError):
            return False
        return True

    def _read_new_keys(self) -> None:
        """Read the keys of rows that another sweep may have added."""
        for path in self._row_files(_PROFILES_DATASET):
            if path not in self._read_files:
                table = self._pyarrow.parquet.read_table(path, columns=["key"], partitioning=None)
                self._stored_keys.update(table.column("key").unique().to_pylist())
                self._read_files.add(path)

    def _add_rows(self, results: Sequence[JobResult]) -> int:
        """Write the rows of results without any, and return the number of these results."""
        self._read_new_keys()
        new_results = [result for result in results if result.key not in self._stored_keys]
        partitions: dict[tuple[str, str], list[JobResult]] = {}
        for result in new_results:
            partitions.setdefault((result.job.onnxruntime, result.machine), []).append(result)
        makers: dict[str, Callable[[JobResult], Iterable[StoreRow]]] = {
            "findings.parquet": finding_rows,
            "copies.parquet": copy_rows,
            # Last: a job with rows here has all of its rows.
            _PROFILES_DATASET: profile_rows,
        }
        for dataset, make in makers.items():
            for values, partition_results in partitions.items():
                rows = [row for result in partition_results for row in make(result)]
                if rows:
                    path = self._write_rows(dataset, values, rows)
                    if dataset == _PROFILES_DATASET:
                        self._read_files.add(path)
        self._stored_keys.update(result.key for result in new_results)
        return len(new_results)

    def _write_rows(self, dataset: str, values: tuple[str, str], rows: Sequence[StoreRow]) -> Path:
        folder = self.folder / dataset
        for name, value in zip(PARTITION_COLUMNS, values, strict=True):
            folder /= f"{name}={partition_text(value)}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{uuid.uuid4().hex}.parquet"
        self._write_table(
            self._pyarrow.Table.from_pylist(rows, schema=self._arrow_schema(dataset)), path
        )
        return path

    def _write_table(self, table: Any, path: Path) -> None:
        temporary = path.with_name(f".{own_prefix()}{uuid.uuid4().hex}")
        try:
            self._pyarrow.parquet.write_table(table, temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def _remove_rows(self, path: Path, keys: Collection[str]) -> None:
        table = self._pyarrow.parquet.read_table(path, partitioning=None)
        is_removed = self._pyarrow.compute.is_in(
            table.column("key"), value_set=self._pyarrow.array(sorted(keys))
        )
        kept_rows = table.filter(self._pyarrow.compute.invert(is_removed))
        if kept_rows.num_rows == 0:
            path.unlink()
        elif kept_rows.num_rows < table.num_rows:
            self._write_table(kept_rows, path)

    def _arrow_schema(self, dataset: str) -> Any:
        arrow = self._pyarrow
        types = {
            "text": arrow.string(),
            "time": arrow.timestamp("us", tz="UTC"),
            "bytes": arrow.int64(),
            "seconds": arrow.float64(),
            "flag": arrow.bool_(),
        }
        return arrow.schema(
            [(name, types[kind]) for name, kind in DATASET_COLUMNS[dataset].items()]
        )


def profile_rows(result: JobResult) -> Iterator[StoreRow]:
    """Yield the row of the whole job (phase ``all``), and a row for each phase of its profile.

    Resident sets are of the whole process; estimates are above `baseline_bytes`.
    """
    job, profile = result.job, result.profile
    common: StoreRow = {
        "key": result.key,
        "model": job.model,
        "digest": job.digest,
        "address": job.address,
        "memdiag": result.memdiag,
        "dims": job.dims_text,
        "options": job.options_text,
        "started_at": datetime.fromisoformat(result.started_at),
        "status": result.status,
        "sentence": result.sentence,
        "is_alone": result.is_alone,
    }
    point = None
    if profile is not None:
        common["baseline_bytes"] = profile.baseline_rss_bytes
        common["weight_bytes"] = profile.model.weight_bytes
        point = profile.estimate
    whole_row: StoreRow = {"phase": "all", "duration_s": result.duration_s}
    if point is not None:
        whole_row["estimated_peak_bytes"] = point.peak_bytes
        whole_row["estimated_steady_bytes"] = point.steady_bytes
    if profile is not None:
        whole_row["peak_bytes"] = profile.peak_rss_bytes
        whole_row["steady_bytes"] = profile.steady_rss_bytes
        whole_row["kept_bytes"] = profile.end_above_bytes
        if result.is_alone:
            whole_row["latency_s"] = latency_s(profile)
    yield common | whole_row
    for phase in profile.phases if profile is not None else ():
        predicted = point.phase(phase.name) if point is not None else None
        yield common | {
            "phase": phase.name,
            "duration_s": phase.duration_s,
            "peak_bytes": phase.peak_rss_bytes,
            "kept_bytes": phase.net_rss_bytes,
            "estimated_peak_bytes": predicted.peak_bytes if predicted is not None else None,
        }


def finding_rows(result: JobResult) -> Iterator[StoreRow]:
    """Yield a row for each finding, without those that a measurement refuted."""
    for finding in result.profile.findings if result.profile is not None else ():
        if finding.evidence != "refuted":
            yield {
                "key": result.key,
                "model": result.job.model,
                "rule": finding.name,
                "bytes_steady": finding.bytes,
                "bytes_peak": finding.peak_bytes,
                "message": finding.message,
                "remedy": finding.remedies[0] if finding.remedies else "",
            }


def copy_rows(result: JobResult) -> Iterator[StoreRow]:
    """Yield a row for each copy of a weight in memory."""
    profile = result.profile
    if profile is None or profile.attribution is None:
        return
    for copy in profile.attribution.copies:
        yield {
            "key": result.key,
            "model": result.job.model,
            "weight": copy.weights[0] if copy.weights else "",
            "layout": copy.layout,
            "owner": copy.made_by or "",
            "bytes": copy.resident_bytes,
            "mapped_bytes": copy.resident_bytes if copy.backing.kind == "file" else 0,
        }


def job_column(folder: Path, column: str) -> dict[str, Any]:
    """Return a column of the rows of whole jobs in the store at `folder`, by key."""
    arrow = require_pyarrow()
    value_by_key: dict[str, Any] = {}
    for path in (folder / _PROFILES_DATASET).glob("*/*/*.parquet"):
        table = arrow.parquet.read_table(
            path,
            columns=["key", column],
            partitioning=None,
            filters=[("phase", "=", "all")],
        )
        keys, values = (table.column(name).to_pylist() for name in ("key", column))
        value_by_key.update(zip(keys, values, strict=True))
    return value_by_key


def latency_s(profile: Profile) -> float | None:
    """Return the median latency of the runs after the first; None without any."""
    from statistics import median

    return median(run.latency_s for run in profile.runs) if profile.runs else None


def check_version(folder: Path, *, is_required: bool = True) -> None:
    """Check that `folder` is a store that this version of memdiag reads.

    Args:
        folder: the folder.
        is_required: whether the store has to exist.

    Raises:
        RecordError: it is of another memdiag, or contains something else, or does not exist, or a
            folder in it is a link.
    """
    path = folder / _VERSION_FILE
    _check_links(folder)
    if not path.exists():
        if is_required:
            raise RecordError(f"{folder}: there is no store of sweeps. Check the path.")
        if folder.exists() and not folder.is_dir():
            raise RecordError(f"{folder}: cannot be a store (it is a file). Name a folder.")
        return
    try:
        version = msgspec.json.decode(read_regular(path), type=dict[str, int]).get("version")
    except (OSError, msgspec.DecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RecordError(
            f"{path}: not a store of sweeps ({reason}). Name another folder."
        ) from error
    if version != STORE_VERSION:
        raise RecordError(
            f"{folder}: this store is of another memdiag (its version is {version}, not"
            f" {STORE_VERSION}). Name another folder."
        )


def _check_links(folder: Path) -> None:
    """Raise RecordError if a folder in the store at `folder` leads out of it."""
    for name in (_RECORDS_FOLDER, *DATASET_COLUMNS):
        store_folder = folder / name
        subfolders = (
            Path(parent, folder_name)
            for parent, folders, _ in os.walk(store_folder)
            for folder_name in folders
        )
        for path in chain((store_folder,), subfolders):
            if path.is_symlink():
                raise RecordError(
                    f"{path}: a folder in a store cannot be a link. Put the folder itself there."
                )


def partition_text(value: str) -> str:
    """Return `value` as the name of a hive partition: other characters are percent-encoded."""
    from urllib.parse import quote

    return quote(value, safe=" ") or "unknown"


def require_pyarrow() -> ModuleType:
    """Return pyarrow.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            "a sweep needs pyarrow, which is not installed. Install it:"
            " pip install 'memdiag[sweep]'."
        ) from error
    module: ModuleType = pyarrow
    return module


def save_if_missing(path: Path, content: bytes, *, folder: Path | None = None) -> bool:
    """Write `content` to `path`, whole or not at all; return False if the file exists.

    Args:
        path: the file. Its folder is created.
        content: the content.
        folder: the folder for the temporary file, on the same file system; by default that of
            `path`.

    Raises:
        ReportError: it cannot be written.
    """
    if path.exists():
        return False
    with _disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = (folder or path.parent) / f".{own_prefix()}{uuid.uuid4().hex}"
        try:
            temporary.write_bytes(content)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            except OSError as error:  # a file system without links
                if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP):
                    raise
                os.replace(temporary, path)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
    return True


@contextmanager
def row_errors(folder: Path) -> Iterator[None]:
    """Raise errors of pyarrow while the rows of the store `folder` are read, as RecordError."""
    try:
        yield
    except (require_pyarrow().ArrowException, OSError) as error:
        raise RecordError(
            f"{folder}: its rows cannot be read ({error}). Run a sweep with --out {folder}, which"
            " writes them again."
        ) from error


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Raise errors of files, such as of a full disk, as ReportError."""
    try:
        yield
    except OSError as error:
        action = "Free space, or name" if error.errno in _FULL_DISK_ERRORS else "Name"
        raise ReportError(
            f"{path}: cannot be written ({error.strerror or error}). {action} another folder with"
            " --out. The jobs that were stored stay done."
        ) from error
