"""The profile: the memory of one model, phase by phase (schema ``memdiag.profile/1``)."""

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, Self

from msgspec import Meta, field
from msgspec.structs import fields, replace

from memdiag.defaults import DEFAULT_PROVIDERS, LoadFrom
from memdiag.records.attribution import Attribution
from memdiag.records.base import PlottableRecord, Record
from memdiag.records.budget import Judgement
from memdiag.records.device import DeviceMemory
from memdiag.records.dimension import Dimension
from memdiag.records.estimate import EstimatedPoint
from memdiag.records.finding import Finding
from memdiag.records.generation import Generation
from memdiag.records.group_memory import GroupMemory
from memdiag.records.phases import CREATION_PHASES
from memdiag.records.phases import PHASES as PHASES
from memdiag.records.phases import PhaseName as PhaseName
from memdiag.units import MIB

PROFILE_SCHEMA: Final = "memdiag.profile/1"

MAX_PHASES = 100
MAX_SPANS = 10_000
"""Limits of a saved profile: a session has eight phases, and some hundred spans."""

MAX_PLANNED_ERROR = 0.1
"""Share of the predicted planned block up to which the growth in the second run is that block."""

PeakKind = Literal["exact", "sampled"]
"""``exact``: the kernel's own high-water mark; ``sampled``: the largest sample that was seen."""

Status = Literal["completed", "failed", "killed", "timeout", "limit"]

EndCause = Literal["", "interrupt", "crash", "sigkill"]


class Memory(Record, frozen=True, kw_only=True):
    """Resident memory at one moment.

    Attributes:
        rss_bytes: the resident set: the sum of the three parts.
        anonymous_bytes: heap, arenas, stacks; None if the system does not report the parts.
        file_bytes: file-backed memory: mapped libraries and weights.
        shared_bytes: tmpfs and System V shared memory.
    """

    rss_bytes: int
    anonymous_bytes: int | None
    file_bytes: int | None
    shared_bytes: int | None

    @property
    def file_and_shared_bytes(self) -> int | None:
        """The bytes that are not anonymous; None if the system does not report the parts."""
        return None if self.file_bytes is None else self.file_bytes + (self.shared_bytes or 0)


UNKNOWN_MEMORY: Final = Memory(
    rss_bytes=0, anonymous_bytes=None, file_bytes=None, shared_bytes=None
)
"""The memory of a process that was not read."""


class Model(Record, frozen=True, kw_only=True):
    """The model file.

    Attributes:
        file_bytes: the size of the model file.
        external_bytes: the size of its external data files.
        weight_bytes: the bytes of all constant tensors. None, like others, if it could not be read.
    """

    path: str
    file_bytes: int
    external_bytes: int
    weight_bytes: int | None
    weight_count: int | None
    node_count: int | None
    ir_version: int | None
    opsets: dict[str, int]


class Environment(Record, frozen=True, kw_only=True):
    """Versions and machine. Contains nothing that identifies a person or a host.

    Attributes:
        machine: the class of machines on which the same model takes the same memory: system,
            architecture, widest vector instructions, C library.
        memory_limit_bytes: the lowest memory limit of the control groups, such as a container's;
            None without one.
        cpu_quota: the CPUs that the control groups allow, which may be a fraction; None without a
            limit.
    """

    memdiag: str
    onnxruntime: str | None
    python: str | None
    platform: str
    cpu: str
    cpu_count: int
    memory_bytes: int
    machine: str = ""
    memory_limit_bytes: int | None = None
    cpu_quota: float | None = None


USUAL_SETTINGS = (DEFAULT_PROVIDERS, ("path",))
"""Values in `Session.fields_in_words` that a session has by default."""


