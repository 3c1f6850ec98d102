"""A lock of all processes of a user, so that one of them measures at a time."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memdiag.errors import MeasurementError
from memdiag.records.file_lock import lock_open_file


def lock_file() -> Path:
    """Return the file that is locked: one per user, in the folder for temporary files.

    Processes with different such folders do not wait for each other.
    """
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
    return Path(tempfile.gettempdir()) / f"memdiag-{user}.lock"


@contextmanager
def measurement_lock() -> Iterator[None]:
    """Acquire the lock for the block; waits until it is free. It is released with the process.

    Raises:
        MeasurementError: the lock file cannot be opened.
    """
    path = lock_file()
    # Links are not followed: everyone can write to the folder.
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    try:
        file = os.open(path, flags, 0o600)
    except OSError as error:
        raise MeasurementError(
            f"{path}: the measurement lock cannot be opened ({error.strerror}). Remove this file."
        ) from error
    try:
        lock_open_file(file)
        yield
    finally:
        os.close(file)  # releases the lock
