"""Checks of the arguments that the functions of the package share."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from memdiag.errors import UsageError

_LEVELS = ("disable_all", "basic", "extended", "layout", "all")


def model_path(model: Any) -> Path:
    """Return the path of a model.

    Raises:
        UsageError: `model` is not a path.
    """
    if not isinstance(model, str | os.PathLike):
        raise UsageError(f"{model!r} is not a path. Pass the path of one model: 'model.onnx'.")
    return Path(model)


def check_dims(dims: Any) -> None:
    """Check that `dims` are sizes by name.

    Raises:
        UsageError: they are not.
    """
    if dims is not None and not isinstance(dims, Mapping):
        raise UsageError(
            f"dims must be sizes by name, not {dims!r}. Pass a dictionary: dims={{'batch': 3}}."
        )


def check_names(argument: str, names: Any, example: str) -> None:
    """Check that `names` is a list of names rather than a single one.

    Raises:
        UsageError: it is not.
    """
    is_list = isinstance(names, Collection) and not isinstance(names, str)
    if not is_list or not all(isinstance(each, str) for each in names):
        raise UsageError(
            f"{argument} must be a list of names, not {names!r}. Pass {argument}=['{example}']."
        )


def check_optimization_level(level: str) -> None:
    """Check that `level` is one of the documented levels, or has onnxruntime's own name.

    Raises:
        UsageError: it is not.
    """
    name = str(level).lower()
    own = ("ort_disable_all", *(f"ort_enable_{each}" for each in _LEVELS[1:]))
    if name not in (*_LEVELS, *own, *(each.removeprefix("ort_") for each in own)):
        raise UsageError(
            f"there is no optimization level {str(level)!r}. Choose from {', '.join(_LEVELS)}."
        )
