"""Writing of files: whole or not at all, following links, and never replacing a device."""

import contextlib
import errno
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from memdiag.errors import ReportError
from memdiag.interrupts import delayed_interrupts
from memdiag.records.file_lock import locked_folders
from memdiag.temporary_names import own_prefix

_SPECIAL_FILE_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_STANDARD_STREAMS = (1, 2)
MAX_READER_WAIT_S = 5.0


def save_bytes(content: bytes, path: Path) -> None:
    """Write `content` to `path`: a file whole or not at all; a pipe or a character device as it is.

    The folder of a file is created if it is missing.

    Raises:
        ReportError: the file cannot be written.
    """
    stream = _open_stream(path)
    if stream is None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable_error(path, error) from error
        save_files([(path, content)])
        return
    try:
        with open(stream, "wb") as file:
            file.write(content)
    except OSError as error:
        raise _unwritable_error(path, error) from error


def unused_data_notes(files: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence on weights of an earlier model that are left next to a new model.

    `files` are the files of the new model, the model first. Its weights are in a file with its name
    and the suffix ``.data``.
    """
    data_file = f"{files[0]}.data" if files else ""
    if not data_file or data_file in files or not os.path.exists(data_file):
        return ()
    return (f"{data_file} was there before, and the new {files[0]} does not use it",)


def require_writable(path: Path) -> None:
    """Check that a file can be created at `path`, before the work whose result it will contain.

    Raises:
        ReportError: `path` is a folder, or no file can be created in its folder.
    """
    if path.is_dir():
        raise ReportError(f"{path}: cannot be written (it is a folder). Choose another file.")
    if special_kind(path) is not None:
        return  # written as it is
    folder = Path(os.path.realpath(path)).parent
    while not folder.exists():
        folder = folder.parent
    # Also where the file exists: it is replaced.
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ReportError(
            f"{path}: cannot be written (no file can be created in {folder}). Choose another file."
        )


def save_files(contents: Iterable[tuple[Path, bytes]]) -> None:
    """Write files with their contents: all of them, or none if an error occurs.

    All files are written next to their targets before the first one replaces its target, so that an
    error leaves the files as they were, and never half a file. If two processes write the same
    files at once, one replaces all files of the other.

    Raises:
        ReportError: a file cannot be written, or isn't a regular file.
    """
    staged: list[tuple[Path, Path, Path]] = []
    path = Path()
    try:
        for path, content in contents:
            target = resolve_output(path)
            temporary = target.with_name(f".{own_prefix()}{secrets.token_hex(8)}")
            staged.append((path, temporary, target))
            with temporary.open("xb") as file:
                file.write(content)
        folders = {target.parent for _, _, target in staged}
        with locked_folders(folders), delayed_interrupts():
            for staged_path, temporary, target in staged:
                path = staged_path  # for the error
                os.replace(temporary, target)
    except (OSError, ValueError) as error:
        raise _unwritable_error(path, error) from error
    finally:
        for _, temporary, _ in staged:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def resolve_output(path: Path) -> Path:
    """Return the regular file that `path` names, links followed, whether it exists or not.

    Raises:
        ReportError: it is a folder, pipe, device or socket.
    """
    kind = special_kind(path)
    if kind is not None:
        raise ReportError(f"{path}: cannot be written (it is {kind}). Choose another file.")
    return Path(os.path.realpath(path))


def special_kind(path: Path) -> str | None:
    """Return the kind of the file at `path`, such as "a pipe"; None for a regular file or nothing.

    Raises:
        ReportError: the file system does not report the kind.
    """
    mode = _file_mode(path)
    if mode is None or stat.S_ISREG(mode):
        return None
    return _SPECIAL_FILE_KINDS.get(stat.S_IFMT(mode), "no regular file")


def _open_stream(path: Path) -> int | None:
    """Return a descriptor to write to the pipe or character device at `path`; None for others.

    A file to which standard output or error is redirected is such a stream, too: replacing
    ``/dev/stdout`` would lose the rest of the output.
    """
    mode = _file_mode(path)
    if mode is None or not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISREG(mode)):
        return None
    try:
        for number in _STANDARD_STREAMS:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(path), os.fstat(number)):
                    sys.stdout.flush()
                    return os.dup(number)
        if stat.S_ISREG(mode):
            return None
        return _open_special(path)
    except OSError as error:
        raise _unwritable_error(path, error) from error


def _open_special(path: Path) -> int:
    """Return a descriptor to write to a pipe or device; wait a while for a reader of the pipe.

    Raises:
        OSError: it cannot be opened; ENXIO if no process reads from the pipe.
    """
    deadline = time.monotonic() + MAX_READER_WAIT_S
    while True:
        try:
            stream = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            os.set_blocking(stream, True)
            return stream


def _file_mode(path: Path) -> int | None:
    """Return the mode of the file at `path`, following links; None if it does not exist."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _unwritable_error(path, error) from error


def _unwritable_error(path: Path, error: OSError | ValueError) -> ReportError:
    reason = error.strerror if isinstance(error, OSError) else error
    if isinstance(error, OSError) and error.errno == errno.ENXIO:
        reason = "no process reads from it"
    return ReportError(f"{path}: cannot be written ({reason}). Choose another file or free space.")
