"""Cached environments, each with packages of its own: made once, whole or not at all."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import psutil

from memdiag.comparison.cache import VARIABLE
from memdiag.comparison.failures import why_not
from memdiag.errors import ProvisionError
from memdiag.runner.temporary import ending_with_parent
from memdiag.units import MIB, format_size

_READY = ".ready"
_BUILDING = ".building-"
_TIMEOUT_S = 900.0
_LEAST_FREE = 256 * MIB
"""Environments of onnxruntime 1.19 to 1.31 took 111 to 141 MiB on Linux, downloads aside."""


def environment(home: Path, packages: Sequence[str]) -> Path:
    """Return the interpreter of the environment at `home` with `packages`, made where missing.

    It is built beside `home` and then renamed, so that an interruption leaves nothing that could
    be taken for an environment. Where uv is installed it is what builds, for it shares the files
    of its own cache among environments.

    Raises:
        ProvisionError: it cannot be made; the message says why, and what to do.
    """
    if is_ready(home):
        return interpreter(home)
    building = home.with_name(f"{_BUILDING}{os.getpid()}-{home.name}")
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(home.parent)
        free = shutil.disk_usage(home.parent).free
        if free < _LEAST_FREE:
            raise ProvisionError(
                f"{home.parent}: only {format_size(free)} are free, and an environment needs more;"
                f" free some, or name another folder in {VARIABLE}."
            )
        _build(building, packages)
        (building / _READY).touch()
        _put_in_place(building, home)
    except OSError as error:
        raise ProvisionError(
            f"{home}: cannot be made ({error.strerror or error}); name another folder in"
            f" {VARIABLE}."
        ) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return interpreter(home)


def is_ready(home: Path) -> bool:
    """Return whether the environment at `home` is whole, and its interpreter still there."""
    return (home / _READY).exists() and interpreter(home).exists()


def interpreter(home: Path) -> Path:
    """Return the interpreter of an environment."""
    return home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def run_tool(words: Sequence[str | Path], what: str) -> str:
    """Return what a tool that asks the registry prints; `what` begins the sentence of an error.

    Raises:
        ProvisionError: it failed, or did not end in time.
    """
    try:
        done = subprocess.run(
            ending_with_parent([*map(str, words)]),
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise ProvisionError(f"{what}: the installer did not end in time; try again.") from error
    if done.returncode:
        raise ProvisionError(f"{what}: {why_not(done.stderr + done.stdout)}")
    return done.stdout


def uv() -> str | None:
    """Return the path of uv, None where it is not installed."""
    try:
        from uv import find_uv_bin
    except ImportError:
        return shutil.which("uv")
    try:
        return str(find_uv_bin())
    except FileNotFoundError:
        return shutil.which("uv")


def _build(home: Path, packages: Sequence[str]) -> None:
    what = packages[0]
    python = interpreter(home)
    found = uv()
    if found is None:
        venv.create(home, with_pip=True)
        quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
        run_tool([python, "-m", "pip", "install", *quiet, *packages], what)
        return
    run_tool([found, "venv", "--quiet", "--no-project", "--python", sys.executable, home], what)
    run_tool([found, "pip", "install", "--python", python, *_index(), *packages], what)


def _index() -> list[str]:
    """Return uv's option for the index that pip is set up for; uv reads its own settings only."""
    if any(os.environ.get(name) for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL")):
        return []
    address = os.environ.get("PIP_INDEX_URL")
    if address is None and importlib.util.find_spec("pip"):
        words = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
        asked = subprocess.run(words, check=False, capture_output=True, text=True)
        address = asked.stdout.strip() if asked.returncode == 0 else None
    return ["--default-index", address] if address else []


def _put_in_place(building: Path, home: Path) -> None:
    """Rename what was built, unless another process was faster."""
    if home.exists() and not is_ready(home):
        # An environment whose interpreter is gone, or one that was made by other means and not
        # to its end.
        shutil.rmtree(home)
    try:
        building.rename(home)
    except OSError:
        if not is_ready(home):
            raise


def _remove_abandoned(folder: Path) -> None:
    """Remove what builds left behind whose process is no more."""
    for left in folder.glob(f"{_BUILDING}*"):
        number = left.name.removeprefix(_BUILDING).partition("-")[0]
        with contextlib.suppress(ValueError):
            if int(number) == os.getpid() or not psutil.pid_exists(int(number)):
                shutil.rmtree(left, ignore_errors=True)