class Session(Record, frozen=True, kw_only=True):
    """The configuration of the session.

    Attributes:
        options: attributes of SessionOptions and session config entries, by name.
        environment: the variables that were set for the child, without inherited ones.
        runs: the number of runs after the first; None if the model was only loaded.
        provider_options: options of providers by name, by the name of the provider.
        run_options: config entries of each run, by name.
    """

    # In the order in which reports list them.
    providers: tuple[str, ...]
    load_from: LoadFrom
    runs: int | None
    disabled_optimizers: tuple[str, ...]
    options: dict[str, str]
    provider_options: dict[str, dict[str, str]] = field(default_factory=dict)
    run_options: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str]

    @property
    def prefers_cpu(self) -> bool:
        """Whether the CPU provider is the first: rules and estimates are for its memory."""
        return self.providers[:1] == DEFAULT_PROVIDERS

    @property
    def fields_in_words(self) -> dict[str, Any]:
        """Each field by its name in words: texts, or texts by name; empty if it is not set."""
        value_by_name: dict[str, Any] = {}
        for session_field in fields(self):
            value = getattr(self, session_field.name)
            if value == session_field.default:
                value = ()
            elif not isinstance(value, tuple | dict):
                value = ("none" if value is None else str(value),)
            name = session_field.name.replace("_", " ")
            value_by_name["loaded from" if name == "load from" else name] = value
        return value_by_name

    @property
    def settings(self) -> dict[str, str]:
        """What differs from a default session, in words by name, except for the number of runs."""
        values = self.options | self.run_options | self.environment
        settings = {name: f"{name}={value}" for name, value in values.items()}
        settings |= {name: f"{name} disabled" for name in self.disabled_optimizers}
        if self.providers not in ((), DEFAULT_PROVIDERS):
            settings["providers"] = ", ".join(self.providers)
        for provider, options in self.provider_options.items():
            name = f"options of {provider}"
            settings[name] = ", ".join(f"{key}={value}" for key, value in options.items())
        return settings | ({"bytes": "the file's bytes"} if self.load_from == "bytes" else {})


class Input(Record, frozen=True, kw_only=True):
    """One input of the runs: its type and shape. Values are never stored.

    Attributes:
        dtype: ONNX's name of the type, such as ``float``; empty for a sequence.
        source: whether it was generated or given.
        note: how its values were chosen.
        varied: whether its contents differed in each run.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    source: Literal["generated", "given"]
    note: str
    varied: bool = False


class Phase(Record, frozen=True, kw_only=True):
    """All spans of one phase.

    Attributes:
        start, end: the memory at the start of its first span and at the end of its last. Other
            phases may lie between: constant folding runs once a step, with other transformers
            between the steps.
        duration_s, net_rss_bytes: sums over its spans.
    """

    name: PhaseName
    duration_s: float
    start: Memory
    end: Memory
    net_rss_bytes: int
    peak_rss_bytes: int
    peak_kind: PeakKind


def creation_s(phases: Iterable[Phase]) -> float:
    """Return the seconds that creating the session took."""
    return sum(phase.duration_s for phase in phases if phase.name in CREATION_PHASES)


class Span(Record, frozen=True, kw_only=True):
    """A part of a phase. The spans of a profile follow each other without gaps.

    Attributes:
        name: the name of the graph transformer, for spans of `optimize` and `constant_fold`;
            otherwise the activity of the runtime.
        step: the number of the transformer's pass, from 1.
        modified: whether the runtime logged that the transformer changed the graph.
        start_s, end_s: seconds since the start of the child.
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
    """The timeline, as columns of equal length.

    Of equal samples in a row only the first and the last are kept.

    Attributes:
        t_s: seconds since the start of the child.
        anonymous_bytes: None in rows for which the system does not report the parts.
        file_and_shared_bytes: file-backed and shared memory; None like `anonymous_bytes`.
        shared_bytes: the shared part of that; empty if it was 0 in all rows, or unknown.
    """

    t_s: tuple[float, ...]
    rss_bytes: tuple[int, ...]
    anonymous_bytes: tuple[int | None, ...]
    file_and_shared_bytes: tuple[int | None, ...]
    shared_bytes: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        columns = [self.t_s, self.rss_bytes, self.anonymous_bytes, self.file_and_shared_bytes]
        if len({len(column) for column in (*columns, self.shared_bytes or self.t_s)}) > 1:
            raise ValueError("the columns of the samples differ in length")

    def __repr__(self) -> str:
        """Return the number of rows: all of them would fill pages."""
        return f"<Samples {len(self.t_s):,} rows>"


class Sampling(Record, frozen=True, kw_only=True):
    """The quality of the samples.

    Attributes:
        method: the source of the samples.
        count: the number of samples, including equal ones.
        period_s, largest_gap_s: the median and the largest time between two samples.
        boundary_lag_s: the largest time between a line of the runtime that starts a phase and its
            reading. Memory allocated in this time counts to the previous phase.
    """

    method: Literal["proc", "psutil"]
    count: int
    period_s: float
    largest_gap_s: float
    boundary_lag_s: float | None


