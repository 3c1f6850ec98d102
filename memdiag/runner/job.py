"""The job of a child: a model and its inputs, with the configuration of the measurement.

The command line, the Python API and the child share the configuration in three groups:
`SessionConfig`, `InputConfig` and `Limits`.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from memdiag.defaults import (
    DEFAULT_PREFILL_TOKENS,
    DEFAULT_PROVIDERS,
    DEFAULT_RUNS,
    DEFAULT_STEPS,
    DEFAULT_TIMEOUT_S,
    LoadFrom,
)
from memdiag.records.generation import GenaiConfig
from memdiag.records.profile import Session

if TYPE_CHECKING:
    from memdiag.stored_arrays import GivenArray


class TimeLimitReached(Exception):
    """Raised at a deadline. Not an error: callers return the best result so far."""


@dataclass(slots=True)
class Deadline:
    """The time at which work has to end. Jobs can share one, so that it changes for all of them.

    Attributes:
        at: the time of `time.monotonic()`, infinite without a time limit.
    """

    at: float = inf

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline, negative once it has passed."""
        return self.at - time.monotonic()

    @contextmanager
    def at_most(self, share: float) -> Iterator[None]:
        """Let the context end within that share of the remaining time."""
        end = self.at
        self.at = time.monotonic() + share * self.remaining_s
        try:
            yield
        finally:
            self.at = end

    def check(self) -> None:
        """Raise TimeLimitReached if the deadline has passed."""
        if self.remaining_s <= 0:
            raise TimeLimitReached


