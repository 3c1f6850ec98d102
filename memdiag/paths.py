"""Paths as text: for records, and as names that distinguish files. The endings of models."""

import os
from collections.abc import Sequence
from pathlib import Path

ONNX_SUFFIX, ORT_SUFFIX = ".onnx", ".ort"
MODEL_SUFFIXES = (ONNX_SUFFIX, ORT_SUFFIX)
"""The endings of the names of models, in ONNX's format and in ORT format."""


def path_text(path: Path | str) -> str:
    """Return `path` as text for a record. Bytes that are not UTF-8 are escaped with backslashes."""
    return str(path).encode(errors="backslashreplace").decode()


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return for each path its file name, with as many folders as are needed to make it unique.

    Equal paths have equal names.
    """
    absolute_paths = [Path(os.path.abspath(path)) for path in paths]
    names = []
    for path in absolute_paths:
        other_parts = {other.parts for other in absolute_paths if other != path}
        for length in range(1, len(path.parts) + 1):
            last_parts = path.parts[-length:]
            if not any(parts[-length:] == last_parts for parts in other_parts):
                break
        names.append(str(Path(*last_parts)))
    return names
