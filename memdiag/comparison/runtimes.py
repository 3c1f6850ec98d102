"""Other versions of onnxruntime, each with numpy in a cached environment of its own."""

import functools
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from memdiag.comparison.environments import (
    cache_folder,
    environment_interpreter,
    is_ready,
    provided_interpreter,
    run_tool,
    uv_path,
)
from memdiag.errors import ProvisionError, UsageError
from memdiag.ort.releases import NUMPY_2_SINCE
from memdiag.ort.runtime import Runtime, release_order
from memdiag.runner.child import child_environment

LATEST_VERSION = "latest"
_RUNTIMES_FOLDER = "runtimes"
_RELEASE_PATTERN = re.compile(r"\d+\.\d+(\.\d+)*")
MAX_VERSION_S = 60.0


def runtime_interpreter(version: str) -> Path:
    """Return an interpreter that has onnxruntime `version`; its environment is created if missing.

    It is the current interpreter if that has this version.

    Raises:
        ProvisionError: there is no such version for this Python and platform, or it cannot be
            installed.
        UsageError: `version` is not a version.
    """
    if not _RELEASE_PATTERN.fullmatch(version):
        raise UsageError(
            f"{version!r} is neither a version of onnxruntime, such as 1.24.4, nor the path of an"
            " interpreter."
        )
    if version == distribution_version():
        return Path(sys.executable)
    numpy = "numpy" if Runtime.parse(version) >= NUMPY_2_SINCE else "numpy<2"
    return provided_interpreter(
        cache_folder() / _RUNTIMES_FOLDER / version, (f"onnxruntime=={version}", numpy)
    )


def distribution_version() -> str | None:
    """Return the version of the distribution ``onnxruntime`` that this interpreter has.

    None where another distribution, such as onnxruntime-gpu, provides the package: environments
    have the distribution ``onnxruntime``, and versions are compared with each other only.
    """
    try:
        return importlib.metadata.version("onnxruntime")
    except importlib.metadata.PackageNotFoundError:
        return None


def latest_version() -> tuple[str, str]:
    """Return the newest version, and a note if it is not certain.

    If the registry cannot be reached, it is the newest version that is installed.

    Raises:
        ProvisionError: none is installed either.
    """
    try:
        return registry_versions()[-1], ""
    except ProvisionError as error:
        if not (installed := local_versions()):
            raise
        return installed[
            -1
        ], f"the newest version that is installed; the newest of all is not known ({error})"


@functools.cache
def registry_versions() -> tuple[str, ...]:
    """Return the releases in the registry for this Python and platform, the oldest first.

    Raises:
        ProvisionError: the registry cannot be reached.
    """
    subject = "the versions of onnxruntime"
    command = ["index", "versions", "onnxruntime", "--disable-pip-version-check", "--no-input"]
    if importlib.util.find_spec("pip"):
        printed = run_tool([sys.executable, "-m", "pip", *command], subject)
    elif path := uv_path():
        printed = run_tool([path, "tool", "run", "pip", *command], subject)
    else:
        raise ProvisionError(
            f"{subject}: neither pip nor uv is installed to list them. Install one."
        )
    line = next((line for line in printed.splitlines() if line.startswith("Available")), "")
    releases = [word for word in re.split(r"[:,\s]+", line) if _RELEASE_PATTERN.fullmatch(word)]
    if not releases:
        raise ProvisionError(f"{subject}: the registry has none for this Python and platform.")
    return tuple(sorted(releases, key=release_order))


def local_versions() -> tuple[str, ...]:
    """Return the versions that are installed or cached, the oldest first."""
    folder = cache_folder() / _RUNTIMES_FOLDER
    cached_folders = folder.iterdir() if folder.is_dir() else ()
    versions = {
        path.name
        for path in cached_folders
        if _RELEASE_PATTERN.fullmatch(path.name) and is_ready(path)
    }
    return tuple(sorted(versions | {distribution_version() or ""} - {""}, key=release_order))


def versions_and_environments(
    names: Sequence[str | Path],
) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Return which of `names` are versions, and which are paths of interpreters or environments."""
    versions = tuple(name for name in names if isinstance(name, str) and not _is_path(name))
    return versions, tuple(Path(name) for name in names if name not in versions)


def _is_path(name: str) -> bool:
    return os.sep in name or (not _RELEASE_PATTERN.fullmatch(name) and os.path.exists(name))


def existing_interpreter(path: Path) -> Path:
    """Return the interpreter at `path`, which is an interpreter or the folder of an environment.

    Raises:
        UsageError: it is neither.
    """
    python = environment_interpreter(path) if path.is_dir() else path
    if not python.is_file() or not os.access(python, os.X_OK):
        raise UsageError(f"{path} is neither a Python interpreter nor an environment with one.")
    return python.absolute()


def no_runtime_text(path: Path) -> str:
    """Return that the interpreter or environment at `path` cannot be used, and what to do."""
    return f"{path}: it has no onnxruntime. Install it there."


def interpreter_version(python: Path) -> str | None:
    """Return the version of onnxruntime of the interpreter `python`; None if it has none."""
    code = "import onnxruntime; print(onnxruntime.__version__)"
    try:
        process = subprocess.run(
            [str(python), "-c", code],
            check=True,
            capture_output=True,
            env=child_environment(),
            text=True,
            timeout=MAX_VERSION_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return next(reversed(process.stdout.split()), None)
