"""Comparisons: versions, optimizers, models or saved profiles side by side (schema
``memdiag.comparison/1``)."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from memdiag.records.attribution import CopyKind
from memdiag.records.base import PlottableRecord, Record
from memdiag.records.dimension import Dimension
from memdiag.records.growth import GrowingOwner, Slope, Verdict
from memdiag.records.phases import PhaseName
from memdiag.records.profile import PeakKind, Profile

COMPARISON_SCHEMA: Final = "memdiag.comparison/1"

ComparisonKind = Literal["onnxruntime", "optimizers", "models", "profiles"]

ColumnStatus = Literal["completed", "failed", "killed", "timeout", "limit", "unavailable"]
"""``failed``, ``killed``, ``timeout`` and ``limit``: how the optimizer, or the run of the model,
ended; ``unavailable``: the runtime or optimizer is not available."""

Metric = Literal[
    "peak",
    "steady",
    "mapped",
    "device_peak",
    "device_steady",
    "kept",
    "growth",
    "load",
    "latency",
    "disk",
    "outputs",
]
"""``peak``, ``steady``: memory above the baseline; ``mapped``: the part of ``steady`` in mapped
files; ``device_peak``, ``device_steady``: memory on a GPU; ``kept``: growth in a phase;
``growth``: of memory in use over many runs; ``load``: session creation; ``latency``: of a run;
``disk``: the model's files; ``outputs``: values and shapes."""


class MeasuredBytes(Record, frozen=True, kw_only=True):
    """A size in bytes, measured several times.

    Attributes:
        median, low, high: the median, the smallest and the largest measurement.
    """

    median: int
    low: int
    high: int


class MeasuredSeconds(Record, frozen=True, kw_only=True):
    """A duration in seconds, measured several times.

    Attributes:
        median, low, high: the median, the smallest and the largest measurement.
    """

    median: float
    low: float
    high: float


class PhaseFigures(Record, frozen=True, kw_only=True):
    """The figures of one phase.

    Attributes:
        duration: the duration.
        peak: the peak above the baseline.
        kept: the growth of the resident set.
    """

    phase: PhaseName
    duration: MeasuredSeconds
    peak: MeasuredBytes
    peak_kind: PeakKind
    kept: MeasuredBytes


class ColumnFigures(Record, frozen=True, kw_only=True):
    """The figures of a column. Memory is above the baseline of each process.

    Attributes:
        times: the number of fresh processes.
        peak: the peak; `peak_phase` is its phase.
        steady: the memory after the last run, or after session creation if nothing was run.
        anonymous, file: the parts of `steady`; None if the system does not report them.
        load: the duration of session creation.
        phases: the figures of each phase.
        device_peak: the exact peak on a GPU; None without one, or without CUPTI.
        device_steady: the memory on a GPU after the last run; None without one.
    """

    times: int
    peak: MeasuredBytes
    peak_phase: PhaseName
    peak_kind: PeakKind
    steady: MeasuredBytes
    anonymous: MeasuredBytes | None
    file: MeasuredBytes | None
    load: MeasuredSeconds
    phases: tuple[PhaseFigures, ...]
    device_peak: MeasuredBytes | None = None
    device_steady: MeasuredBytes | None = None


class Latency(Record, frozen=True, kw_only=True):
    """The latency of a column, from several runs.

    Attributes:
        median_s: the median.
        low_s, high_s: the 95 % confidence interval of the median.
        runs: the number of runs.
        ratio: the ratio to the first column in interleaved runs; None for the first column, and if
            runs could not be interleaved.
        ratio_low, ratio_high: the 95 % confidence interval of the ratio.
        pairs: the number of pairs of interleaved runs.
    """

    median_s: float
    low_s: float
    high_s: float
    runs: int
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    pairs: int = 0

    @property
    def ratio_with_interval(self) -> tuple[float, float, float] | None:
        """The ratio and the ends of its interval; None if runs did not alternate."""
        if self.ratio is None or self.ratio_low is None or self.ratio_high is None:
            return None
        return self.ratio, self.ratio_low, self.ratio_high


class ColumnGrowth(Record, frozen=True, kw_only=True):
    """The growth of a column's memory over many runs, as `memdiag leak` judges it.

    Attributes:
        verdict: the verdict.
        owner: the owner that grows; None if no memory in use grows steadily.
        slope: its growth in bytes a run; likewise.
        runs: the number of runs.
    """

    verdict: Verdict
    owner: GrowingOwner | None
    slope: Slope | None
    runs: int

    @property
    def is_decided(self) -> bool:
        """Whether the runs show whether memory in use grows."""
        return self.verdict != "undecided"


