"""Locks of files, for which processes wait. They are released when their process ends."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def lock_open_file(file: int) -> None:
        """Lock the open file with descriptor `file`; waits until no other process has it locked."""
        while True:
            try:
                msvcrt.locking(file, msvcrt.LK_LOCK, 1)
            except OSError:  # it gives up after ten seconds
                continue
            return
else:
    import fcntl

    def lock_open_file(file: int) -> None:
        """Lock the open file with descriptor `file`; waits until no other process has it locked."""
        fcntl.flock(file, fcntl.LOCK_EX)


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Lock the file at `path`, which is created, for the block.

    Raises:
        OSError: it cannot be opened.
    """
    with path.open("ab") as file:
        lock_open_file(file.fileno())
        yield
