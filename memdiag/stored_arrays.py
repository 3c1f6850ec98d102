"""Arrays in files that the user gives: ``.npy`` files and ``.npz`` archives.

Only the header of an array is read at first, as an archive of some megabytes can have arrays of
gigabytes. Names, types and shapes are compared with the model before the data is read.
"""

import os
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from memdiag.errors import UsageError
from memdiag.regular_files import open_regular

MAX_ARRAYS = 1000
"""Arrays of one archive; a decoder of 80 layers has 162 inputs."""

_NPY_SUFFIX = ".npy"
_ARCHIVE_STARTS = (b"PK\x03\x04", b"PK\x05\x06")  # the second of an archive without arrays
_HEADER_VERSIONS = ((1, 0), (2, 0), (3, 0))


@dataclass(frozen=True)
class StoredArray:
    """An array in a file, whose data `numpy.asarray` reads.

    Attributes:
        path: the ``.npy`` file or ``.npz`` archive.
        member: the file in the archive; empty for a ``.npy`` file.
        shape, dtype: as in the header of the array.
    """

    path: Path
    member: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> np.ndarray[Any, Any]:
        """Return the array.

        Raises:
            UsageError: the data cannot be read, or no longer matches the header.
        """
        with _open_array_file(self.path) as file:
            if self.member:
                with zipfile.ZipFile(file) as archive, archive.open(self.member) as stream:
                    array = np.lib.format.read_array(stream, allow_pickle=False)
                    if stream.read(1):  # the checksum is compared at the end
                        raise ValueError(f"{self.member!r} is longer than its array")
            else:
                array = np.lib.format.read_array(file, allow_pickle=False)
            if (array.shape, array.dtype) != (self.shape, self.dtype):
                raise ValueError("it changed while it was read")
        return array if dtype is None else array.astype(dtype)


GivenArray = np.ndarray[Any, Any] | StoredArray
"""The data of an input that the user gives."""


def stored_array(path: Path) -> StoredArray:
    """Return the array in the ``.npy`` file at `path`.

    Raises:
        UsageError: the file cannot be read, or is an archive.
    """
    if _is_archive(path):
        raise UsageError(
            f"{path}: this is an archive of arrays. Give it as --input {path}, without a name."
        )
    with _open_array_file(path) as file:
        return StoredArray(path, "", *_read_header(file, os.fstat(file.fileno()).st_size))


def read_archive(path: Path) -> dict[str, StoredArray]:
    """Return the arrays of an ``.npz`` file by name.

    Raises:
        UsageError: the file is not a readable archive of arrays.
    """
    if not _is_archive(path):
        raise UsageError(
            f"{path}: not an .npz archive. Give a single array as --input NAME=FILE.npy."
        )
    arrays = {}
    with _open_array_file(path) as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if not 0 < len(members) <= MAX_ARRAYS:
            raise ValueError(f"it has {len(members):,} arrays, not 1 to {MAX_ARRAYS:,}")
        for member in members:
            with archive.open(member) as stream:
                header = _read_header(stream, member.file_size)
            name = member.filename
            arrays[name.removesuffix(_NPY_SUFFIX)] = StoredArray(path, name, *header)
    return arrays


def _is_archive(path: Path) -> bool:
    with _open_array_file(path) as file:
        return file.read(4) in _ARCHIVE_STARTS


@contextmanager
def _open_array_file(path: Path) -> Iterator[IO[bytes]]:
    """Open the file at `path` for the block, and raise any error in the block as a UsageError.

    Raises:
        UsageError: the file cannot be opened, or the block fails.
    """
    try:
        # Headers are Python literals, about which its parser may warn.
        with open_regular(path) as file, warnings.catch_warnings(action="ignore"):
            yield file
    except MemoryError as error:
        raise UsageError(
            f"{path}: an array in it does not fit in memory. Use a smaller one."
        ) from error
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror or error}). Check the path."
        ) from error
    except Exception as error:  # zipfile, its decompressors and numpy raise many types
        raise UsageError(f"{path}: cannot be read as arrays ({error}). Save it again.") from error


def _read_header(stream: IO[bytes], size: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and type from the header at the start of `stream`, a file of `size` bytes.

    Raises:
        ValueError: the header is not valid, or the file is shorter than its array.
    """
    version = np.lib.format.read_magic(stream)
    if version not in _HEADER_VERSIONS:
        raise ValueError(f"version {version} of its format")
    # The third version differs only in UTF-8 names of fields, which no input of a model has.
    is_first = version == _HEADER_VERSIONS[0]
    read_header = (
        np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read_header(stream)
    if dtype.hasobject:
        raise ValueError("an array of Python objects")
    if min(shape, default=0) < 0:
        raise ValueError(f"an array of the shape {list(shape)}")
    end = stream.tell() + prod(shape) * dtype.itemsize
    if size < end:
        raise ValueError(f"{size:,} bytes, where its array ends at {end:,}")
    return shape, dtype