class Run(Record, frozen=True, kw_only=True):
    """One run after the first.

    Attributes:
        rss_bytes: the resident set after the run.
        end_s: the end of the run, in seconds since the start of the child.
        peak_rss_bytes: the kernel's high-water mark since the previous run; None if the system has
            no such mark.
    """

    latency_s: float
    rss_bytes: int
    end_s: float | None = None
    peak_rss_bytes: int | None = None


class Outcome(Record, frozen=True, kw_only=True):
    """The end of the run: its status, the last phase, and the reason if it did not complete.

    Attributes:
        cause: what killed the child, unless a limit of memdiag or of CPU time did: ``interrupt``
            for Ctrl-C; ``sigkill`` for the system or a user; ``crash`` for any other signal.
    """

    status: Status
    phase: PhaseName
    message: str
    cause: EndCause = ""

    @property
    def completed(self) -> bool:
        """Whether the run ended as it should."""
        return self.status == "completed"


class NodeOutputs(Record, frozen=True, kw_only=True):
    """The outputs of one node in the first run; in a loop those of its largest iteration.

    Attributes:
        node, op_type: the node.
        inside: the If, Loop or Scan nodes around it, as in ``loop/branch``; empty in the main
            graph.
        bytes: the sizes of its outputs together.
    """

    node: str
    op_type: str
    inside: str = ""
    bytes: int


class InsideNode(Record, frozen=True, kw_only=True):
    """A node in the graph of an If, Loop or Scan.

    Attributes:
        node, op_type: the node.
        inside: the nodes around it in that graph; empty if it is in no other graph.
        in_use_bytes: the most of the arena that was in use while it ran.
    """

    node: str
    op_type: str
    inside: str = ""
    in_use_bytes: int


WITH_GRAPHS: Final = ("If", "Loop", "Scan")
"""The operators with graphs of their own."""


class PeakNode(Record, frozen=True, kw_only=True):
    """The node of the first run at which most of the runtime's arena was in use.

    The figures are the runtime's own, above the start of the run, from another child with its
    profiler on.

    Attributes:
        node, op_type: the node.
        inside: the If, Loop or Scan nodes around it, as in ``loop/branch``; empty in the main
            graph.
        highest_inside: if the node is an If, Loop or Scan, the node in its graph at which most was
            in use. The peak itself was after the last node in the graph: otherwise it is the peak
            of that node.
        peak_bytes: the most that was in use while it ran.
        values_bytes: what the values in memory requested when it had ended: its inputs, its
            outputs, and other values that are still to be read.
        rounding_bytes: what their chunks have more than was requested.
        scratch_bytes: what was in use only while the node ran: working memory of its kernel, and
            for an If, Loop or Scan the values of its graph. None if more had been in use before the
            run, which hides it.
        grown_bytes: the regions that the arena took from the system in the whole run.
        estimated_bytes, estimated_node: the values in memory at the peak of a run, and the node
            then, as estimated; None and empty without an estimate.
        largest: the nodes with the largest outputs of the run, the largest first.
        free_resident_bytes: the resident memory of the arena's free chunks after the run, in which
            the values of the run were; None if it was not read.
    """

    node: str
    op_type: str
    inside: str = ""
    highest_inside: InsideNode | None = None
    peak_bytes: int
    values_bytes: int
    rounding_bytes: int
    scratch_bytes: int | None
    grown_bytes: int
    estimated_bytes: int | None = None
    estimated_node: str = ""
    largest: tuple[NodeOutputs, ...] = ()
    free_resident_bytes: int | None = None

    @property
    def resident_rounding_bytes(self) -> int | None:
        """The most that may be resident of the chunks' unused ends; None if it is not known."""
        if self.free_resident_bytes is None:
            return None
        return min(self.rounding_bytes, max(0, self.free_resident_bytes - self.values_bytes))


class PhaseAttribution(Record, frozen=True, kw_only=True):
    """The owners of memory at the end of a phase (of its last span, if it has several)."""

    phase: PhaseName
    attribution: Attribution


