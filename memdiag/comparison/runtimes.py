"""Other versions of onnxruntime, each with numpy in a cached environment of its own."""

import functools
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

from memdiag.comparison.cache import cache_folder
from memdiag.comparison.environments import environment, interpreter, is_ready, run_tool, uv
from memdiag.errors import ProvisionError, UsageError

LATEST = "latest"
_FOLDER = "runtimes"
_RELEASE = re.compile(r"\d+\.\d+(\.\d+)*")
_FIRST_FOR_NUMPY_2 = (1, 19)
"""Wheels of earlier versions were built for NumPy 1, and end in a crash beside NumPy 2."""

_ASK_S = 60.0


def runtime(version: str) -> Path:
    """Return an interpreter that has onnxruntime `version`, made where there is none.

    It is this one where that is the version it has.

    Raises:
        ProvisionError: there is no such version for this Python and platform, or it cannot be
            installed.
        UsageError: that is no version.
    """
    if not _RELEASE.fullmatch(version):
        raise UsageError(f"{version!r} is not a version of onnxruntime. Write it like 1.24.4.")
    if version == installed():
        return Path(sys.executable)
    numpy = "numpy" if in_order(version) >= _FIRST_FOR_NUMPY_2 else "numpy<2"
    return environment(cache_folder() / _FOLDER / version, (f"onnxruntime=={version}", numpy))


def installed() -> str | None:
    """Return the version of onnxruntime that this interpreter has."""
    try:
        return importlib.metadata.version("onnxruntime")
    except importlib.metadata.PackageNotFoundError:
        return None


def latest() -> tuple[str, str]:
    """Return the newest version, and what is to be said of it where that is not sure.

    Without the registry it is the newest that is here already.

    Raises:
        ProvisionError: there is none here either.
    """
    try:
        return versions()[-1], ""
    except ProvisionError as error:
        if not (here := available()):
            raise
        return here[-1], f"the newest that is here, for the newest of all is not known ({error})"


@functools.cache
def versions() -> tuple[str, ...]:
    """Return the releases that the registry has for this Python and platform, the oldest first.

    Raises:
        ProvisionError: the registry cannot be asked.
    """
    what = "the versions of onnxruntime"
    asked = ["index", "versions", "onnxruntime", "--disable-pip-version-check", "--no-input"]
    if importlib.util.find_spec("pip"):
        printed = run_tool([sys.executable, "-m", "pip", *asked], what)
    elif found := uv():
        printed = run_tool([found, "tool", "run", "pip", *asked], what)
    else:
        raise ProvisionError(f"{what}: neither pip nor uv is here to ask for them; install one.")
    line = next((each for each in printed.splitlines() if each.startswith("Available")), "")
    found_all = [each for each in re.split(r"[:,\s]+", line) if _RELEASE.fullmatch(each)]
    if not found_all:
        raise ProvisionError(f"{what}: the registry names none for this Python and platform.")
    return tuple(sorted(found_all, key=in_order))


def available() -> tuple[str, ...]:
    """Return the versions that need not be fetched, the oldest first."""
    folder = cache_folder() / _FOLDER
    cached = folder.iterdir() if folder.is_dir() else ()
    found = {each.name for each in cached if _RELEASE.fullmatch(each.name) and is_ready(each)}
    return tuple(sorted(found | {installed() or ""} - {""}, key=in_order))


def in_order(version: str) -> tuple[int, ...]:
    """Return what sorts versions by age."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def existing(path: Path) -> Path:
    """Return the interpreter that `path` names: itself, or that of the environment it is.

    Raises:
        UsageError: there is none.
    """
    python = interpreter(path) if path.is_dir() else path
    if not python.is_file() or not os.access(python, os.X_OK):
        raise UsageError(f"{path} is neither a Python interpreter nor an environment with one.")
    return python.absolute()


def version_of(python: Path) -> str | None:
    """Return the version of onnxruntime that the interpreter `python` has, None without one."""
    ask = "import onnxruntime; print(onnxruntime.__version__)"
    try:
        done = subprocess.run(
            [str(python), "-c", ask], check=True, capture_output=True, text=True, timeout=_ASK_S
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return next(reversed(done.stdout.split()), None)
