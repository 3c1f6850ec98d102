"""Other allocators: where this system has their libraries."""

import sys
from pathlib import Path

_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
)


def library(name: str) -> str | None:
    """Return the path of the shared library `name`, where the system's loader would have it."""
    if sys.platform != "linux":
        return None
    return next((str(path) for path in (Path(at, name) for at in _FOLDERS) if path.exists()), None)