class Profile(PlottableRecord, frozen=True, kw_only=True):
    """The measurement of one model in one child process.

    All resident sets are of the whole process. Subtract `baseline_rss_bytes` (interpreter, imported
    runtime and inputs) for the memory of the model.

    Attributes:
        peak_rss_bytes: the largest peak of the phases, without `start`.
        peak_phase: the first phase whose peak above the baseline is within 0.5 % of the largest.
        steady_rss_bytes: the resident set after the last run.
        allocator_retained_bytes: the bytes that malloc returned on request after that
            (``malloc_trim`` of glibc, or the function of another allocator).
        threshold_saved_bytes: how much smaller the steady state was, above the baseline, in another
            child with ``MALLOC_MMAP_THRESHOLD_=131072``; None if malloc retained so little that
            this was not measured.
        attribution: the owners of memory after the last run; None without an X-ray.
        xray_failure: why an X-ray that was asked for is not there; empty if none failed.
        phase_attributions: the owners at the ends of earlier phases, if that was requested.
        findings: the findings of the rules for this release, matched with `attribution`.
        judgement: the comparison with a budget or baseline, if there was one.
        command: the words of the command; empty for the Python API.
        dimensions: the free dimensions of the inputs, with the sizes of this run.
        estimate: the memory that was predicted from the file for this session, above the process
            before it; None for other providers than the CPU's, and if the estimate failed.
        run_peak: the runtime's own figures of the peak of a run, if they were requested and are
            available. The values in memory then are in `estimate`.
        run_peak_failure: why these were requested and are missing; empty otherwise.
        group: what the control group counted, memdiag and all other processes in it included; None
            if no group counts memory.
        device: the memory on a GPU; None unless a provider for NVIDIA's devices was asked for.
        generation: how a decoder was run, if it was run as a program generates a text: the first
            run is the prompt (the phase `prefill`), and `runs` are calls of one token (`decode`).
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
    threshold_saved_bytes: int | None = None
    first_run_s: float | None
    runs: tuple[Run, ...]
    notes: tuple[str, ...]
    outcome: Outcome
    attribution: Attribution | None = None
    xray_failure: str = ""
    phase_attributions: tuple[PhaseAttribution, ...] = ()
    findings: tuple[Finding, ...] = ()
    judgement: Judgement | None = None
    command: tuple[str, ...] = ()
    dimensions: tuple[Dimension, ...] = ()
    estimate: EstimatedPoint | None = None
    run_peak: PeakNode | None = None
    run_peak_failure: str = ""
    group: GroupMemory | None = None
    device: DeviceMemory | None = None
    generation: Generation | None = None

    @property
    def peak_above_bytes(self) -> int:
        """The peak above the baseline."""
        return self.peak_rss_bytes - self.baseline_rss_bytes

    @property
    def steady_above_bytes(self) -> int | None:
        """The steady state above the baseline; None if it was not reached."""
        steady = self.steady_rss_bytes
        return None if steady is None else steady - self.baseline_rss_bytes

    @property
    def end(self) -> Memory:
        """The memory with the session: after the last run, or the last phase that was reached.

        Raises:
            ValueError: no phase was reached.
        """
        if not self.phases:
            raise ValueError("the profile has no phases")
        return self.steady or self.phases[-1].end

    @property
    def end_above_bytes(self) -> int:
        """The memory at the `end` above the baseline."""
        return self.end.rss_bytes - self.baseline_rss_bytes

    def with_notes(self, notes: Iterable[str]) -> Self:
        """Return the profile with `notes` after its own."""
        return replace(self, notes=(*self.notes, *notes))

    def phase(self, name: PhaseName) -> Phase | None:
        """Return the phase called `name`; None if it was not reached, or not logged separately."""
        return next((phase for phase in self.phases if phase.name == name), None)

    @property
    def planned_block_bytes(self) -> int:
        """The bytes that the second run added for the block that the memory pattern plans.

        0 if it added nothing, or another size than predicted.
        """
        steady = self.phase("steady")
        if self.estimate is None or steady is None or not self.runs:
            return 0
        terms = self.estimate.phases[-1].kept_terms
        planned_bytes = sum(term.bytes for term in terms if term.name == "planned block")
        added_bytes = self.runs[0].rss_bytes - steady.start.rss_bytes
        is_block = abs(added_bytes - planned_bytes) <= max(MIB, MAX_PLANNED_ERROR * planned_bytes)
        return added_bytes if planned_bytes and is_block else 0

    def estimated_peak_bytes(self, name: PhaseName) -> int | None:
        """Return the predicted peak of a phase, in bytes of the whole process; None if unknown."""
        estimated_phase = self.estimate.phase(name) if self.estimate is not None else None
        return (
            None
            if estimated_phase is None
            else self.baseline_rss_bytes + estimated_phase.peak_bytes
        )
