"""What the child is asked to do, and under which limits."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

DEFAULT_TIMEOUT_S = 1800.0


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
class Job:
    """One session to create and run in a child of its own.

    Runs after the first take `later_feeds` in turn; the first run's `feeds` where there are none.

    `runs` counts the runs after the first one; None stops after session creation. `environment`
    is added to ours for the child. `memory_limit_bytes` is compared with the child's whole
    resident set. `run_options` are config entries of each run; `shared_arena` has the session use
    an arena of the environment that grows by no more than is asked for (kSameAsRequested).
    """

    model: Path
    load_from: Literal["path", "bytes"] = "path"
    options: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    disabled_optimizers: tuple[str, ...] = ()
    run_options: Mapping[str, str] = field(default_factory=dict)
    shared_arena: bool = False
    feeds: tuple[Feed, ...] = ()
    later_feeds: tuple[tuple[Feed, ...], ...] = ()
    runs: int | None = 10
    python: Path = Path(sys.executable)
    timeout_s: float = DEFAULT_TIMEOUT_S
    memory_limit_bytes: int | None = None

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
            "inputs": [feed.message() for feed in self.feeds],
            "later_inputs": [[feed.message() for feed in feeds] for feeds in self.later_feeds],
            "runs": self.runs,
        }
