"""One measuring child at a time, among all processes of this user that ask for a turn."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memdiag.errors import MeasurementError

if sys.platform == "win32":
    import msvcrt

    def _wait(file: int) -> None:
        while True:
            try:
                msvcrt.locking(file, msvcrt.LK_LOCK, 1)
            except OSError:  # it gives up after ten seconds
                continue
            return
else:
    import fcntl

    def _wait(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX)


def turn_file() -> Path:
    """Return the file that is locked for the turn: one a user, in the folder for temporary files.

    Processes that see different such folders do not wait for each other.
    """
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
    return Path(tempfile.gettempdir()) / f"memdiag-{user}.lock"


@contextmanager
def turn() -> Iterator[None]:
    """Wait until nobody else has the turn, and have it for the block; it ends with the process.

    Raises:
        MeasurementError: the file that is locked for it cannot be opened.
    """
    path = turn_file()
    # No following of links: the folder is everybody's.
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    try:
        file = os.open(path, flags, 0o600)
    except OSError as error:
        raise MeasurementError(
            f"{path}: cannot be opened for waiting one's turn ({error.strerror}); remove it."
        ) from error
    try:
        _wait(file)
        yield
    finally:
        # Closing it lets go of the lock.
        os.close(file)
