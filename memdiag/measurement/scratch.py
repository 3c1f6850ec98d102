"""Temporary files and processes that do not outlive memdiag, even when it is killed.

The name of a temporary file or folder starts with ``memdiag-PID-``. What a killed process left is
removed by the next one that uses the same folder.
"""

import contextlib
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

_OWNED = re.compile(r"\.?memdiag-(\d+)-.+")
DIE_WITH_PARENT = (
    "import ctypes, os, sys\n"
    "if sys.platform == 'linux':\n"
    "    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)\n"  # PR_SET_PDEATHSIG, SIGKILL
    "    if os.getppid() != int(sys.argv[1]):\n"
    "        os._exit(3)\n"
)
"""Python whose process is killed when its parent, whose process number it is given, ends."""

_EXECUTE = f"{DIE_WITH_PARENT}os.execvp(sys.argv[2], sys.argv[2:])\n"


def own_prefix() -> str:
    """Return what the name of a temporary file of this process starts with."""
    return f"memdiag-{os.getpid()}-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a temporary folder for the while; remove what killed processes left beside it."""
    remove_stale(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=own_prefix()) as folder:
        yield Path(folder)


def remove_stale(folder: Path) -> None:
    """Remove from `folder` the temporary files and folders of memdiag processes that have ended.

    Only those of the same user, and nothing where the folder cannot be listed.
    """
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            owner = _OWNED.fullmatch(entry.name)
            if owner is None or _is_running(int(owner[1])):
                continue
            status = entry.stat(follow_symlinks=False)
            if hasattr(os, "getuid") and status.st_uid != os.getuid():
                continue
            if stat.S_ISDIR(status.st_mode):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


def ending_with_us(words: Sequence[str]) -> list[str]:
    """Return a command that runs `words`, and on Linux is killed when this process ends."""
    if sys.platform != "linux":
        return [*words]
    return [sys.executable, "-I", "-S", "-c", _EXECUTE, str(os.getpid()), *words]


def _is_running(pid: int) -> bool:
    try:
        return bool(psutil.pid_exists(pid))
    except OverflowError:
        return False
