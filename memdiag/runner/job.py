"""The job of a child: a model, the configuration of its session, inputs, and limits."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal

DEFAULT_TIMEOUT_S = 1800.0


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
    """

    name: str
    files: tuple[Path, ...]
    sequence: bool = False
    onnx_type: int | None = None

    def message(self) -> dict[str, Any]:
        """Return the JSON object that the script receives."""
        return {
            "name": self.name,
            "files": [str(path) for path in self.files],
            "sequence": self.sequence,
            "onnx_type": self.onnx_type,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedWeight:
    """An initializer in a file that is mapped once for all sessions of a process.

    Attributes:
        name: the name of the initializer.
        path: the file.
        offset: the first byte in the file.
        dtype: numpy's name of the element type.
        shape: the shape of the tensor.
    """

    name: str
    path: Path
    offset: int
    dtype: str
    shape: tuple[int, ...]

    def message(self) -> dict[str, Any]:
        """Return the JSON object that the script receives."""
        return {
            "name": self.name,
            "path": str(self.path),
            "offset": self.offset,
            "dtype": self.dtype,
            "shape": list(self.shape),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One model to load and run in a child of its own.

    Attributes:
        model: the ONNX file.
        load_from: whether the session receives the path or the bytes of the file.
        options: SessionOptions attributes and config entries by name.
        environment: variables to add to the environment of the child.
        providers: execution providers, the preferred one first.
        disabled_optimizers: names of graph transformers to leave out.
        run_options: config entries of each run.
        shared_arena: use an arena of the environment that grows by no more than is requested
            (kSameAsRequested).
        sessions: number of sessions. The others are created after the first run of the first one
            and run like it; latencies are those of the first.
        shared_weights: initializers that are mapped once for all sessions.
        feeds: the inputs of the first run.
        later_feeds: the inputs of the later runs in turn; `feeds` if empty.
        runs: number of runs after the first one; None stops after session creation.
        python: the interpreter of the child.
        timeout_s: seconds after which the child is ended.
        deadline: the time at which the child is ended, shared with other jobs.
        memory_limit_bytes: resident set of the whole child above which it is ended.
        telemetry: leave onnxruntime's telemetry on, as it is by default.
    """

    model: Path
    load_from: Literal["path", "bytes"] = "path"
    options: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    disabled_optimizers: tuple[str, ...] = ()
    run_options: Mapping[str, str] = field(default_factory=dict)
    shared_arena: bool = False
    sessions: int = 1
    shared_weights: tuple[SharedWeight, ...] = ()
    feeds: tuple[Feed, ...] = ()
    later_feeds: tuple[tuple[Feed, ...], ...] = ()
    runs: int | None = 10
    python: Path = Path(sys.executable)
    timeout_s: float = DEFAULT_TIMEOUT_S
    deadline: Deadline = field(default_factory=Deadline)
    memory_limit_bytes: int | None = None
    telemetry: bool = False

    def message(self) -> dict[str, Any]:
        """Return the JSON object that the script receives."""
        return {
            "model": str(self.model),
            "load_from": self.load_from,
            "options": dict(self.options),
            "providers": list(self.providers),
            "disabled_optimizers": list(self.disabled_optimizers),
            "run_options": dict(self.run_options),
            "shared_arena": self.shared_arena,
            "sessions": self.sessions,
            "shared_weights": [one.message() for one in self.shared_weights],
            "inputs": [feed.message() for feed in self.feeds],
            "later_inputs": [[feed.message() for feed in feeds] for feeds in self.later_feeds],
            "runs": self.runs,
        }
