"""The comparison: versions, optimizers, models or saved profiles side by side (schema
``memdiag.comparison/1``)."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from memdiag.records.attribution import CopyKind
from memdiag.records.base import PlottableRecord, Record
from memdiag.records.dimension import Dimension
from memdiag.records.phases import PhaseName
from memdiag.records.profile import PeakKind, Profile

COMPARISON_SCHEMA: Final = "memdiag.comparison/1"

ComparisonKind = Literal["onnxruntime", "optimizers", "models", "profiles"]

ColumnStatus = Literal["completed", "failed", "killed", "timeout", "limit", "unavailable"]
"""``failed``, ``killed``, ``timeout`` and ``limit``: how the optimizer, or the run of the model,
ended; ``unavailable``: the runtime or optimizer is not available."""

Metric = Literal["peak", "steady", "kept", "load", "latency", "disk", "outputs"]
"""``peak``, ``steady``: memory above the baseline; ``kept``: growth in a phase; ``load``: session
creation; ``latency``: of a run; ``disk``: the model's files; ``outputs``: values and shapes."""


class Bytes(Record, frozen=True, kw_only=True):
    """The median, the smallest and the largest of several measurements, in bytes."""

    median: int
    low: int
    high: int


class Seconds(Record, frozen=True, kw_only=True):
    """The median, the smallest and the largest of several measurements, in seconds."""

    median: float
    low: float
    high: float


class PhaseFigures(Record, frozen=True, kw_only=True):
    """One phase: its duration, its peak above the baseline, and its growth (`kept`)."""

    phase: PhaseName
    duration: Seconds
    peak: Bytes
    peak_kind: PeakKind
    kept: Bytes


class Measured(Record, frozen=True, kw_only=True):
    """The figures of a column over `times` fresh processes, memory above the baseline of each.

    `steady` is the memory after the last run, or after session creation if nothing was run. Its
    parts are None if the system does not report them. `load` is session creation.
    """

    times: int
    peak: Bytes
    peak_phase: PhaseName
    peak_kind: PeakKind
    steady: Bytes
    anonymous: Bytes | None
    file: Bytes | None
    load: Seconds
    phases: tuple[PhaseFigures, ...]


class Latency(Record, frozen=True, kw_only=True):
    """The latency over `runs` runs: median and its 95 % confidence interval, in seconds.

    `ratio` is the ratio to the first column in interleaved runs, with its 95 % confidence interval
    over `pairs`; None for the first column, and if runs could not be interleaved.
    """

    median_s: float
    low_s: float
    high_s: float
    runs: int
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    pairs: int = 0


class Graph(Record, frozen=True, kw_only=True):
    """The model of a column: its nodes, its initializers (those of subgraphs too), the elements of
    all its weights, and the bytes of all its files. Unknown facts are None."""

    nodes: int | None
    initializers: int | None
    parameters: int | None
    saved_bytes: int


class OptimizerRun(Record, frozen=True, kw_only=True):
    """An optimizer: its duration without imports, and the largest resident set of its process and
    the processes that it started."""

    version: str
    duration_s: float
    peak_rss_bytes: int


class Column(Record, frozen=True, kw_only=True):
    """One column; `message` is why it could not be measured, or a note; may be empty.

    `profile` is the run with the X-ray. `largest_difference` is that of any output
    that the first column has too, relative to the output's largest value; None if outputs were not
    compared, or if no figure can express how they differ. `difference` says how they differ beyond
    that figure: in type, in shape, or because an output exists in one column only.
    """

    label: str
    status: ColumnStatus
    message: str
    model: str
    onnxruntime: str | None = None
    graph: Graph | None = None
    optimizer: OptimizerRun | None = None
    measured: Measured | None = None
    latency: Latency | None = None
    largest_difference: float | None = None
    difference: str = ""
    profile: Profile | None = None


class CopyChange(Record, frozen=True, kw_only=True):
    """Copies of weights that only the second column has (`count` above 0) or lacks (below 0).

    If `count` is 0, both columns have the copies, in different sizes.

    `weights` are the weights concerned, the largest first; `bytes` is the change of resident
    memory by all these copies. `made_by` is the step that made the largest of them.
    """

    from_: str = msgspec.field(name="from")
    to: str
    kind: CopyKind
    weights: Annotated[tuple[str, ...], Meta(min_length=1)]
    count: int
    bytes: int
    made_by: str | None


class Change(Record, frozen=True, kw_only=True):
    """A figure that differs between two columns by more than the spread between runs.

    `bytes` is the increase (0 for times and outputs), `ratio` the new figure divided by the old
    one; `why` is the cause, empty if it is not known.
    """

    metric: Metric
    phase: PhaseName | None
    from_: str = msgspec.field(name="from")
    to: str
    bytes: int
    ratio: float | None
    why: str


class Bisection(Record, frozen=True, kw_only=True):
    """The search for the version in which `metric` changed.

    `before` and `after` are two successive versions among those that could be measured; both are
    None if the ends of the range do not differ by more than the spread between runs.
    """

    metric: Metric
    before: str | None
    after: str | None
    candidates: int


class Comparison(PlottableRecord, frozen=True, kw_only=True):
    """Columns side by side, and the changes between them.

    For `onnxruntime`, `changes` are from each version to the next one; otherwise from the first
    column to each other one. `notes` are sentences on figures that were not compared, with the
    reasons. `dimensions` are the free dimensions of the inputs with the sizes of all runs.

    Raises:
        ValueError: a change names a column that is not there.
    """

    schema: Literal["memdiag.comparison/1"]
    kind: ComparisonKind
    columns: tuple[Column, ...]
    changes: tuple[Change, ...]
    copies: tuple[CopyChange, ...]
    bisection: Bisection | None
    notes: tuple[str, ...]
    duration_s: float
    dimensions: tuple[Dimension, ...] = ()

    def __post_init__(self) -> None:
        labels = {column.label for column in self.columns}
        for change in self.changes:
            for label in (change.from_, change.to):
                if label not in labels:
                    raise ValueError(f"a change names the column {label!r}, which is missing")
