"""The profile: what one run of a model took, phase by phase (schema ``memdiag.profile/1``)."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from memdiag.records.attribution import Attribution
from memdiag.records.base import Drawn, Record
from memdiag.records.budget import Judgement
from memdiag.records.dimension import Dimension
from memdiag.records.finding import Finding
from memdiag.records.fix import Fix
from memdiag.records.phases import PHASES as PHASES
from memdiag.records.phases import PhaseName as PhaseName

PROFILE_SCHEMA: Final = "memdiag.profile/1"

MAX_PHASES = 100
MAX_SPANS = 10_000
"""Of a saved profile: a session has eight phases, and some hundred spans."""

PeakKind = Literal["exact", "sampled"]
"""``exact``: the kernel's own high-water mark; ``sampled``: the largest sample that was seen."""

Status = Literal["completed", "failed", "killed", "timeout", "limit"]


class Memory(Record, frozen=True, kw_only=True):
    """Resident memory at one moment; the parts are None where the system does not tell them.

    `rss_bytes` is the sum of anonymous (heap, arenas, stacks), file-backed (mapped libraries and
    weights) and shared memory (tmpfs and System V).
    """

    rss_bytes: int
    anonymous_bytes: int | None
    file_bytes: int | None
    shared_bytes: int | None


class Model(Record, frozen=True, kw_only=True):
    """The model file: `file_bytes` on disk, `external_bytes` beside it, `weight_bytes` of constant
    tensors wherever they live. Facts that could not be read are None."""

    path: str
    file_bytes: int
    external_bytes: int
    weight_bytes: int | None
    weight_count: int | None
    node_count: int | None
    ir_version: int | None
    opsets: dict[str, int]


class Environment(Record, frozen=True, kw_only=True):
    """Where it ran: versions and machine, nothing that names a person or a host.

    `machine` is the class of machines on which the same model takes the same memory, as far as
    that depends on them: system, architecture, widest vector instructions, C library.
    """

    memdiag: str
    onnxruntime: str | None
    python: str | None
    platform: str
    cpu: str
    cpu_count: int
    memory_bytes: int
    machine: str = ""


class Session(Record, frozen=True, kw_only=True):
    """The session as it was created.

    `options` holds SessionOptions attributes and config entries by name; `environment` only the
    variables that were set for the child.
    """

    options: dict[str, str]
    environment: dict[str, str]
    providers: tuple[str, ...]
    disabled_optimizers: tuple[str, ...]
    load_from: Literal["path", "bytes"]
    runs: int | None


