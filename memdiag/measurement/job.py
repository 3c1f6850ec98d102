"""What the child is asked to do, and under which limits."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal

DEFAULT_TIMEOUT_S = 1800.0


class TimeLimitReached(Exception):
    """Ends work at its deadline. Not an error: callers return the best result so far."""


@dataclass(slots=True)
class Deadline:
    """When work has to end; jobs that share a deadline see it being moved.

    Attributes:
        at: the moment by `time.monotonic()`, infinite without a time limit.
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
    """One input, saved as ``.npy`` files: one array, or those of a sequence.

    `onnx_type` is the element type's number in onnx.proto for arrays that numpy cannot type
    (bfloat16 and the 8-bit floats, as bit patterns); None where the array says it itself.
    """

    name: str
    files: tuple[Path, ...]
    sequence: bool = False
    onnx_type: int | None = None

    def message(self) -> dict[str, Any]:
        """Return what the loader is sent of it."""
        return {
            "name": self.name,
            "files": [str(path) for path in self.files],
            "sequence": self.sequence,
            "onnx_type": self.onnx_type,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedWeight:
    """An initializer whose bytes lie in a file, mapped once for all sessions of a process.

    `path` is the file and `offset` the first byte in it, `dtype` what numpy calls the type.
    """

    name: str
    path: Path
    offset: int
    dtype: str
    shape: tuple[int, ...]

    def message(self) -> dict[str, Any]:
        """Return what the loader is sent of it."""
        return {
            "name": self.name,
            "path": str(self.path),
            "offset": self.offset,
            "dtype": self.dtype,
            "shape": list(self.shape),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One model to create a session of and to run, in a child of its own.

    Runs after the first take `later_feeds` in turn; the first run's `feeds` where there are none.
    Where `sessions` are more than one, the others are created after the first one's first run and
    run like it; the times are the first one's. `shared_weights` are mapped once, for all of them.

    `runs` counts the runs after the first one; None stops after session creation. `environment`
    is added to ours for the child. `memory_limit_bytes` is compared with the child's whole
    resident set; at the `deadline` a child is ended. `run_options` are config entries of each run;
    `shared_arena` has the session use an arena of the environment that grows by no more than is
    asked for (kSameAsRequested).
    `telemetry` leaves onnxruntime's telemetry on, as it is by default.
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
        """Return what the loader is sent of it."""
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