class GraphSize(Record, frozen=True, kw_only=True):
    """The size of the model of a column. Unknown facts are None.

    Attributes:
        nodes: the number of nodes.
        initializers: the number of initializers, subgraphs included.
        parameters: the number of elements of all weights.
        saved_bytes: the size of all files of the model.
    """

    nodes: int | None
    initializers: int | None
    parameters: int | None
    saved_bytes: int


class OptimizerRun(Record, frozen=True, kw_only=True):
    """The run of an optimizer on a model.

    Attributes:
        version: the version of the optimizer.
        duration_s: the duration without imports.
        peak_rss_bytes: the largest resident set of its process and the processes started by it.
    """

    version: str
    duration_s: float
    peak_rss_bytes: int


class ComparisonColumn(Record, frozen=True, kw_only=True):
    """One column of a comparison.

    Attributes:
        status: how the optimizer, or the run of the model, ended.
        message: why the column could not be measured, or a note; may be empty.
        largest_difference: the largest difference of any output that the first column has too,
            relative to the output's largest value; None if outputs were not compared, or if no
            figure can express how they differ.
        difference: the differences that `largest_difference` cannot express: another type or
            shape, or an output that exists in one column only.
        profile: the run with the X-ray.
        growth: the growth over many runs; None if it was not measured.
    """

    label: str
    status: ColumnStatus
    message: str
    model: str
    onnxruntime: str | None = None
    graph: GraphSize | None = None
    optimizer: OptimizerRun | None = None
    measured: ColumnFigures | None = None
    latency: Latency | None = None
    largest_difference: float | None = None
    difference: str = ""
    profile: Profile | None = None
    growth: ColumnGrowth | None = None


class CopyChange(Record, frozen=True, kw_only=True):
    """A change of the copies of weights between two columns.

    Attributes:
        from_, to: the labels of the columns.
        kind: the kind of the copies.
        weights: the weights concerned, the largest first.
        count: the number of copies that only the second column has; negative if it lacks them. 0 if
            both columns have the copies, in different sizes.
        bytes: the change of resident memory by all these copies.
        made_by: the step that made the largest of them.
        equal_to: a weight with the same content, of which both columns have a copy; empty for none.
        file: the name of the file that the copies are mapped from; empty for anonymous memory.
    """

    from_: str = msgspec.field(name="from")
    to: str
    kind: CopyKind
    weights: Annotated[tuple[str, ...], Meta(min_length=1)]
    count: int
    bytes: int
    made_by: str | None
    equal_to: str = ""
    file: str = ""


class FigureChange(Record, frozen=True, kw_only=True):
    """A figure that differs between two columns by more than the spread between runs.

    Attributes:
        metric, phase: the figure.
        from_, to: the labels of the columns.
        bytes: the increase, of growth in bytes a run; 0 for times and outputs.
        ratio: the new figure divided by the old one.
        why: the causes with their bytes, separated by ``; ``: the largest, the largest in the
            opposite direction, others by size, and pairs that add up to nothing. Empty if none is
            known.
    """

    metric: Metric
    phase: PhaseName | None
    from_: str = msgspec.field(name="from")
    to: str
    bytes: int
    ratio: float | None
    why: str


class Bisection(Record, frozen=True, kw_only=True):
    """The search for the version in which a figure changed.

    Attributes:
        metric: the figure.
        before, after: two successive versions that could be measured; None if the ends
            of the range do not differ by more than the spread between runs, or if growth could not
            be judged in two versions.
        candidates: the number of versions in the range.
    """

    metric: Metric
    before: str | None
    after: str | None
    candidates: int


class Comparison(PlottableRecord, frozen=True, kw_only=True):
    """A comparison: a column per model, release or optimizer, and differences above the spread.

    Attributes:
        changes: for `onnxruntime` from each version to the next one; otherwise from the first
            column to each of the others.
        copies: the changes of copies, likewise.
        notes: sentences on figures that were not compared, with the reasons.
        dimensions: the free dimensions of the inputs, with the sizes of all runs.

    Raises:
        ValueError: a change names a column that is not there.
    """

    schema: Literal["memdiag.comparison/1"]
    kind: ComparisonKind
    columns: tuple[ComparisonColumn, ...]
    changes: tuple[FigureChange, ...]
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
