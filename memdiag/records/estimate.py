"""The estimate: the memory of a session before it runs (schema ``memdiag.estimate/1``)."""

from typing import Final, Literal

from msgspec import field

from memdiag.defaults import PINNED_TEXT, LoadFrom
from memdiag.records.base import PlottableRecord, Record
from memdiag.records.dimension import Dimension
from memdiag.records.finding import Finding
from memdiag.records.generation import Generation
from memdiag.records.phases import PhaseName

ESTIMATE_SCHEMA: Final = "memdiag.estimate/1"

PINNED_NOTE: Final = (
    f"measured with {PINNED_TEXT}, so that figures repeat; without it, as in memdiag profile,"
    " they may be higher"
)
"""The note on figures of sweeps and budgets, which differ from the figures of a profile."""

TermName = Literal[
    "runtime",
    "graph",
    "model file",
    "weights",
    "mapped weights",
    "stale weights",
    "weight being converted",
    "folded constants",
    "operands of folding",
    "fused weights",
    "reordered filters",
    "packed weights",
    "tree tables",
    "activations",
    "KV cache",
    "planned block",
    "unused arena",
    "kernel scratch",
    "freed heap",
]
"""What memory is for:

- ``runtime``: pages of the library, threads, and what a session of any model takes;
- ``graph``: nodes with their attributes, their kernels and plans;
- ``model file``: the parsed file, with the weights embedded in it;
- ``weights``: constants of the model in private memory;
- ``mapped weights``: pages of files with external data;
- ``stale weights``: weights of subgraphs in the nodes that contain the subgraphs;
- ``weight being converted``: the copy from the file's format;
- ``folded constants``: results of constant folding;
- ``operands of folding``: copies of inputs, and of results, while a node is evaluated;
- ``fused weights``: results of merging nodes, such as Conv and BatchNormalization;
- ``reordered filters``: filters of convolutions in blocks of channels;
- ``packed weights``: buffers of kernels;
- ``tree tables``: the nodes and leaf values of tree ensembles, as their kernels store them;
- ``activations``: values of the first run, in chunks of the arena;
- ``KV cache``: keys and values that a generation feeds to its next call, during a call those of the
  past besides those that it returns;
- ``planned block``: the block that later runs take in addition;
- ``unused arena``: parts of chunks, and gaps between values, that were written before;
- ``kernel scratch``: working memory of kernels;
- ``freed heap``: freed blocks that malloc keeps, because they are small.
"""


class EstimatedTerm(Record, frozen=True, kw_only=True):
    """A part of the memory.

    Attributes:
        name: the purpose of the memory.
        bytes: its size.
        largest: the weight, node or value that takes most of it; empty if none does.
    """

    name: TermName
    bytes: int
    largest: str = ""


class EstimatedPhase(Record, frozen=True, kw_only=True):
    """The memory of one phase, above the process before the session.

    Attributes:
        name: the phase.
        peak_bytes: the maximum within it.
        kept_bytes: at its end.
        cause: the weight or node at which the peak is; empty if none stands out.
        peak_terms, kept_terms: the parts of both; their bytes add up to them.
    """

    name: PhaseName
    peak_bytes: int
    kept_bytes: int
    cause: str = ""
    peak_terms: tuple[EstimatedTerm, ...]
    kept_terms: tuple[EstimatedTerm, ...]


class LiveTensor(Record, frozen=True, kw_only=True):
    """A value that is in memory at the peak of a run.

    Attributes:
        name: the value.
        form: what distinguishes it from the value itself, such as ``in blocks`` of channels; empty
            without it.
        dtype, shape: its type in memory, which is not that of the model if the runtime casts it.
        bytes: its size.
        producer, last_use: the nodes that compute it and read it last.
        growth: by how much its size is multiplied when a free dimension is doubled, by name of the
            dimension; only dimensions that change it. Empty if it was not computed.
    """

    name: str
    form: str = ""
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    producer: str
    last_use: str
    growth: dict[str, float] = field(default_factory=dict)


FitAnswer = Literal["yes", "probably", "probably not", "no", "unknown", "does not run"]
"""Whether a size fits: ``yes`` by the upper end of the interval, ``probably`` by the most probable
figure, ``probably not`` by the lower end only."""


