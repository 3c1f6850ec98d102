"""Checks of the arguments of the public functions, and the configuration groups made from them."""

import inspect
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

from memdiag.api.inputs import ArrayOrFile, read_given
from memdiag.errors import UsageError
from memdiag.ort.runtime import require_runtime
from memdiag.runner.job import (
    DEFAULT_RUNS,
    DEFAULT_TIMEOUT_S,
    InputConfig,
    Limits,
    SessionConfig,
)

OnProgress = Callable[[str], None]
"""A function that is called with a few words about the current step."""

_LEVELS = ("disable_all", "basic", "extended", "layout", "all")
_LOG_OPTIONS = ("log_severity_level", "log_verbosity_level", "logid")
"""Session options that memdiag sets itself, as it reads the log."""


def ignore_progress(step: str) -> None:
    """Report no progress."""


def model_path(model: Any) -> Path:
    """Return the path of a model.

    Raises:
        UsageError: `model` is not a path.
    """
    if not isinstance(model, str | os.PathLike):
        raise UsageError(f"{model!r} is not a path. Pass the path of one model: 'model.onnx'.")
    return Path(model)


def session_config(
    *,
    session_options: Mapping[str, str] | None = None,
    optimization_level: str | None = None,
    disabled_optimizers: Sequence[str] = (),
    threads: int | None = None,
    providers: Sequence[str] = ("CPUExecutionProvider",),
    environment: Mapping[str, str] | None = None,
    load_from: Literal["path", "bytes"] = "path",
    telemetry: bool = False,
    python: str | Path | None = None,
) -> SessionConfig:
    """Return the configuration of the session for the arguments of `memdiag.profile`.

    Raises:
        UsageError: an argument is not of its type, an option cannot be set, or onnxruntime is not
            installed and no other interpreter is named.
    """
    check_names("providers", providers, "CPUExecutionProvider")
    check_names("disabled_optimizers", disabled_optimizers, "ConstantFolding")
    for name, text in (environment or {}).items():
        if not name or "=" in name or "\0" in f"{name}{text}":
            raise UsageError(
                f"environment: {name!r} is not the name of a variable, or its value has a null"
                " byte. Pass environment={'NAME': 'value'}."
            )
    options = dict(session_options or {})
    for name in _LOG_OPTIONS:
        if name in options:
            raise UsageError(f"session option {name} cannot be set: memdiag needs the log.")
    if optimization_level is not None:
        options["graph_optimization_level"] = optimization_level
    if "graph_optimization_level" in options:
        check_optimization_level(options["graph_optimization_level"])
    entries: Mapping[Any, Any] = options
    for name, value in entries.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UsageError(
                f"session_options must be strings, not {name!r}: {value!r}. Pass"
                f" session_options={{{str(name)!r}: {str(value)!r}}}."
            )
    if threads is not None:
        if isinstance(threads, bool) or not isinstance(threads, Integral) or threads < 0:
            raise UsageError(f"threads must be a number of 0 or more, not {threads!r}.")
        options["intra_op_num_threads"] = str(threads)
    if python is None:
        require_runtime("name an interpreter that has it (--python; in pytest --memdiag-python)")
    return SessionConfig(
        options=options,
        disabled_optimizers=tuple(disabled_optimizers),
        providers=tuple(providers),
        environment=dict(environment or {}),
        load_from=load_from,
        telemetry=telemetry,
        python=Path(sys.executable if python is None else python),
    )


def input_config(
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, ArrayOrFile] | None = None,
    runs: int = DEFAULT_RUNS,
    run: bool = True,
) -> InputConfig:
    """Return the configuration of the inputs for the arguments of `memdiag.profile`.

    Raises:
        UsageError: an argument is not of its type, or a file cannot be read as an array.
    """
    check_dims(dims)
    if runs < 1:
        raise UsageError(
            "--runs must be at least 1. Use --no-run (run=False) to stop after session creation."
        )
    return InputConfig(
        dims={name: int(size) for name, size in (dims or {}).items()},
        arrays=read_given(inputs or {}),
        runs=runs if run else None,
    )


def limits(
    *, timeout_s: float = DEFAULT_TIMEOUT_S, memory_limit_bytes: int | None = None
) -> Limits:
    """Return the time and memory limits of a child process.

    Raises:
        UsageError: a limit leaves no time or no memory.
    """
    if timeout_s <= 0:
        raise UsageError(f"--timeout must be greater than 0, not {timeout_s:g}.")
    if memory_limit_bytes is not None and memory_limit_bytes <= 0:
        raise UsageError("--memory-limit must be greater than 0.")
    return Limits(timeout_s=timeout_s, memory_limit_bytes=memory_limit_bytes)


PROFILE_OPTIONS = tuple(
    name
    for function in (input_config, session_config, limits)
    for name in inspect.signature(function).parameters
)
"""The names of the arguments of `memdiag.profile` that configure the run."""


def check_dims(dims: Any) -> None:
    """Check that `dims` are sizes by name.

    Raises:
        UsageError: they are not.
    """
    if dims is not None and not isinstance(dims, Mapping):
        raise UsageError(
            f"dims must be sizes by name, not {dims!r}. Pass a dictionary: dims={{'batch': 3}}."
        )
    for name, size in (dims or {}).items():
        if not isinstance(name, str) or isinstance(size, bool) or not isinstance(size, Integral):
            raise UsageError(
                f"dims must be numbers by name, not {name!r}: {size!r}. Pass dims={{'batch': 3}}."
            )


def check_names(argument: str, names: Any, example: str) -> None:
    """Check that `names` is a list of names rather than a single one.

    Raises:
        UsageError: it is not.
    """
    is_list = isinstance(names, Collection) and not isinstance(names, str)
    if not is_list or not all(isinstance(name, str) for name in names):
        raise UsageError(
            f"{argument} must be a list of names, not {names!r}. Pass {argument}=['{example}']."
        )


def check_optimization_level(level: str) -> None:
    """Check that `level` is a documented level, or onnxruntime's own name of one.

    Raises:
        UsageError: it is not.
    """
    name = str(level).lower()
    enum_names = ("ort_disable_all", *(f"ort_enable_{level}" for level in _LEVELS[1:]))
    short_names = (name.removeprefix("ort_") for name in enum_names)
    if name not in (*_LEVELS, *enum_names, *short_names):
        raise UsageError(
            f"there is no optimization level {str(level)!r}. Choose from {', '.join(_LEVELS)}."
        )
