"""The configuration of a profile, and its construction from the arguments of `memdiag.profile`."""

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from memdiag.api.arguments import check_names, child_process_limits, generation_config, input_config
from memdiag.api.check import RuleSelection
from memdiag.api.options import ProfileOptions, options_with_defaults
from memdiag.defaults import CPU_PROVIDER, CUDA_PROVIDER, PINNED_ENVIRONMENT, XrayTime
from memdiag.errors import ArgumentError, UsageError
from memdiag.ort.runtime import require_runtime
from memdiag.records.generation import GenaiConfig
from memdiag.runner.job import InputConfig, Limits, SessionConfig
from memdiag.session_options import CUDA_PROVIDER_OPTIONS, LEVEL_OPTION, optimization_level

_LOG_OPTIONS = ("log_severity_level", "log_verbosity_level", "logid")
"""Session options that memdiag sets itself, as it reads the log."""

_ALL_RULES = RuleSelection()


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
    rules: RuleSelection = field(default_factory=RuleSelection)
    command: tuple[str, ...] = ()

    def figures_only(self) -> "ProfileConfig":
        """Return this configuration without X-rays and peak of a run."""
        return replace(self, xray="none", run_peak=False)


def profile_config(
    options: Mapping[str, Any],
    *,
    rules: RuleSelection = _ALL_RULES,
    genai: GenaiConfig | None = None,
    command: tuple[str, ...] = (),
) -> ProfileConfig:
    """Return the configuration of a profile.

    Args:
        options: the values of `ProfileOptions`, or of some of them, by name.
        rules: the rules to run.
        genai: the configuration of a model for onnxruntime-genai; None for other models.
        command: the command line that asked for the profile.

    Raises:
        UsageError: an option is not of its type or cannot be set, a file cannot be read as an
            array, a limit is not greater than 0, or onnxruntime is not installed and no other
            interpreter is named.
    """
    values = options_with_defaults(ProfileOptions, options)
    python = values["python"]
    session = session_config(values)
    _check_environment(values["environment"])
    check_provider_options(values["provider_options"], session.providers)
    _check_option_texts("run_options", values["run_options"])
    if python is None:
        require_runtime("name an interpreter that has it (--python; in pytest --memdiag-python)")
    return ProfileConfig(
        session=replace(
            session,
            environment={**_inherited_pinning(), **values["environment"]},
            python=Path(sys.executable if python is None else python),
        ),
        inputs=input_config(
            dims=values["dims"],
            inputs=values["inputs"],
            runs=values["runs"],
            run=values["run"],
            generation=generation_config(
                feed=values["feed"],
                steps=values["steps"],
                prefill=values["prefill"],
                genai=genai,
                runs=values["runs"],
            ),
        ),
        limits=child_process_limits(
            timeout_s=values["timeout_s"], memory_limit_bytes=values["memory_limit_bytes"]
        ),
        xray=values["xray"],
        run_peak=values["run_peak"],
        rules=rules,
        command=command,
    )


def session_config(values: Mapping[str, Any]) -> SessionConfig:
    """Return the configuration of a session; `values` has its fields by name, and other options.

    Raises:
        UsageError: an option cannot be set, or names are not a list.
    """
    for name, example in (("providers", CPU_PROVIDER), ("disabled_optimizers", "ConstantFolding")):
        if name in values:
            check_names(name, values[name], example)
    names = {config_field.name for config_field in fields(SessionConfig)}
    session_fields = {name: _copy_of_option(values[name]) for name in names & values.keys()}
    return SessionConfig(**session_fields, options=check_session_options(values["session_options"]))


def _copy_of_option(value: Any) -> Any:
    """Return a copy of the value of an option, which the caller cannot change."""
    if isinstance(value, Mapping):
        return {name: _copy_of_option(item) for name, item in value.items()}
    is_list = isinstance(value, Collection) and not isinstance(value, str)
    return tuple(value) if is_list else value


def _inherited_pinning() -> dict[str, str]:
    """Return the inherited variables of the child on which figures depend, for the record."""
    return {name: os.environ[name] for name in PINNED_ENVIRONMENT if name in os.environ}


def _check_environment(environment: Mapping[str, str]) -> None:
    for name, text in environment.items():
        if not name or "=" in name or "\0" in f"{name}{text}":
            raise UsageError(
                f"environment: {name!r} is not the name of a variable, or its value has a null"
                " byte. Pass environment={'NAME': 'value'}."
            )


def check_session_options(session_options: Mapping[str, str | int]) -> dict[str, str]:
    """Return the SessionOptions attributes and config entries by name, as texts.

    Raises:
        UsageError: an option cannot be set or is an option of a provider, there is no such level,
            or a value is not text.
    """
    options = {name: _option_text(value) for name, value in session_options.items()}
    for name in _LOG_OPTIONS:
        if name in options:
            raise UsageError(f"session option {name} cannot be set: memdiag needs the log.")
    _check_option_texts("session_options", options)
    for name in options:
        if name in CUDA_PROVIDER_OPTIONS:
            raise ArgumentError(
                f"{name} is an option of the CUDA provider, not of the session. Pass"
                f" {CUDA_PROVIDER}:{name} in {{provider_options}} instead."
            )
    if LEVEL_OPTION in options:
        optimization_level(options[LEVEL_OPTION])
    return options


def _option_text(value: Any) -> Any:
    """Return an integer or a bool as the text that onnxruntime reads; other values unchanged."""
    if isinstance(value, int):
        return str(int(value))
    return value


def check_provider_options(
    provider_options: Mapping[str, Mapping[str, str]], providers: Sequence[str]
) -> None:
    """Check that options are texts, and that their providers are in the session and have options.

    Raises:
        UsageError: an option does not meet this.
    """
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
        _check_option_texts(f"provider_options[{provider!r}]", options)


def _check_option_texts(argument: str, options: Mapping[Any, Any]) -> None:
    """Check that the names and values of `options` are texts."""
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UsageError(
                f"{argument} must be strings, not {name!r}: {value!r}. Pass"
                f" {argument}={{{str(name)!r}: {str(value)!r}}}."
            )
