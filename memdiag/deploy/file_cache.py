"""The page cache of files: a group is charged for a page only if it is the first to read it.

A new container on a node is often the first to read its files. A trial is not, because the trial
before it has read the same files. They are therefore dropped from the cache before each trial.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def drop_from_page_cache(files: Iterable[Path]) -> None:
    """Drop the contents of `files` from the page cache, except pages that a process maps."""
    for path in files:
        with suppress(OSError):  # the file was removed, or is not readable
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(descriptor)  # pages that are not yet written stay
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def mapped_files(pid: int) -> frozenset[Path]:
    """Return the files that process `pid` maps; an empty set if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return frozenset()
    fields = (line.split(maxsplit=5) for line in lines)
    names = {field[5] for field in fields if len(field) == 6}
    return frozenset(Path(name) for name in names if name.startswith("/"))


def mapped_file_bytes(pid: int) -> int:
    """Return the resident bytes of files that process `pid` maps; 0 if it has ended."""
    resident_bytes = 0
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(("RssFile:", "RssShmem:")):
                resident_bytes += int(line.split()[1]) << 10
    return resident_bytes