class Input(Record, frozen=True, kw_only=True):
    """One input that the model was run with: its shape and dtype, never its values.

    `source` is ``generated`` or ``given``; `note` says what was chosen for it, in words.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    source: Literal["generated", "given"]
    note: str


class Phase(Record, frozen=True, kw_only=True):
    """All spans of one phase together.

    `duration_s` and `net_rss_bytes` are sums over the phase's spans, `start` and `end` are the
    memory where its first span starts and its last one ends (constant folding, for example,
    runs once a step, with other transformers between).
    """

    name: PhaseName
    duration_s: float
    start: Memory
    end: Memory
    net_rss_bytes: int
    peak_rss_bytes: int
    peak_kind: PeakKind


class Span(Record, frozen=True, kw_only=True):
    """A stretch of time without a seam; the spans of a profile follow each other without gaps.

    `name` is the graph transformer's name for those of `optimize` and `constant_fold`, otherwise
    what the runtime was doing. `step` counts the transformer's passes from 1; `modified` is
    what the runtime said of it. Times are seconds since the child was started.
    """

    name: str
    phase: PhaseName
    step: int | None
    modified: bool | None
    start_s: float
    end_s: float
    start_rss_bytes: int
    net_rss_bytes: int
    peak_rss_bytes: int
    peak_kind: PeakKind


class Samples(Record, frozen=True, kw_only=True):
    """The timeline, as columns of equal length; times are seconds since the child was started.

    A stretch in which nothing changed keeps its first and last sample only. `anonymous_bytes` is
    None in a row where the system does not split the figure; `file_bytes` includes shared memory.
    `shared_bytes` is that part of it, and empty where there was none all the time or it is not
    known.
    """

    t_s: tuple[float, ...]
    rss_bytes: tuple[int, ...]
    anonymous_bytes: tuple[int | None, ...]
    file_bytes: tuple[int | None, ...]
    shared_bytes: tuple[int | None, ...] = ()

    def __repr__(self) -> str:
        """Return how many there are: all of them would be pages."""
        return f"<Samples {len(self.t_s):,} rows>"


class Sampling(Record, frozen=True, kw_only=True):
    """How well the child was watched.

    `method` is the source of the samples; `count` how many were taken (before stretches were
    joined); `period_s` the median time between two and `largest_gap_s` the worst.
    `boundary_lag_s` is the largest time between the runtime's writing of a line that starts a
    phase and our reading of it: what moved in that time is counted to the phase before.
    """

    method: Literal["proc", "psutil"]
    count: int
    period_s: float
    largest_gap_s: float
    boundary_lag_s: float | None


class Run(Record, frozen=True, kw_only=True):
    """One run after the first: its latency, and the resident set right after it.

    `end_s` is when it was seen to have ended, in seconds since the child was started, and
    `peak_rss_bytes` the kernel's own high-water mark from the run before until then; None where
    the system does not keep one, and in records that were saved without them.
    """

    latency_s: float
    rss_bytes: int
    end_s: float | None = None
    peak_rss_bytes: int | None = None


class Outcome(Record, frozen=True, kw_only=True):
    """How it ended, in which phase, and in words where it did not complete."""

    status: Status
    phase: PhaseName
    message: str


class PhaseAttribution(Record, frozen=True, kw_only=True):
    """Who owned what when a phase ended (for the last time, where it comes several times)."""

    phase: PhaseName
    attribution: Attribution


class Profile(Drawn, frozen=True, kw_only=True):
    """What one run of one model took.

    All resident sets are of the whole child process; subtract `baseline_rss_bytes` (interpreter,
    imported runtime and inputs) to speak of the model.

    `peak_rss_bytes` is the largest peak after `start`, and `peak_phase` the first phase that came
    within 0.5 % of it (above the baseline); `steady_rss_bytes` the resident set after
    the last run; `allocator_retained_bytes` what ``malloc_trim`` gave back after that;
    `attribution` who owned what then (None where no X-ray was taken), `phase_attributions` who
    did at the ends of earlier phases, where that was asked for. `findings` are what the rules say
    of the model for this version of the runtime, confronted with `attribution`.

    `judgement` is how it compares with a budget or baseline it was held to, `command` the command
    that made it, word by word (empty where it was made otherwise). `fix` is the fix or the tuning
    of the model that was joined to it, for its report to tell. `dimensions` are the free dimensions
    of the inputs with the sizes of this run.
    """

    schema: Literal["memdiag.profile/1"]
    model: Model
    environment: Environment
    session: Session
    inputs: tuple[Input, ...]
    baseline_rss_bytes: int
    phases: Annotated[tuple[Phase, ...], Meta(max_length=MAX_PHASES)]
    spans: Annotated[tuple[Span, ...], Meta(max_length=MAX_SPANS)]
    samples: Samples
    sampling: Sampling
    peak_rss_bytes: int
    peak_phase: PhaseName
    peak_kind: PeakKind
    steady_rss_bytes: int | None
    steady: Memory | None
    allocator_retained_bytes: int | None
    first_run_s: float | None
    runs: tuple[Run, ...]
    notes: tuple[str, ...]
    outcome: Outcome
    attribution: Attribution | None = None
    phase_attributions: tuple[PhaseAttribution, ...] = ()
    findings: tuple[Finding, ...] = ()
    judgement: Judgement | None = None
    command: tuple[str, ...] = ()
    fix: Fix | None = None
    dimensions: tuple[Dimension, ...] = ()

    def phase(self, name: PhaseName) -> Phase | None:
        """Return the phase called `name`, or None where it was not reached or not told apart."""
        return next((phase for phase in self.phases if phase.name == name), None)
