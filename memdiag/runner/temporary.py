"""Temporary files and processes that do not outlive memdiag, even if it is killed.

The next process of the same machine or container that uses the same folder removes what a killed
process left; a process elsewhere removes it after a week. Only folders in which gigabytes may be
left are cleaned: the folder for temporary files, memdiag's cache, and folders to which models are
written. A file is removed only if memdiag chose its name (`memdiag.temporary_names`).
"""

import contextlib
import errno
import os
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from memdiag.errors import MeasurementError
from memdiag.temporary_names import TemporaryFileOwner, own_prefix, temporary_file_owner

_ABANDONED_S = 7 * 24 * 3600.0
_PR_SET_PDEATHSIG = 1
_PARENT_ENDED = 3
DIE_WITH_PARENT = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)\n"  # PR_SET_PDEATHSIG, SIGKILL
    "if os.getppid() != int(sys.argv[1]):\n"
    "    os._exit(3)\n"
)
"""Python code of a process that ends with its parent, whose process number is its argument."""

_EXECUTE_CODE = f"{DIE_WITH_PARENT}os.execvp(sys.argv[2], sys.argv[2:])\n"


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Create a temporary folder for the block, and remove the folders of killed processes.

    Raises:
        MeasurementError: it cannot be created, or the block fails because there is no space in it.
    """
    with created_folder() as folder:
        try:
            yield Path(folder)
        except OSError as error:
            # numpy's error has only a text, without a number.
            is_short = error.errno is None and "requested and" in str(error)
            if is_short or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                reason = error.strerror or os.strerror(errno.ENOSPC)
                failure = MeasurementError(
                    f"temporary folder {folder}: {reason}. Set TMPDIR to a folder with more space."
                )
                for note in getattr(error, "__notes__", ()):
                    failure.add_note(note)
                raise failure from error
            raise


def created_folder() -> tempfile.TemporaryDirectory[str]:
    """Create a temporary folder, and remove the folders of killed processes.

    Raises:
        MeasurementError: it cannot be created.
    """
    try:
        remove_stale(Path(tempfile.gettempdir()))
        return tempfile.TemporaryDirectory(prefix=own_prefix())
    except OSError as error:
        raise MeasurementError(
            f"no temporary folder can be created ({error.strerror}). Set TMPDIR to a folder that"
            " can be written."
        ) from error


def remove_stale(folder: Path) -> None:
    """Remove from `folder` the temporary files and folders of memdiag processes that have ended.

    Only files of the same user are removed. It is unknown here whether a process of another machine
    or container still runs: its files are removed if they did not change for a week. A folder that
    cannot be listed is left as it is.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            owner = temporary_file_owner(entry.name)
            if owner is not None:
                with contextlib.suppress(OSError):  # its own process may remove it first
                    _remove_if_stale(entry, owner)


def _remove_if_stale(entry: os.DirEntry[str], owner: TemporaryFileOwner) -> None:
    if owner.is_here and _is_running(owner.pid):
        return
    status = entry.stat(follow_symlinks=False)
    if not owner.is_here and time.time() - status.st_mtime < _ABANDONED_S:
        return
    if status.st_uid != os.getuid():
        return
    if stat.S_ISDIR(status.st_mode):
        shutil.rmtree(entry.path, ignore_errors=True)
    else:
        os.unlink(entry.path)


def end_with(parent: int) -> None:
    """Ask the kernel to kill this process when `parent`, which forked it, ends."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(_PARENT_ENDED)


def ending_with_parent(words: Sequence[str]) -> list[str]:
    """Return a command that runs `words`, and is killed when this process ends."""
    return [sys.executable, "-I", "-S", "-c", _EXECUTE_CODE, str(os.getpid()), *words]


def _is_running(pid: int) -> bool:
    import psutil  # imported here, because most commands find no stale files

    try:
        return bool(psutil.pid_exists(pid))
    except OverflowError:
        return False
