"""Reading of files whose paths the user gives: regular files only, and never waiting for a pipe."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

from memdiag.units import MIB, format_size

MAX_REGULAR_FILE_BYTES = 16 * MIB
"""Maximum size of files with settings or lists."""


class NotRegularError(OSError):
    """The file is a pipe or a device: reading it may never end."""


def open_regular(path: Path | str) -> BufferedReader:
    """Return the regular file at `path`, links followed, opened for reading.

    Raises:
        NotRegularError: it is a pipe or a device.
        OSError: it cannot be opened.
        ValueError: no file can have that name.
    """
    file = open(path, "rb", opener=open_without_waiting)  # noqa: SIM115 (the caller closes it)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise NotRegularError(errno.EINVAL, "not a regular file", str(path))
    return file


def read_regular(path: Path | str, max_bytes: int = MAX_REGULAR_FILE_BYTES) -> bytes:
    """Return the content of the regular file at `path`.

    Raises:
        OSError, ValueError: as `open_regular`, and if it has more than `max_bytes`.
    """
    with open_regular(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {format_size(max_bytes)}", str(path))
    return data


def open_without_waiting(path: str, flags: int) -> int:
    """Return the descriptor of the opened file; for the argument `opener` of the function `open`.

    Without it, opening a pipe waits until another process opens the other end.

    Raises:
        OSError: it cannot be opened; ENXIO for writing to a pipe that no process reads.
    """
    return os.open(path, flags | os.O_NONBLOCK)
