"""Other onnxruntime versions, each in an environment of its own: ``python -m benchmarks.runtimes``.

They hold onnxruntime and numpy alone and go to ``.cache/runtimes``, or to the folder in
``MEMDIAG_CACHE``.
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from memdiag.errors import MemdiagError

VERSIONS = ("1.20.1", "1.22.1", "1.23.2", "1.24.4")
_DEFAULT_CACHE = Path(__file__).parents[1] / ".cache"
_TIMEOUT_S = 600.0


class ProvisionError(MemdiagError):
    """An environment that cannot be made: no such wheel, or no network."""


def runtime(version: str) -> Path:
    """Return the interpreter of an environment with onnxruntime `version`, made where missing.

    Raises:
        ProvisionError: it cannot be installed.
    """
    cache = Path(os.environ.get("MEMDIAG_CACHE") or _DEFAULT_CACHE)
    home = cache.absolute() / "runtimes" / version
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    ready = home / ".ready"
    if ready.exists():
        return python
    # What an interruption left behind is made anew.
    shutil.rmtree(home, ignore_errors=True)
    venv.create(home, with_pip=True)
    words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        subprocess.run(
            [python, *words, f"onnxruntime=={version}", "numpy"],
            check=True,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip().splitlines()[-1:] or ["pip said nothing"]
        raise ProvisionError(
            f"onnxruntime {version}: cannot be installed ({reason[0]})."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ProvisionError(f"onnxruntime {version}: pip did not end in time.") from error
    ready.touch()
    return python


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
