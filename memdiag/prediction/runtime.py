"""The version of the runtime that a prediction is for."""

import re
from importlib import metadata
from typing import NamedTuple, Self

from memdiag.errors import UsageError

OLDEST = (1, 19)
"""The oldest release whose behaviour was measured; older ones are predicted like it."""

TELEMETRY_SINCE = (1, 29)
"""The first release that writes telemetry to the home folder and uploads it, unless told not to."""

_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:\.?(?:dev|rc|post|a|b)\d*)?(?:\+[\w.]+)?")
_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino")


class Runtime(NamedTuple):
    """A release of onnxruntime; compares like its numbers."""

    major: int
    minor: int
    patch: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the release that `text`, such as ``1.24`` or ``1.24.4``, names.

        Raises:
            UsageError: it names none.
        """
        found = _VERSION.fullmatch(text.strip())
        if found is None:
            raise UsageError(f"{text!r} is not a version of onnxruntime. Write it like 1.24.4.")
        return cls(int(found[1]), int(found[2]), int(found[3] or 0))

    @classmethod
    def installed(cls) -> Self:
        """Return the release that is installed, without importing it.

        Raises:
            UsageError: none is, or its version cannot be read.
        """
        for package in _PACKAGES:
            try:
                return cls.parse(metadata.version(package))
            except metadata.PackageNotFoundError:
                continue
        raise UsageError("onnxruntime is not installed. Name a version with --for-onnxruntime.")

    def __str__(self) -> str:
        """Return it as it is usually written."""
        return f"{self.major}.{self.minor}.{self.patch}"
