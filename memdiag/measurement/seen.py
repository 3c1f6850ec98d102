"""What the watcher tells: where the child is while it runs, and all that was seen of it after."""

from dataclasses import dataclass
from typing import NamedTuple

from memdiag.records.profile import Memory, Outcome, Phase, PhaseName, Run, Samples, Sampling, Span


class Progress(NamedTuple):
    """Where the child is: for a display, called seldom enough not to disturb the watching."""

    phase: PhaseName
    span: str
    elapsed_s: float
    rss_bytes: int
    runs_done: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """What was seen of one child. `baseline` is None where it ended before the runtime was ready.

    `interrupted` says that it ended because we were asked to stop (Ctrl-C).
    """

    onnxruntime: str | None
    python: str | None
    providers: tuple[str, ...] | None
    baseline: Memory | None
    phases: tuple[Phase, ...]
    spans: tuple[Span, ...]
    samples: Samples
    sampling: Sampling
    steady: Memory | None
    first_run_s: float | None
    runs: tuple[Run, ...]
    allocator_retained_bytes: int | None
    warnings: tuple[str, ...]
    explicit_starts: bool
    outcome: Outcome
    interrupted: bool