class EstimatedPoint(Record, frozen=True, kw_only=True):
    """The memory at one size of the free dimensions, above the process before the session.

    Attributes:
        dims: the sizes by name.
        peak_bytes, peak_phase: the maximum, and the phase that has it.
        steady_bytes: when runs no longer change it.
        low_bytes, high_bytes: between these the peak is expected, also for a malloc that keeps
            freed blocks, as glibc's does by default.
        usual_bytes: the most probable peak with glibc's malloc as it comes; `peak_bytes` is that
            with a malloc that returns what is freed.
        pinned_high_bytes: the upper end if malloc returns what is freed
            (MALLOC_MMAP_THRESHOLD_=131072).
        phases: the phases in order.
        live: the values in memory at the peak of a run, the largest first.
        input_bytes: the inputs of a run, which the program has besides the session.
        unknown_values: the number of values whose sizes only a run shows. They count as nothing.
        is_bounded: whether their largest sizes are known, and the upper ends include them.
        is_measured: whether the model was run at this size. The figures are of the data that it
            ran with: values of unknown size have other sizes with other data.
    """

    dims: dict[str, int]
    peak_bytes: int
    peak_phase: PhaseName
    steady_bytes: int
    low_bytes: int
    usual_bytes: int
    high_bytes: int
    pinned_high_bytes: int
    phases: tuple[EstimatedPhase, ...]
    live: tuple[LiveTensor, ...] = ()
    input_bytes: int = 0
    unknown_values: int = 0
    is_bounded: bool = False
    is_measured: bool = False

    @property
    def is_floor(self) -> bool:
        """Whether values are left out that nothing limits, so that it has no upper end."""
        return bool(self.unknown_values) and not self.is_bounded and not self.is_measured

    @property
    def peak(self) -> EstimatedPhase:
        """The phase that has the peak."""
        return next(phase for phase in self.phases if phase.name == self.peak_phase)

    def phase(self, name: PhaseName) -> EstimatedPhase | None:
        """Return the phase called `name`; None if it is not estimated."""
        return next((phase for phase in self.phases if phase.name == name), None)


class Fit(Record, frozen=True, kw_only=True):
    """The largest size of a free dimension with which a process stays below a limit.

    Sizes are None where there is none: if not even the smallest one fits, and for `too_large` if
    the search ended before. All are None if the model has no free dimension.

    Attributes:
        limit_bytes: the limit.
        dims: the free dimensions that have the size: one, or all that count examples; none if the
            model has no free dimension.
        others: the sizes of the other free dimensions.
        surely: the largest size up to which the upper end of the interval fits.
        probably: the largest size up to which the most probable peak fits.
        too_large: the smallest size from which on the lower end of the interval does not fit.
        low_bytes, usual_bytes, high_bytes: the interval of the whole process, and its most probable
            peak, at `probably`; at the smallest size that was asked for, or 1, if that is None.
        trial: whether the model ``ran`` at `probably`, ``fails`` at all sizes that were tried, or
            was ``not run``.
        fails_at: a size that would fit, and at which the model does not run; None if it ran at the
            first size that was tried.
        problem: why the model fails or was not run, or why nothing can be said of its memory.
    """

    limit_bytes: int
    dims: tuple[str, ...] = ()
    others: dict[str, int] = field(default_factory=dict)
    surely: int | None = None
    probably: int | None = None
    too_large: int | None = None
    low_bytes: int = 0
    usual_bytes: int = 0
    high_bytes: int = 0
    trial: Literal["ran", "fails", "not run"] = "not run"
    fails_at: int | None = None
    problem: str = ""


class Reduction(Record, frozen=True, kw_only=True):
    """A change with which the peak of the first point is lower.

    Attributes:
        change: the change: a session option, or a size such as ``batch=8``.
        peak_bytes: the peak with it, above the process before the session.
        run_bytes: the activations of a run with it.
    """

    change: str
    peak_bytes: int
    run_bytes: int


class Calibration(Record, frozen=True, kw_only=True):
    """A measured point with its estimate; all above the process before the session.

    Attributes:
        dims: the sizes.
        estimated_bytes: the peak as estimated.
        corrected_bytes: the estimate after the correction.
        measured_bytes: the peak as measured.
        is_held_out: whether the point was not used for the correction.
    """

    dims: dict[str, int]
    estimated_bytes: int
    corrected_bytes: int
    measured_bytes: int
    is_held_out: bool


