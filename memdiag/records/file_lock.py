"""Locks of files, for which processes wait. They are released when their process ends."""

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from memdiag.regular_files import open_without_waiting

MAX_FOLDER_WAIT_S = 10.0
"""Renaming files takes milliseconds. Whatever locks a folder for longer does something else."""


def lock_open_file(file: int) -> None:
    """Lock the open file with descriptor `file`; waits until no other process has it locked."""
    fcntl.flock(file, fcntl.LOCK_EX)


def _lock_folder(folder: int) -> None:
    """Lock the open folder with descriptor `folder`; waits for a limited time.

    Raises:
        OSError: it cannot be locked.
    """
    deadline = time.monotonic() + MAX_FOLDER_WAIT_S
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Lock the file at `path` for the block, and create it if it is missing.

    Raises:
        OSError: it cannot be opened.
    """
    with open(path, "ab", opener=open_without_waiting) as file:
        lock_open_file(file.fileno())
        yield


@contextmanager
def locked_folders(folders: Iterable[Path]) -> Iterator[None]:
    """Lock `folders` for the block, in which several files are renamed.

    Nothing is written for the lock. It has no effect if a folder cannot be locked, or if another
    process, such as one of another user, keeps its lock for `MAX_FOLDER_WAIT_S`.
    """
    with ExitStack() as stack:
        for folder in sorted(set(folders)):  # all processes in the same order
            with suppress(OSError):
                descriptor = os.open(folder, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                _lock_folder(descriptor)
        yield
