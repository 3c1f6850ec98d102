"""Checks of the arguments of the public functions, and configuration groups made from them."""

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from memdiag.api.inputs import ArrayOrFile, read_given_arrays
from memdiag.defaults import (
    DEFAULT_PREFILL_TOKENS,
    DEFAULT_RUNS,
    DEFAULT_STEPS,
    DEFAULT_TIMEOUT_S,
)
from memdiag.errors import ArgumentError, UsageError
from memdiag.model.dimensions import MAX_DIMENSION_SIZE
from memdiag.records.generation import GenaiConfig
from memdiag.runner.job import Deadline, GenerationConfig, InputConfig, Limits

OnProgress = Callable[[str], None]
"""A function that is called with a few words about the current step."""


def ignore_progress(step: str) -> None:
    """Report no progress."""


def model_path(model: Any) -> Path:
    """Return the path of a model.

    Raises:
        UsageError: `model` is not a path, or is a path without a name, such as ``.``.
    """
    if not isinstance(model, str | os.PathLike):
        raise UsageError(f"{model!r} is not a path. Pass the path of one model: 'model.onnx'.")
    path = Path(model)
    if not path.name:
        raise UsageError(f"{path}: this is a folder. Name an ONNX file.")
    return path


def deadline_after(time_limit_s: float | None) -> Deadline:
    """Return the deadline of a command that starts now.

    Raises:
        UsageError: the limit is not greater than 0.
    """
    if time_limit_s is None:
        return Deadline()
    if not time_limit_s > 0:
        raise ArgumentError(f"{{time_limit_s}} must be greater than 0, not {time_limit_s:g}.")
    return Deadline(time.monotonic() + time_limit_s)


def program_advice(name: str) -> str:
    """Return what to do if the program `name` cannot be started."""
    if name.endswith(".py"):
        return f"Start it with Python: python {name}."
    return "Check its name, and that it is a program."


def input_config(
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, ArrayOrFile] | None = None,
    runs: int = DEFAULT_RUNS,
    run: bool = True,
    generation: GenerationConfig | None = None,
) -> InputConfig:
    """Return the configuration of the inputs for the arguments of `memdiag.profile`.

    Raises:
        UsageError: an argument is not of its type, or a file cannot be read as an array.
    """
    check_dims(dims)
    if generation is not None:
        if not run:
            raise ArgumentError("{run=False} leaves out what {feed}, {steps} and {prefill} run.")
        runs = generation.steps
    if runs < 1:
        raise ArgumentError(
            "{runs} must be at least 1. Use {run=False} to stop after session creation."
        )
    return InputConfig(
        dims={name: int(size) for name, size in (dims or {}).items()},
        arrays=read_given_arrays(inputs or {}),
        runs=runs if run else None,
        generation=generation,
    )


def generation_config(
    *,
    feed: Sequence[str] = (),
    steps: int | None = None,
    prefill: int | None = None,
    genai: GenaiConfig | None = None,
    runs: int = DEFAULT_RUNS,
) -> GenerationConfig | None:
    """Return the generation that the arguments of `memdiag.profile` ask for; None if they ask for
    none.

    A model for onnxruntime-genai is always run as a generation, with the cache that its
    configuration `genai` names.

    Raises:
        UsageError: an argument is not of its type or is less than 1, or `runs` are given, too.
    """
    check_names("feed", feed, "present.*=past_key_values.*")
    if not feed and steps is None and prefill is None and genai is None:
        return None
    if runs != DEFAULT_RUNS:
        raise ArgumentError("{runs} cannot be used with a generation. Use {steps}.")
    for name, count in (("steps", steps), ("prefill", prefill)):
        is_count = isinstance(count, Integral) and not isinstance(count, bool) and count > 0
        if count is not None and not is_count:
            raise ArgumentError(f"{{{name}}} must be a number of 1 or more, not {count!r}.")
    return GenerationConfig(
        feed=tuple(feed) or (() if genai is None else genai.feed),
        prefill_tokens=DEFAULT_PREFILL_TOKENS if prefill is None else int(prefill),
        steps=DEFAULT_STEPS if steps is None else int(steps),
        genai=genai,
    )


def child_process_limits(
    *, timeout_s: float = DEFAULT_TIMEOUT_S, memory_limit_bytes: int | None = None
) -> Limits:
    """Return the time and memory limits of a child process.

    Raises:
        UsageError: a limit is not greater than 0.
    """
    if not timeout_s > 0:
        raise ArgumentError(f"{{timeout_s}} must be greater than 0, not {timeout_s:g}.")
    if memory_limit_bytes is not None and memory_limit_bytes <= 0:
        raise ArgumentError("{memory_limit_bytes} must be greater than 0.")
    return Limits(timeout_s=timeout_s, memory_limit_bytes=memory_limit_bytes)


def check_at_least_one(argument: str, number: int | None) -> None:
    """Check that `number` is at least 1, or None.

    Raises:
        UsageError: it is less.
    """
    if number is not None and number < 1:
        raise ArgumentError(f"{{{argument}}} must be at least 1.")


def check_by_name(dims: Any) -> None:
    """Check that `dims` is a mapping or None. Its values are not checked.

    Raises:
        UsageError: it is neither.
    """
    if dims is not None and not isinstance(dims, Mapping):
        raise UsageError(
            f"dims must be sizes by name, not {dims!r}. Pass a dictionary: dims={{'batch': 3}}."
        )


def check_dims(dims: Any) -> None:
    """Check that `dims` are sizes by name.

    Raises:
        UsageError: they are not.
    """
    check_by_name(dims)
    for name, size in (dims or {}).items():
        if not isinstance(name, str) or isinstance(size, bool) or not isinstance(size, Integral):
            raise UsageError(
                f"dims must be numbers by name, not {name!r}: {size!r}. Pass dims={{'batch': 3}},"
                " and where a range is allowed (low, high)."
            )
        if abs(int(size)) > MAX_DIMENSION_SIZE:
            raise UsageError(f"dimension {name!r}: {size} is larger than any dimension can be.")


def check_fit_bytes(fit_bytes: int | None) -> None:
    """Check the limit into which sizes should fit, in bytes; None if nothing has to fit.

    Raises:
        UsageError: the limit leaves no memory.
    """
    if fit_bytes is not None and fit_bytes <= 0:
        raise ArgumentError("{fit_bytes} must be greater than 0.")


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