class Estimate(PlottableRecord, frozen=True, kw_only=True):
    """The memory of a session before it runs.

    Attributes:
        model: the path of the model.
        onnxruntime: the release that it is for.
        options: session options by name, as given.
        disabled_optimizers: graph transformers that are left out.
        load_from: ``path`` or ``bytes``.
        runs: the number of runs after the first one.
        baseline_bytes: the process before the session: interpreter, numpy and onnxruntime; None if
            it is not known for the release.
        is_upper: whether the points are the upper ends of the interval rather than the most
            probable values. Phases, terms and tensors are the most probable ones in any case.
        dimensions: the free dimensions, with the sizes of the first point.
        points: the points, the first of them at the default or first given sizes.
        fit: the largest size that fits into the limit; None without a limit.
        reductions: changes with which the first point needs less, the largest reduction first.
        findings: fp16 weights and values that are in memory in fp32, and what changes that.
        calibration: measured points; empty unless asked for.
        notes: limits and assumptions of the estimate.
        duration_s: the time it took.
        size_inputs: the inputs on whose numbers unknown sizes of the first point depend, with what
            these numbers are in a measured run.
        generation: the calls that are estimated, if they are those of a generation; None for runs
            of equal shapes.
    """

    schema: Literal["memdiag.estimate/1"] = ESTIMATE_SCHEMA
    model: str
    onnxruntime: str
    options: dict[str, str]
    disabled_optimizers: tuple[str, ...] = ()
    load_from: LoadFrom
    runs: int
    baseline_bytes: int | None
    is_upper: bool = False
    dimensions: tuple[Dimension, ...] = ()
    points: tuple[EstimatedPoint, ...]
    fit: Fit | None = None
    reductions: tuple[Reduction, ...] = ()
    findings: tuple[Finding, ...] = ()
    calibration: tuple[Calibration, ...] = ()
    notes: tuple[str, ...] = ()
    duration_s: float
    size_inputs: dict[str, str] = field(default_factory=dict)
    generation: Generation | None = None

    def __post_init__(self) -> None:
        """Refuse a record without a point, and points without the phase of their peak."""
        if not self.points:
            raise ValueError("an estimate has no point")
        for point in self.points:
            if point.peak_phase not in {phase.name for phase in point.phases}:
                raise ValueError("a point lacks the phase of its peak")

    def fits(self, point: EstimatedPoint, limit_bytes: int) -> FitAnswer:
        """Return whether the process fits into a limit at `point`, with the inputs."""
        if not self.may_run(point):
            return "does not run"
        other_bytes = self.beside_bytes(point)
        if point.low_bytes + other_bytes > limit_bytes:
            return "no"
        if point.high_bytes + other_bytes <= limit_bytes and not point.is_floor:
            return "yes"
        if point.unknown_values and not point.is_measured:
            return "unknown"
        return "probably" if point.usual_bytes + other_bytes <= limit_bytes else "probably not"

    def may_run(self, point: EstimatedPoint) -> bool:
        """Return False if `point` is beyond a size at which the model was run and failed."""
        fit = self.fit
        if fit is None or fit.fails_at is None:
            return True
        is_beyond = any(point.dims.get(name, 0) >= fit.fails_at for name in fit.dims)
        return not is_beyond or any(
            point.dims.get(name, size) != size for name, size in fit.others.items()
        )

    def beside_bytes(self, point: EstimatedPoint) -> int:
        """Return the bytes of the process besides the session at `point`: baseline and inputs.

        0 if the baseline is not known.
        """
        return 0 if self.baseline_bytes is None else self.baseline_bytes + point.input_bytes

    @property
    def point(self) -> EstimatedPoint:
        """The point at the default or first given sizes."""
        return self.points[0]

    @property
    def is_floor(self) -> bool:
        """Whether more memory may be needed at the first point, without a limit."""
        return self.point.is_floor

    @property
    def largest(self) -> EstimatedPoint:
        """The point that needs the most memory, of the points at which the model may run."""
        points = [point for point in self.points if self.may_run(point)] or self.points
        if any(point.is_floor for point in points):
            return max(points, key=lambda point: point.peak_bytes)
        return max(points, key=lambda point: point.high_bytes)

    @property
    def varied(self) -> tuple[str, ...]:
        """The dimensions that have several sizes among the points."""
        names = [dimension.name for dimension in self.dimensions]
        return tuple(
            name for name in names if len({point.dims.get(name) for point in self.points}) > 1
        )
