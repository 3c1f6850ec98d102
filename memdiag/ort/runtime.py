"""The version of onnxruntime: the installed one, or one that a prediction is for."""

import re
import sysconfig
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Self

from memdiag.errors import UsageError

_RELEASE_VERSION = re.compile(
    r"(\d+)\.(\d+)(?:\.(\d+))?(?:\.?(?:dev|rc|post|a|b)\d*)?(?:\+[\w.]+)?"
)
_BUILD_STAGES = ("dev", "a", "b", "rc")
"""Builds before a release, as PEP 440 names them, the oldest first."""

_DECLARED_VERSION = re.compile(r"^__version__\s*=\s*['\"](.+?)['\"]", re.MULTILINE)


class Runtime(NamedTuple):
    """A release of onnxruntime; compares like its numbers."""

    major: int
    minor: int
    patch: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the release that `text`, such as ``1.24`` or ``1.24.4``, names.

        Raises:
            UsageError: the text does not name a release.
        """
        match = _RELEASE_VERSION.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"{text!r} is not a version of onnxruntime. Write it like 1.24.4.")
        return cls(int(match[1]), int(match[2]), int(match[3] or 0))

    @classmethod
    def installed(cls) -> Self:
        """Return the release that is installed, without importing it.

        Raises:
            UsageError: onnxruntime is not installed, or its version cannot be read.
        """
        require_runtime("name a release with --for-onnxruntime")
        return cls.parse(installed_version() or "")

    def __str__(self) -> str:
        """Return the release as text, such as ``1.24.4``."""
        return f"{self.major}.{self.minor}.{self.patch}"


def installed_version() -> str | None:
    """Return the version of the onnxruntime that `import onnxruntime` would load; None without one.

    It is read from the package's own file: onnxruntime-openvino, onnxruntime-gpu and other
    distributions provide the same import package.
    """
    spec = find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return None
    match = _DECLARED_VERSION.search(Path(spec.origin).read_text(encoding="utf-8"))
    return match[1] if match else None


def is_older(version: str | None, release: Runtime) -> bool:
    """Return whether `version` is before `release`; False if it is unknown."""
    with suppress(UsageError):
        return Runtime.parse(version or "") < release
    return False


@cache
def release_order(version: str) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """Return the key that sorts releases by age: nightly builds and candidates before a release."""
    match = re.match(r"([\d.]*\d)?\.?(dev|a|b|rc)?(.*)", version, re.DOTALL)
    number, stage, suffix = match.groups() if match else ("", None, "")
    age = _BUILD_STAGES.index(stage) if stage else len(_BUILD_STAGES)
    return _numbers_in_text(number or ""), age, _numbers_in_text(suffix)


def _numbers_in_text(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def require_runtime(alternative: str) -> None:
    """Refuse to go on without onnxruntime; `alternative` is what users can do instead.

    Raises:
        UsageError: onnxruntime is not installed.
    """
    if find_spec("onnxruntime") is not None:
        return
    if "musl" in str(sysconfig.get_config_var("HOST_GNU_TYPE")):
        raise UsageError(
            "onnxruntime is not installed, and PyPI has no build of it for musl, the C library of"
            " this system (Alpine Linux). Use a system with glibc, such as Debian, or"
            f" {alternative}."
        )
    raise UsageError(
        "onnxruntime is not installed in memdiag's environment. Install it with"
        f" pip install 'memdiag[cpu]' (or the build for your device), or {alternative}."
    )
