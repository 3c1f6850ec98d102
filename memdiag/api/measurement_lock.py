"""A lock between all processes of a user, so that only one of them measures at a time."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from memdiag.comparison.environments import cache_folder
from memdiag.records.file_lock import lock_open_file


def lock_files() -> Iterator[Path]:
    """Yield the candidates for the lock file. The first one that belongs to this user is locked.

    It is in the folder for temporary files: processes with different folders do not wait for each
    other. If another user has put something in its place, the lock file is in the cache.
    """
    for folder in (Path(tempfile.gettempdir()), cache_folder()):
        yield folder / f"memdiag-{os.getuid()}.lock"


@contextmanager
def measurement_lock() -> Iterator[None]:
    """Wait for the lock, and hold it during the block. The end of the process releases it, too.

    If no file of this user can be locked, the block does not wait: another user could make it wait
    forever.
    """
    descriptor = _open_own_file()
    if descriptor is None:
        yield
        return
    try:
        lock_open_file(descriptor)
        yield
    finally:
        os.close(descriptor)  # releases the lock


def _open_own_file() -> int | None:
    """Return a descriptor of the first lock file that nobody else can open; None without any."""
    # Links are not followed: everyone can write to the folder for temporary files.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    for path in lock_files():
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, flags, 0o600)
            if _is_own_private_file(os.fstat(descriptor)):
                return descriptor
            os.close(descriptor)
    return None


def _is_own_private_file(status: os.stat_result) -> bool:
    is_private = not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and is_private
