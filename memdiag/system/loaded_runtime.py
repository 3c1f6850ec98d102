"""The onnxruntime that a process has loaded, by the files that it maps.

It is a module of its own because a recording needs it at its start: it imports nothing large.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_VERSION_PATTERN = r"(\d+\.\d+\.\d+)"
_LIBRARY_NAME = re.compile(r"onnxruntime[^/]*\.(so|node)\b[^/]*$")
_VERSION_IN_NAME = re.compile(rf"\.so\.{_VERSION_PATTERN}$")
_VERSION_IN_FOLDER = re.compile(rf"onnxruntime[^/]*-{_VERSION_PATTERN}/")
_PACKAGE_FILES = ("capi/build_and_package_info.py", "package.json")
_PACKAGE_NAME = re.compile(r"""^\s*"?(?:package_)?name"?\s*[=:]\s*["']([^"']+)""", re.MULTILINE)
_PACKAGE_VERSION = re.compile(
    rf"""^\s*"?(?:__)?version(?:__)?"?\s*[=:]\s*["']{_VERSION_PATTERN}""", re.MULTILINE
)
_MAX_PARENTS = 6


class LoadedRuntime(NamedTuple):
    """The library of onnxruntime that a process has loaded.

    Attributes:
        version: the release; None if neither the path nor the package of the library has it.
        build: the Python distribution or the npm package; None for another library.
    """

    version: str | None
    build: str | None


def loaded_runtime(pid: int) -> LoadedRuntime | None:
    """Return the onnxruntime in process `pid`; None if the process has none, or cannot be read."""
    try:
        maps = os.fsdecode(Path(f"/proc/{pid}/maps").read_bytes())
    except OSError:
        return None
    paths = {fields[5] for line in maps.splitlines() if len(fields := line.split(maxsplit=5)) == 6}
    libraries = sorted(path for path in paths if _LIBRARY_NAME.search(path))
    if not libraries:
        return None
    # The process may see other files than this one, as in a container.
    root = Path(f"/proc/{pid}/root")
    runtimes = [_runtime_of_library(library, root) for library in libraries]
    return max(
        runtimes, key=lambda runtime: (runtime.version is not None, runtime.build is not None)
    )


def _runtime_of_library(library: str, root: Path) -> LoadedRuntime:
    for parent in list(Path(library).parents)[:_MAX_PARENTS]:
        if not parent.name.startswith("onnxruntime"):
            continue
        for name in _PACKAGE_FILES:
            with suppress(OSError):
                text = (root / str(parent / name).lstrip("/")).read_text(errors="replace")
                package, version = _PACKAGE_NAME.search(text), _PACKAGE_VERSION.search(text)
                if package and version:
                    return LoadedRuntime(version[1], package[1])
    version_match = _VERSION_IN_NAME.search(library) or _VERSION_IN_FOLDER.search(library)
    return LoadedRuntime(version_match[1] if version_match else None, None)
