"""A lock of all processes of a user, so that one of them measures at a time."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from memdiag.comparison.environments import cache_folder
from memdiag.records.file_lock import lock_open_file


def lock_files() -> Iterator[Path]:
    """Yield the files of which the first that is this user's own is locked.

    It is in the folder for temporary files: processes with different such folders do not wait for
    each other. Where another user has put something in its place, it is in the cache.
    """
    for folder in (Path(tempfile.gettempdir()), cache_folder()):
        yield folder / f"memdiag-{os.getuid()}.lock"


@contextmanager
def measurement_lock() -> Iterator[None]:
    """Acquire the lock for the block; waits until it is free. It is released with the process.

    If no file can be locked that is this user's own, the block does not wait: another user could
    let it wait forever.
    """
    file = _open_own_file()
    if file is None:
        yield
        return
    try:
        lock_open_file(file)
        yield
    finally:
        os.close(file)  # releases the lock


def _open_own_file() -> int | None:
    """Return a descriptor of the first lock file that nobody else can open; None without any."""
    # Links are not followed: everyone can write to the folder for temporary files.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    for path in lock_files():
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, flags, 0o600)
            if _is_own_private_file(os.fstat(file)):
                return file
            os.close(file)
    return None


def _is_own_private_file(status: os.stat_result) -> bool:
    is_private = not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and is_private
