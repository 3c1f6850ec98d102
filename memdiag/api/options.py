"""The options that functions and commands share, each stated once.

A group of options is a TypedDict. Its keys are keyword arguments of functions, which declare them
with `takes_options`, and options of commands, which `memdiag.cli.options` adds and reads by their
types. The `SharedOption` in each annotation has what the type does not say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypedDict,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from memdiag.defaults import (
    DEFAULT_PREFILL_TOKENS,
    DEFAULT_PROVIDERS,
    DEFAULT_RUNS,
    DEFAULT_STEPS,
    DEFAULT_TIMEOUT_S,
    LOCAL_EXECUTION,
    LoadFrom,
    XrayTime,
)
from memdiag.errors import UsageError

if TYPE_CHECKING:
    from memdiag.api.inputs import ArrayOrFile
else:
    ArrayOrFile = Any  # importing numpy takes longer than --help may take

_Function = TypeVar("_Function", bound=Callable[..., Any])


class SharedOption(NamedTuple):
    """The description of an option, for functions and commands.

    Attributes:
        flag: the option of commands, such as ``--runs``.
        metavar: what stands for its value in the help; empty for switches and choices.
        help: a sentence or more.
        default: the value without the option.
    """

    flag: str
    metavar: str
    help: str
    default: Any = None


class ArrayOptions(TypedDict, total=False):
    """The data of inputs."""

    inputs: Annotated[
        Mapping[str, ArrayOrFile],
        SharedOption(
            "--input",
            "[NAME=]FILE",
            "Data of inputs: NAME=FILE.npy of one, or FILE.npz of several by name; the others are"
            " generated.",
            {},
        ),
    ]


class InputOptions(ArrayOptions, total=False):
    """The inputs of a model."""

    dims: Annotated[
        Mapping[str, int],
        SharedOption(
            "--dim",
            "NAME=N,…",
            "Size of a free dimension, by its name, INPUT:AXIS, or its role (such as batch) if no"
            " other dimension has the same role (see memdiag check).",
            {},
        ),
    ]


class GenerationOptions(TypedDict, total=False):
    """How a decoder is run as a program generates a text."""

    feed: Annotated[
        Sequence[str],
        SharedOption(
            "--feed",
            "OUTPUT=INPUT",
            "Run a decoder as a program generates a text: outputs that are fed to inputs of the"
            " next call, as pairs of patterns such as present.*=past_key_values.*. Found by the"
            " names of exporters with --steps or --prefill alone.",
            (),
        ),
    ]
    steps: Annotated[
        int | None,
        SharedOption(
            "--steps",
            "N",
            "Calls of one token after the prompt, in place of --runs (default:"
            f" {DEFAULT_STEPS} with --feed or --prefill).",
        ),
    ]
    prefill: Annotated[
        int | None,
        SharedOption(
            "--prefill",
            "N",
            "Tokens of the prompt, which is one call with an empty past (default:"
            f" {DEFAULT_PREFILL_TOKENS} with --feed or --steps).",
        ),
    ]


class ConfigOptions(TypedDict, total=False):
    """The settings of a session by name."""

    session_options: Annotated[
        Mapping[str, str | int],
        SharedOption(
            "--session-option", "KEY=VALUE", "SessionOptions attributes and config entries.", {}
        ),
    ]


class ProviderOptions(TypedDict, total=False):
    """The execution providers of a session."""

    providers: Annotated[
        Sequence[str],
        SharedOption(
            "--provider", "NAME", "Execution providers, the preferred one first.", DEFAULT_PROVIDERS
        ),
    ]
    provider_options: Annotated[
        Mapping[str, Mapping[str, str]],
        SharedOption(
            "--provider-option", "PROVIDER:KEY=VALUE", "Options of execution providers.", {}
        ),
    ]


class SessionAndRunOptions(ConfigOptions, ProviderOptions, total=False):
    """How a session is created and run."""

    run_options: Annotated[
        Mapping[str, str],
        SharedOption("--run-option", "KEY=VALUE", "RunOptions config entries of each run.", {}),
    ]


class GraphOptions(TypedDict, total=False):
    """How a session reads and optimizes its graph."""

    disabled_optimizers: Annotated[
        Sequence[str],
        SharedOption("--disable-optimizer", "NAME", "Graph transformers to disable.", ()),
    ]
    load_from: Annotated[
        LoadFrom,
        SharedOption(
            "--load-from", "", "Create the session from the model's path, or its bytes.", "path"
        ),
    ]


class TimeoutOptions(TypedDict, total=False):
    """How long a child process may take."""

    timeout_s: Annotated[
        float,
        SharedOption(
            "--timeout", "TIME", "Stop a child process after this time.", DEFAULT_TIMEOUT_S
        ),
    ]


class LimitOptions(TimeoutOptions, total=False):
    """When a child process is stopped."""

    memory_limit_bytes: Annotated[
        int | None,
        SharedOption(
            "--memory-limit", "SIZE", "Stop a child process with more resident memory, e.g. 2GB."
        ),
    ]


class RunCountOptions(TypedDict, total=False):
    """How often a model is run."""

    runs: Annotated[
        int,
        SharedOption(
            "--runs", "N", "Number of runs after the first run, in each process.", DEFAULT_RUNS
        ),
    ]


class MeasuringOptions(RunCountOptions, total=False):
    """What is run and examined in a profile."""

    run: Annotated[
        bool,
        SharedOption("--run", "", "Run the model; --no-run stops after session creation.", True),
    ]
    xray: Annotated[
        XrayTime,
        SharedOption(
            "--xray",
            "",
            "When to identify the owner of every resident byte: at steady state, also at the end of"
            " each phase, or never.",
            "steady",
        ),
    ]
    run_peak: Annotated[
        bool,
        SharedOption(
            "--run-peak",
            "",
            "Find the node at which a run takes most, the values in memory then, and working"
            " memory, in one more run with onnxruntime's profiler (1.28 and newer).",
            False,
        ),
    ]


class InterpreterOptions(TypedDict, total=False):
    """Where a session is created."""

    python: Annotated[
        Path | str | None,
        SharedOption("--python", "PYTHON", "Another Python interpreter that has onnxruntime."),
    ]


class EnvironmentOptions(TypedDict, total=False):
    """The environment of the process in which a session is created."""

    environment: Annotated[
        Mapping[str, str],
        SharedOption("--env", "KEY=VALUE", "Environment variables of the child process.", {}),
    ]


class ProcessOptions(InterpreterOptions, EnvironmentOptions, total=False):
    """The process in which a session is created."""


class ProfileOptions(
    MeasuringOptions,
    InputOptions,
    GenerationOptions,
    SessionAndRunOptions,
    GraphOptions,
    ProcessOptions,
    LimitOptions,
    total=False,
):
    """How `memdiag.profile` measures a model."""


class ModelLimitOptions(InputOptions, SessionAndRunOptions, total=False):
    """How `memdiag.limit` runs a model."""


class LeakOptions(ArrayOptions, SessionAndRunOptions, InterpreterOptions, total=False):
    """How `memdiag.leak` runs a model."""


class FixOptions(InputOptions, ProviderOptions, total=False):
    """How `memdiag.fix` runs a model."""


class CompareOptions(InputOptions, ConfigOptions, ProviderOptions, total=False):
    """How `memdiag.compare` runs models."""


class EstimateOptions(GenerationOptions, ConfigOptions, GraphOptions, total=False):
    """What `memdiag.estimate` assumes."""


class DeviceOptions(ProviderOptions, total=False):
    """What an estimate of the memory on a GPU assumes."""

    context_bytes: Annotated[
        int | None,
        SharedOption(
            "--gpu-context",
            "SIZE",
            "What the context and code of a process take on the GPU, as memdiag profile --xray none"
            " measures them (default: those of an H100).",
        ),
    ]


class DeviceEstimateOptions(ConfigOptions, DeviceOptions, total=False):
    """What `memdiag.estimate_device` assumes."""


class SweepOptions(RunCountOptions, TimeoutOptions, total=False):
    """How `memdiag.sweep` measures models."""

    onnxruntime: Annotated[
        Sequence[str],
        SharedOption(
            "--onnxruntime",
            "VERSION,…",
            "Versions of onnxruntime, e.g. 1.22.1,1.24.4,latest, installed where missing; and paths"
            " of Python interpreters or environments that have onnxruntime.",
            (),
        ),
    ]
    retry_failed: Annotated[
        bool, SharedOption("--retry-failed", "", "Do jobs again that failed before.", False)
    ]
    on: Annotated[
        str,
        SharedOption(
            "--on",
            "PLACE",
            "local for this machine, or a Dask cluster whose workers have memdiag: local-cluster,"
            " or dask://HOST:PORT of its scheduler.",
            LOCAL_EXECUTION,
        ),
    ]
    processes: Annotated[
        int | None,
        SharedOption(
            "--jobs",
            "N",
            "Number of jobs at once, as far as they fit into the memory (default: the CPUs). With"
            " 1, latencies are recorded too.",
        ),
    ]
    memory_bytes: Annotated[
        int | None,
        SharedOption(
            "--memory",
            "SIZE",
            "Memory that all jobs may take together (default: nine tenths of what is available).",
        ),
    ]


class CommandOptions(ProfileOptions, SweepOptions, DeviceOptions, total=False):
    """Options of commands, which may add to a sentence, and have other defaults."""

    time_limit_s: Annotated[
        float | None,
        SharedOption("--time-limit", "TIME", "Stop after this time, such as 90s or 5min."),
    ]
    duration_s: Annotated[
        float | None,
        SharedOption("--for", "TIME", "Length of the recording, such as 30s, 10min or 2h."),
    ]
    pause: Annotated[
        bool, SharedOption("--pause", "", "Stop the process while its memory is read.", False)
    ]
    for_onnxruntime: Annotated[
        str | None,
        SharedOption(
            "--for-onnxruntime",
            "VERSION",
            "Release to predict for, 1.24 or newer (default: the installed one).",
        ),
    ]


@cache
def options_of(group: type) -> dict[str, tuple[Any, SharedOption]]:
    """Return the type and the `SharedOption` of each option of `group`, by its name."""
    return {
        name: get_args(hint) for name, hint in get_type_hints(group, include_extras=True).items()
    }


def options_with_defaults(group: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all options of `group`: those given in `options`, and defaults.

    Raises:
        TypeError: there is no such option. Python raises it for a wrong keyword argument, too.
        UsageError: a value is not among the choices of its option.
    """
    options_by_name = options_of(group)
    for name in options:
        if name not in options_by_name:
            raise TypeError(
                f"there is no argument {name!r}. Choose from {', '.join(options_by_name)}."
            )
    values = {
        name: option.default if options.get(name) is None else options[name]
        for name, (_, option) in options_by_name.items()
    }
    for name, (kind, _) in options_by_name.items():
        if get_origin(kind) is Literal and values[name] not in get_args(kind):
            choices = ", ".join(get_args(kind))
            raise UsageError(f"{name} cannot be {values[name]!r}. Choose from {choices}.")
    return values


def takes_options(group: type) -> Callable[[_Function], _Function]:
    """Return a decorator of functions that end with ``**options: Unpack[group]``.

    It lists the options in the signature, which completion shows, and in the docstring, in place of
    the line on `options`.
    """
    import inspect  # imported here, since --help needs neither of these modules
    import textwrap

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        own_parameters = list(signature.parameters.values())[:-1]
        shared_parameters = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=kind
            )
            for name, (kind, option) in options_of(group).items()
        ]
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*own_parameters, *shared_parameters]
        )
        lines = [
            textwrap.fill(
                f"{name}: {option.help}",
                width=100,
                initial_indent=" " * 8,
                subsequent_indent=" " * 12,
            )
            for name, (_, option) in options_of(group).items()
        ]
        before, after = (function.__doc__ or "").split(_OPTIONS_LINE)
        function.__doc__ = before + "\n".join(lines) + after
        return function

    return decorate


_OPTIONS_LINE = "        options: see `takes_options`."
