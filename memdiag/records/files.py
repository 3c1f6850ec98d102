"""Writing a file whole or not at all."""

import os
from pathlib import Path

from memdiag.errors import ReportError


def save_bytes(content: bytes, path: Path) -> None:
    """Write `content` to `path`, whole or not at all.

    Raises:
        ReportError: the file cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise ReportError(
            f"{path}: cannot be written ({error.strerror}); choose another file."
        ) from error