@dataclass(frozen=True, kw_only=True, slots=True)
class Feed:
    """One input, saved as ``.npy`` files.

    Attributes:
        name: the name of the input.
        files: the file of the array, or the files of the arrays of a sequence.
        sequence: whether the input is a sequence.
        onnx_type: the number of the element type in onnx.proto for arrays of a type that numpy
            lacks (bfloat16 and the 8-bit floats, as bit patterns); None for other arrays.
        vary: how the contents may change from run to run (see `runner.scripts.contents`):
            ``bits``, ``text``, a range of integers (low, high), or None if they stay the same.
    """

    name: str
    files: tuple[Path, ...]
    sequence: bool = False
    onnx_type: int | None = None
    vary: Literal["bits", "text"] | tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionConfig:
    """Configuration of a session, its runs, and the interpreter that runs them.

    Attributes:
        options: SessionOptions attributes and config entries by name.
        disabled_optimizers: names of graph transformers to leave out.
        providers: execution providers, the preferred one first.
        provider_options: options of providers by name, by the name of the provider.
        environment: variables to add to the environment of the child.
        load_from: whether the session receives the path or the bytes of the file.
        python: the interpreter of the child.
        run_options: config entries of each run.
        shared_arena: use an arena of the environment that grows by no more than is requested
            (kSameAsRequested).
    """

    options: Mapping[str, str] = field(default_factory=dict)
    disabled_optimizers: tuple[str, ...] = ()
    providers: tuple[str, ...] = DEFAULT_PROVIDERS
    provider_options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    load_from: LoadFrom = "path"
    python: Path = Path(sys.executable)
    run_options: Mapping[str, str] = field(default_factory=dict)
    shared_arena: bool = False

    def session_record(self, *, providers: tuple[str, ...] | None, runs: int | None) -> Session:
        """Return the description of the session for records: the fields of the same names.

        Args:
            providers: the providers that onnxruntime chose; None if no session was created.
            runs: number of runs after the first one; None without runs.
        """
        values = {**json_value(self), "providers": providers or self.providers, "runs": runs}
        return msgspec.convert({name: values[name] for name in Session.__struct_fields__}, Session)


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationConfig:
    """A generation: how outputs are fed to the next call, and how many tokens are run.

    Attributes:
        feed: pairs of patterns ``OUTPUT=INPUT``; those of an exporter if empty.
        prefill_tokens: the tokens of the prompt, which are one call.
        steps: the calls of one token after it.
        genai: the configuration of the model for onnxruntime-genai; None without one.
    """

    feed: tuple[str, ...] = ()
    prefill_tokens: int = DEFAULT_PREFILL_TOKENS
    steps: int = DEFAULT_STEPS
    genai: GenaiConfig | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class InputConfig:
    """The inputs that a model is run with, and how often.

    Attributes:
        dims: sizes of free dimensions by name; the others are chosen.
        arrays: arrays by input name; the others are generated.
        runs: number of runs after the first one; None stops after session creation.
        same_inputs: run all with the same contents; otherwise the contents of generated inputs
            differ.
        generation: run the model as a program generates a text; None to run it with the same shapes
            each time. For a generation, `runs` is the number of its steps.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    arrays: Mapping[str, "GivenArray"] = field(default_factory=dict)
    runs: int | None = DEFAULT_RUNS
    same_inputs: bool = False
    generation: GenerationConfig | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits at which a child is ended.

    Attributes:
        timeout_s: seconds after which it is ended.
        deadline: the time at which it is ended, shared with other jobs.
        memory_limit_bytes: resident set of the whole child above which it is ended.
    """

    timeout_s: float = DEFAULT_TIMEOUT_S
    deadline: Deadline = field(default_factory=Deadline)
    memory_limit_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepInput:
    """How an input changes from one step of a generation to the next.

    Attributes:
        name: the input. The array of `Job.later_feeds` has its size in the last step.
        grows_along: the axis that becomes longer by one in each step; None if its shape stays.
        past_offset: the difference between its elements and the number of past tokens; None if they
            do not follow that number.
    """

    name: str
    grows_along: int | None = None
    past_offset: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationJob:
    """The calls after the first one, each of which receives outputs of the call before it.

    Attributes:
        pairs: the outputs, and the inputs to which they are fed.
        prefill_tokens: the tokens of the first call.
        step_inputs: the inputs that change in another way.
        cache: the formula of the KV cache after the last step, for the name of its owner.
        prefill_cache: the same after the first call.
    """

    pairs: tuple[tuple[str, str], ...]
    prefill_tokens: int
    step_inputs: tuple[StepInput, ...]
    cache: str = ""
    prefill_cache: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One model to load and run in a child of its own.

    Attributes:
        model: the ONNX file.
        session: the configuration of the session.
        limits: when the child is ended.
        feeds: the inputs of the first run.
        later_feeds: the inputs of the later runs in turn; `feeds` if empty.
        runs: number of runs after the first one; None stops after session creation.
        entering: words before the command of the child, such as those that enter a control group.
        generation: how each run receives outputs of the run before it; None if it does not.
        records_device: whether the child reports the memory of its NVIDIA device at each step.
        records_allocations: whether it also reports each allocation on the device.
    """

    model: Path
    session: SessionConfig = field(default_factory=SessionConfig)
    limits: Limits = field(default_factory=Limits)
    feeds: tuple[Feed, ...] = ()
    later_feeds: tuple[tuple[Feed, ...], ...] = ()
    runs: int | None = DEFAULT_RUNS
    entering: tuple[str, ...] = ()
    generation: GenerationJob | None = None
    records_device: bool = False
    records_allocations: bool = True

    def message(self) -> dict[str, Any]:
        """Return the JSON object that the script receives: every field of the session, by name."""
        return {
            **json_value(self.session),
            "model": json_value(self.model),
            "feeds": json_value(self.feeds),
            "later_feeds": json_value(self.later_feeds),
            "runs": self.runs,
            "generation": json_value(self.generation),
            "records_device": self.records_device,
            "records_allocations": self.records_allocations,
        }


def json_value(value: Any) -> Any:
    """Return `value` as json.dumps supports it: dataclasses as objects, paths as strings."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {name: json_value(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [json_value(item) for item in value]
    if is_dataclass(value):
        return {
            value_field.name: json_value(getattr(value, value_field.name))
            for value_field in fields(value)
        }
    return value


def missing_providers(requested: Sequence[str], providers: Sequence[str]) -> list[str]:
    """Return which of the `requested` execution providers a session with `providers` lacks."""
    return [name for name in requested if name not in providers]


def fallback_text(missing: Sequence[str], providers: Sequence[str]) -> str:
    """Return a clause on a session that lacks providers which were asked for.

    Args:
        missing: the execution providers that it lacks.
        providers: the execution providers that it has.
    """
    return (
        f"onnxruntime created the session without {', '.join(missing)}: it runs on"
        f" {', '.join(providers)}"
    )
