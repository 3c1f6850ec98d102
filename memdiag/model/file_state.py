"""States of a model's files, to detect changes during a command."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self

from memdiag.errors import ModelError


class FileState(NamedTuple):
    """Size, time of modification and inode of a file."""

    size: int
    mtime_ns: int
    inode: int


class FileStates:
    """The states of a model's files when this object is created.

    As a context manager it raises ModelError at the end of a block during which a file changed,
    also in place of an error that may be a consequence of the change.

    Args:
        model: the path of the model, as it was given.
        files: the model's own file and its external files.
    """

    def __init__(self, model: Path, files: Iterable[Path]) -> None:
        self._model = model
        self._states = {file: _state_of_file(file) for file in files}

    @property
    def changed(self) -> bool:
        """Whether a file was changed, replaced or removed since this object was created."""
        return any(_state_of_file(file) != state for file, state in self._states.items())

    @property
    def sentence(self) -> str:
        """The message to the user about a change of the files."""
        return (
            f"{self._model}: changed during the command. Run the command again when the file is"
            " complete."
        )

    def check(self) -> None:
        """Compare the files with their states when this object was created.

        Raises:
            ModelError: a file was changed, replaced or removed.
        """
        if self.changed:
            raise ModelError(self.sentence)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None or isinstance(error, Exception):
            self.check()


def _state_of_file(path: Path) -> FileState | None:
    """Return the state of the file at `path`; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return FileState(status.st_size, status.st_mtime_ns, status.st_ino)
