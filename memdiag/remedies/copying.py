"""Copying ranges of bytes from file to file, no more than `_CHUNK` of them in memory at once."""

import errno
import mmap
import os
from io import FileIO
from pathlib import Path

_CHUNK = 8 << 20
_SHORTER = "a file of the model became shorter"
_SMALLEST_MAPPED = 1 << 20
"""Less than this is read and written sooner than a mapping is made."""

_POPULATE_READ = 22
"""MADV_POPULATE_READ of Linux 5.14 and later, for which Python has no name (madvise(2))."""


def copy_range(path: Path, offset: int, length: int, out: FileIO) -> None:
    """Append `length` bytes of the file at `path`, from `offset` on, at the position of `out`.

    What starts with a page in both files is left to the kernel, which shares the blocks where the
    file system can. It takes half as long again for other ranges, those inside a model's file, than
    writing them from a mapping of the file does.

    Raises:
        OSError: a file cannot be read or written, or the one at `path` is shorter.
    """
    end = offset + length
    with path.open("rb", buffering=0) as file:
        if offset % mmap.PAGESIZE == out.tell() % mmap.PAGESIZE == 0:
            offset = _copied_by_kernel(file, offset, end, out)
        elif length >= _SMALLEST_MAPPED:
            offset = _copied_from_mapping(file, offset, end, out)
        file.seek(offset)
        while offset < end:
            chunk = file.read(min(end - offset, _CHUNK))
            if not chunk:
                raise OSError(errno.EIO, _SHORTER)
            write(out, chunk)
            offset += len(chunk)


def write(out: FileIO, data: bytes | memoryview) -> None:
    """Write all of `data`: where space ends a file without a buffer takes a part without a word."""
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += out.write(view[done:])


def _copied_by_kernel(file: FileIO, offset: int, end: int, out: FileIO) -> int:
    """Return up to where the bytes were copied: nowhere between some file systems."""
    while offset < end and hasattr(os, "copy_file_range"):
        try:
            done = os.copy_file_range(
                file.fileno(), out.fileno(), min(end - offset, 1 << 30), offset
            )
        except OSError:
            break
        if not done:
            break
        offset += done
    return offset


def _copied_from_mapping(file: FileIO, offset: int, end: int, out: FileIO) -> int:
    """Return up to where the bytes were written from a mapping: nowhere where it cannot be had.

    A chunk's pages are mapped before it is written: one by one they would take longer than writing
    them, and where the file became shorter meanwhile this fails, while touching them would kill.
    """
    try:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return offset
    with mapping, memoryview(mapping) as view:
        while offset < end <= len(view):
            until = min(offset + _CHUNK, end)
            first = offset // mmap.PAGESIZE * mmap.PAGESIZE
            try:
                mapping.madvise(_POPULATE_READ, first, until - first)
            except (OSError, ValueError, AttributeError):  # an older or another system
                return offset
            with view[offset:until] as chunk:
                write(out, chunk)
            mapping.madvise(mmap.MADV_DONTNEED, first, until - first)
            offset = until
    if os.fstat(file.fileno()).st_size < end:  # the rest of its last page was zeros
        raise OSError(errno.EIO, _SHORTER)
    return offset
