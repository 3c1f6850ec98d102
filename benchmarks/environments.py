"""Cached environments, each with packages of its own, under ``.cache`` or ``MEMDIAG_CACHE``."""

import os
import shutil
import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path

from memdiag.errors import MemdiagError

_DEFAULT_CACHE = Path(__file__).parents[1] / ".cache"
_TIMEOUT_S = 600.0


class ProvisionError(MemdiagError):
    """An environment that cannot be made: no such wheel, or no network."""


def environment(name: str, packages: Sequence[str]) -> Path:
    """Return the interpreter of the environment `name` with `packages`, made where missing.

    Raises:
        ProvisionError: they cannot be installed.
    """
    cache = Path(os.environ.get("MEMDIAG_CACHE") or _DEFAULT_CACHE)
    home = cache.absolute() / name
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
            [python, *words, *packages],
            check=True,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip().splitlines()[-1:] or ["pip said nothing"]
        raise ProvisionError(
            f"{', '.join(packages)}: cannot be installed ({reason[0]})."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ProvisionError(f"{', '.join(packages)}: pip did not end in time.") from error
    ready.touch()
    return python
