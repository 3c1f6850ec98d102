"""Other onnxruntime versions, each in an environment of its own: ``python -m benchmarks.runtimes``.

They hold onnxruntime and numpy alone and go to ``.cache/runtimes``, or to the folder in
``MEMDIAG_CACHE``.
"""

import os
import sys
from pathlib import Path

from benchmarks.environments import ProvisionError, environment

VERSIONS = ("1.20.1", "1.22.1", "1.23.2", "1.24.4")


def runtime(version: str) -> Path:
    """Return the interpreter of an environment with onnxruntime `version`, made where missing.

    Raises:
        ProvisionError: it cannot be installed.
    """
    return environment(f"runtimes/{version}", (f"onnxruntime=={version}", "numpy"))


def main() -> int:
    """Make the environments and return the exit code.

    Versions may be named; ``--list`` prints the interpreters' paths in one line.
    """
    versions = [word for word in sys.argv[1:] if word != "--list"] or VERSIONS
    try:
        found = {version: runtime(version) for version in versions}
    except ProvisionError as error:
        print(f"runtimes: {error}", file=sys.stderr)
        return 2
    if "--list" in sys.argv[1:]:
        print(os.pathsep.join(map(str, found.values())))
    else:
        for version, python in found.items():
            print(f"{version}  {python}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
