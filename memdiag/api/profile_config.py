"""The configuration of a profile, and its construction from the arguments of `memdiag.profile`."""

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

from memdiag.api.arguments import (
    check_choice,
    check_names,
    generation_config,
    input_config,
    limits,
)
from memdiag.api.check import Selection
from memdiag.api.inputs import ArrayOrFile
from memdiag.defaults import CPU_PROVIDER, DEFAULT_PROVIDERS, DEFAULT_RUNS, DEFAULT_TIMEOUT_S
from memdiag.errors import UsageError
from memdiag.ort.runtime import require_runtime
from memdiag.records.generation import GenaiConfig
from memdiag.runner.job import InputConfig, Limits, SessionConfig

_LEVELS = ("disable_all", "basic", "extended", "layout", "all")
_LOG_OPTIONS = ("log_severity_level", "log_verbosity_level", "logid")
"""Session options that memdiag sets itself, as it reads the log."""

XrayTime = Literal["steady", "phases", "none"]
"""When the owners of resident bytes are identified: at steady state, also at the ends of all
phases, or never."""


@dataclass(frozen=True, kw_only=True)
class ProfileConfig:
    """The configuration of a profile.

    Attributes:
        session: how the session is created and run.
        inputs: the inputs, and the number of runs.
        limits: when the child is ended.
        xray: when the owners of resident bytes are identified, as in `memdiag.profile`.
        run_peak: measure the peak of a run by node, in a child of its own.
        rules: the rules to run on the model.
        command: the command line that asked for the profile, for the record.
    """

    session: SessionConfig = field(default_factory=SessionConfig)
    inputs: InputConfig = field(default_factory=InputConfig)
    limits: Limits = field(default_factory=Limits)
    xray: XrayTime = "steady"
    run_peak: bool = False
    rules: Selection = field(default_factory=Selection)
    command: tuple[str, ...] = ()

    def figures_only(self) -> "ProfileConfig":
        """Return this configuration without X-rays and peak of a run."""
        return replace(self, xray="none", run_peak=False)


def profile_config(
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, ArrayOrFile] | None = None,
    runs: int = DEFAULT_RUNS,
    run: bool = True,
    feed: Sequence[str] = (),
    steps: int | None = None,
    prefill: int | None = None,
    genai: GenaiConfig | None = None,
    session_options: Mapping[str, str] | None = None,
    disabled_optimizers: Sequence[str] = (),
    threads: int | None = None,
    providers: Sequence[str] = DEFAULT_PROVIDERS,
    provider_options: Mapping[str, Mapping[str, str]] | None = None,
    run_options: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    load_from: Literal["path", "bytes"] = "path",
    python: str | Path | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    memory_limit_bytes: int | None = None,
    xray: XrayTime,
    run_peak: bool = False,
    rules: Selection,
    command: tuple[str, ...] = (),
) -> ProfileConfig:
    """Return the configuration of a profile.

    The arguments are as in `memdiag.profile`; `genai` is the configuration of a model for
    onnxruntime-genai, `rules` are the rules to run, and `command` is the command line that asked
    for the profile.

    Raises:
        UsageError: an argument is not of its type, an option cannot be set, a file cannot be read
            as an array, a limit leaves no time or no memory, or onnxruntime is not installed and no
            other interpreter is named.
    """
    check_names("providers", providers, "CPUExecutionProvider")
    check_names("disabled_optimizers", disabled_optimizers, "ConstantFolding")
    check_choice("load_from", load_from, ("path", "bytes"))
    check_choice("xray", xray, ("steady", "phases", "none"))
    _check_environment(environment or {})
    _check_provider_options(provider_options or {}, providers)
    _check_texts("run_options", run_options or {})
    options = check_session_options(session_options or {}, threads)
    if python is None:
        require_runtime("name an interpreter that has it (--python; in pytest --memdiag-python)")
    return ProfileConfig(
        session=SessionConfig(
            options=options,
            disabled_optimizers=tuple(disabled_optimizers),
            providers=tuple(providers),
            provider_options={
                name: dict(options) for name, options in (provider_options or {}).items()
            },
            run_options=dict(run_options or {}),
            environment=dict(environment or {}),
            load_from=load_from,
            python=Path(sys.executable if python is None else python),
        ),
        inputs=input_config(
            dims=dims,
            inputs=inputs,
            runs=runs,
            run=run,
            generation=generation_config(feed=feed, steps=steps, prefill=prefill, genai=genai),
        ),
        limits=limits(timeout_s=timeout_s, memory_limit_bytes=memory_limit_bytes),
        xray=xray,
        run_peak=run_peak,
        rules=rules,
        command=command,
    )


PROFILE_OPTIONS = tuple(
    name
    for name in inspect.signature(profile_config).parameters
    if name not in ("genai", "xray", "run_peak", "rules", "command")
)
"""The names of the arguments of `memdiag.profile` that configure the run."""


def _check_environment(environment: Mapping[str, str]) -> None:
    for name, text in environment.items():
        if not name or "=" in name or "\0" in f"{name}{text}":
            raise UsageError(
                f"environment: {name!r} is not the name of a variable, or its value has a null"
                " byte. Pass environment={'NAME': 'value'}."
            )


def check_session_options(
    session_options: Mapping[str, str], threads: int | None = None
) -> dict[str, str]:
    """Return the SessionOptions attributes and config entries by name.

    Raises:
        UsageError: an option cannot be set, there is no such level, or a value is no text.
    """
    options = dict(session_options)
    for name in _LOG_OPTIONS:
        if name in options:
            raise UsageError(f"session option {name} cannot be set: memdiag needs the log.")
    if "graph_optimization_level" in options:
        _check_optimization_level(options["graph_optimization_level"])
    _check_texts("session_options", options)
    if threads is not None:
        if isinstance(threads, bool) or not isinstance(threads, Integral) or threads < 0:
            raise UsageError(f"threads must be a number of 0 or more, not {threads!r}.")
        options["intra_op_num_threads"] = str(threads)
    return options


def _check_provider_options(
    provider_options: Mapping[str, Mapping[str, str]], providers: Sequence[str]
) -> None:
    """Check that options are texts, for providers of the session that have options."""
    for provider, options in provider_options.items():
        if provider not in providers:
            raise UsageError(
                f"{provider} has options but is not among the execution providers"
                f" {', '.join(providers)}. Name it as a provider as well."
            )
        if provider == CPU_PROVIDER:
            raise UsageError(
                f"{provider} reads no provider options. Set options of the session instead, such"
                " as enable_cpu_mem_arena."
            )
        _check_texts(f"provider_options[{provider!r}]", options)


def _check_texts(argument: str, options: Mapping[Any, Any]) -> None:
    """Check that the names and values of `options` are texts."""
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UsageError(
                f"{argument} must be strings, not {name!r}: {value!r}. Pass"
                f" {argument}={{{str(name)!r}: {str(value)!r}}}."
            )


def _check_optimization_level(level: str) -> None:
    """Check that `level` is a documented level, or onnxruntime's own name of one."""
    name = str(level).lower()
    enum_names = ("ort_disable_all", *(f"ort_enable_{level}" for level in _LEVELS[1:]))
    short_names = (name.removeprefix("ort_") for name in enum_names)
    if name not in (*_LEVELS, *enum_names, *short_names):
        raise UsageError(
            f"there is no optimization level {str(level)!r}. Choose from {', '.join(_LEVELS)}."
        )
