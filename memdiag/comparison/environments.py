"""Cached environments, each with packages of its own: created once, completely or not at all."""

import importlib.util
import os
import secrets
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from memdiag.errors import MAX_REASON_LENGTH, ProvisionError
from memdiag.runner.temporary import ending_with_parent, remove_stale
from memdiag.temporary_names import own_prefix
from memdiag.units import MIB, format_size

CACHE_VARIABLE = "MEMDIAG_CACHE"
"""Variable that names the folder of the cache."""

_READY_MARKER = ".ready"
_TOOL_TIMEOUT_S = 900.0
MIN_FREE_BYTES = 256 * MIB
"""Environments of onnxruntime 1.19 to 1.31 took 111 to 141 MiB, downloads aside."""

_FAILURE_REASONS = (
    (
        ("No space left", "os error 28", "Errno 28"),
        f"the disk is full. Free some space, or name another folder in {CACHE_VARIABLE}.",
    ),
    (
        (
            "Failed to fetch",
            "NewConnectionError",
            "ConnectionError",
            "Connection refused",
            "Max retries exceeded",
            "ProxyError",
            "Connection broken",
            "Read timed out",
            "name resolution",
            "network was disabled",
        ),
        "the package registry cannot be reached. Connect to the network, or give --onnxruntime the"
        " path of an interpreter that has it.",
    ),
    (
        ("no wheels with a matching", "has no wheels", "no wheels are available"),
        "there is no wheel for this Python and platform. Give --onnxruntime the path of an"
        " interpreter that has it.",
    ),
    (
        ("No matching distribution", "there is no version of", "was not found in the"),
        "there is no such version for this Python and platform.",
    ),
)


def cache_folder() -> Path:
    """Return the folder of the cache: the value of `CACHE_VARIABLE`, or one in the user's cache."""
    folder = os.environ.get(CACHE_VARIABLE)
    return Path(folder).absolute() if folder else _user_cache() / "memdiag"


def _user_cache() -> Path:
    """Return the folder of the system for the caches of a user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def provided_interpreter(folder: Path, packages: Sequence[str]) -> Path:
    """Return the interpreter of the environment at `folder`, created with `packages` if missing.

    It is built next to `folder` and then renamed, so that an interruption leaves no incomplete
    environment. If uv is installed it builds the environment: it shares the files of its cache.

    Raises:
        ProvisionError: it cannot be created; the message has the reason.
    """
    if is_ready(folder):
        return environment_interpreter(folder)
    temporary_folder = folder.with_name(f".{own_prefix()}{secrets.token_hex(8)}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(folder.parent)
        free_bytes = shutil.disk_usage(folder.parent).free
        if free_bytes < MIN_FREE_BYTES:
            raise ProvisionError(
                f"{folder.parent}: only {format_size(free_bytes)} are free. An environment needs"
                f" more. Free some, or name another folder in {CACHE_VARIABLE}."
            )
        _build_environment(temporary_folder, packages)
        (temporary_folder / _READY_MARKER).touch()
        _rename_environment(temporary_folder, folder)
    except OSError as error:
        raise ProvisionError(
            f"{folder}: cannot be created ({error.strerror or error}). Name another folder in"
            f" {CACHE_VARIABLE}."
        ) from error
    finally:
        shutil.rmtree(temporary_folder, ignore_errors=True)
    return environment_interpreter(folder)


def is_ready(folder: Path) -> bool:
    """Return whether the environment at `folder` is complete, and its interpreter exists."""
    return (folder / _READY_MARKER).exists() and environment_interpreter(folder).exists()


def environment_interpreter(folder: Path) -> Path:
    """Return the interpreter of an environment."""
    return folder / "bin/python"


def run_tool(words: Sequence[str | Path], subject: str) -> str:
    """Return the output of a tool that uses the registry; `subject` is the subject of errors.

    Raises:
        ProvisionError: it failed or exceeded its time limit.
    """
    try:
        process = subprocess.run(
            ending_with_parent([*map(str, words)]),
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            timeout=_TOOL_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise ProvisionError(f"{subject}: the installer did not end in time. Try again.") from error
    if process.returncode:
        raise ProvisionError(f"{subject}: {failure_reason(process.stderr + process.stdout)}")
    return process.stdout


def failure_reason(printed: str) -> str:
    """Return why an installer failed, from its output; the last line if the reason is unknown."""
    text = " ".join(printed.split())  # sentences are wrapped
    for patterns, reason in _FAILURE_REASONS:
        if any(pattern in text for pattern in patterns):
            return reason
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    return f"cannot be installed ({(lines or ['no reason was given'])[-1][:MAX_REASON_LENGTH]})."


def uv_path() -> str | None:
    """Return the path of uv; None if it is not installed."""
    try:
        from uv import find_uv_bin
    except ImportError:
        return shutil.which("uv")
    try:
        return str(find_uv_bin())
    except FileNotFoundError:
        return shutil.which("uv")


def _build_environment(folder: Path, packages: Sequence[str]) -> None:
    subject = packages[0]
    python = environment_interpreter(folder)
    path = uv_path()
    if path is None:
        venv.create(folder, with_pip=True)
        pip_options = ["--quiet", "--disable-pip-version-check", "--no-input"]
        run_tool([python, "-m", "pip", "install", *pip_options, *packages], subject)
        return
    run_tool([path, "venv", "--quiet", "--no-project", "--python", sys.executable, folder], subject)
    run_tool([path, "pip", "install", "--python", python, *_index_options(), *packages], subject)


def _index_options() -> list[str]:
    """Return uv's option for the index in pip's configuration, which uv does not read."""
    if any(os.environ.get(name) for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL")):
        return []
    address = os.environ.get("PIP_INDEX_URL")
    if address is None and importlib.util.find_spec("pip"):
        words = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
        process = subprocess.run(words, check=False, capture_output=True, text=True)
        address = process.stdout.strip() if process.returncode == 0 else None
    return ["--default-index", address] if address else []


def _rename_environment(temporary_folder: Path, folder: Path) -> None:
    """Rename the new environment, unless another process was faster."""
    if (folder / _READY_MARKER).exists() and not is_ready(folder):  # its interpreter is gone
        shutil.rmtree(folder)
    try:
        temporary_folder.rename(folder)
    except OSError:
        if not is_ready(folder):
            raise
