"""The recording of a program: its processes and sessions (schema ``memdiag.run/1``)."""

from typing import Final, Literal

from memdiag.records.attribution import Attribution
from memdiag.records.base import PlottableRecord, Record
from memdiag.records.device import DeviceMemory
from memdiag.records.group_memory import GroupMemory
from memdiag.records.phases import PhaseName
from memdiag.records.profile import Environment, Phase, Samples

RUN_SCHEMA: Final = "memdiag.run/1"

XrayReason = Literal["end", "peak", "request"]
"""Why an X-ray was taken: at the end of the process, at a peak that lasted, or on request."""


class Caller(Record, frozen=True, kw_only=True):
    """One call on the stack of a session's creation.

    Attributes:
        file: the source file.
        line: the number of the line, from 1.
        function: the name of the function.
    """

    file: str
    line: int
    function: str


class SessionModel(Record, frozen=True, kw_only=True):
    """The model that a session was created from.

    Attributes:
        path: the file; None if the session was created from bytes.
        bytes: the size of the file, or of the bytes; None if the file could not be read.
        digest: a hash of evenly spaced blocks and the size, for a session from bytes.
        weight_bytes: the bytes of all constant tensors; None if the model could not be read.
        same_file: for a session from bytes, the file of another session with the same content;
            None if there is none.
        is_kept: whether the session still had the bytes when it ran last.
        address: where these bytes are in the process; equal for sessions of the same object, and
            None for a path.
    """

    path: str | None
    bytes: int | None
    digest: str | None
    weight_bytes: int | None
    same_file: str | None = None
    is_kept: bool = False
    address: int | None = None


class InputShapes(Record, frozen=True, kw_only=True):
    """The runs of a session with inputs of the same shapes.

    Attributes:
        shapes: the shape by name of the input; empty for runs with an IOBinding, and None for runs
            after the limit of different shapes was reached.
        runs: the number of runs.
        total_s, min_s, max_s: the sum of their latencies, the shortest and the longest.
    """

    shapes: dict[str, tuple[int, ...]] | None
    runs: int
    total_s: float
    min_s: float
    max_s: float


class SessionMemory(Record, frozen=True, kw_only=True):
    """The memory of a session in an X-ray of its process.

    Attributes:
        weight_bytes: resident copies of the model's weights, divided evenly among the sessions of
            the process that have these weights; None if they could not be searched for.
        sharing: the number of sessions of the process that have the same weights, this one
            included.
        mapped_weight_bytes: the part of `weight_bytes` that is mapped from files, which all
            processes share; None if they could not be searched for.
        arena_used_bytes, arena_slack_bytes: the bytes of its arena that are in use, and free,
            resident or not; None if the arena was not identified.
        resident_slack_bytes: the resident part of `arena_slack_bytes`.
        resident_used_bytes: the resident part of `arena_used_bytes`, without weights.
    """

    weight_bytes: int | None
    sharing: int
    arena_used_bytes: int | None
    arena_slack_bytes: int | None
    mapped_weight_bytes: int | None
    resident_slack_bytes: int | None
    resident_used_bytes: int | None

    @property
    def reserved_slack_bytes(self) -> int | None:
        """`arena_slack_bytes` if not all of them are resident; None otherwise."""
        reserved, resident = self.arena_slack_bytes, self.resident_slack_bytes or 0
        return reserved if reserved is not None and reserved > resident else None


class PhaseTime(Record, frozen=True, kw_only=True):
    """An interval of time in a phase.

    Phases may take turns: constant folding runs once a step, with other transformers between.

    Attributes:
        start_s, end_s: seconds since the start of the recording.
    """

    phase: PhaseName
    start_s: float
    end_s: float


class SessionDevice(Record, frozen=True, kw_only=True):
    """What the steps of a session added to the memory of its process on a GPU.

    They are changes of the memory in use, to which other sessions of the process may have added.

    Attributes:
        creation_bytes: what its creation added, for the first session of the process with the
            context and code; None if it is not known, as if another session was created then.
        first_run_bytes: what its first run added; likewise.
    """

    creation_bytes: int | None
    first_run_bytes: int | None


class ProgramSession(Record, frozen=True, kw_only=True):
    """One InferenceSession of the program.

    Attributes:
        number: the number of the session in the recording, from 1.
        pid: its process.
        library: the distribution whose code created the session; None for the program's own code.
        created_at: file and line of the call, such as ``rapidocr/main.py:114``.
        called_from: file and line of the nearest caller in the program's own code, if `created_at`
            is in a library; None otherwise.
        callers: the calls that led to the creation, the nearest first.
        options: settings of SessionOptions that differ from the defaults, and config entries.
        providers: the execution providers; empty if the creation failed.
        intra_op_threads: 0 if onnxruntime chose the number.
        started_threads: the threads that its process started during the creation; None if it is not
            known, as when several sessions were created at once.
        created_s, released_s: seconds since the start of the recording; `released_s` is None for a
            session that was alive at the end of its process.
        creation_s: the duration of the creation.
        error: the message of a failed creation; None if it succeeded.
        phases: the phases of the creation and of the first run.
        peak_phase: the first of them whose peak is within 0.5 % of the largest, above the start;
            None without phases.
        creation_peak_rss_bytes: the kernel's high-water mark of the whole creation, also where the
            peak of each phase is only sampled; None if there is none.
        shared_with: numbers of the sessions that were created or run in the same process then, so
            that the peaks of the phases are not this session's alone.
        run_count: the number of runs.
        forked_run_count: the number of runs of its copies in forks of the process.
        run_threads: the most threads that were in runs at once, of this session or another one of
            its process, when it was looked at after some of its runs.
        shapes: the runs by the shapes of their inputs, the most frequent first.
        last_run_s: the end of the last run in its process, in seconds since the start of the
            recording.
        forked_last_run_s: the end of the last run of its copies in forks; None if none was
            reported.
        memory: its memory at the last X-ray of the process; None without one.
        device: what it added to the memory of a GPU; None if it uses none.
        phase_times: when the phases took place, in order.
    """

    number: int
    pid: int
    model: SessionModel
    library: str | None
    created_at: str
    callers: tuple[Caller, ...]
    options: dict[str, str]
    providers: tuple[str, ...]
    intra_op_threads: int
    created_s: float
    released_s: float | None
    creation_s: float | None
    error: str | None
    phases: tuple[Phase, ...]
    shared_with: tuple[int, ...]
    run_count: int
    run_threads: int
    shapes: tuple[InputShapes, ...]
    first_run_s: float | None
    last_run_s: float | None
    memory: SessionMemory | None = None
    phase_times: tuple[PhaseTime, ...] = ()
    started_threads: int | None = None
    called_from: str | None = None
    peak_phase: PhaseName | None = None
    creation_peak_rss_bytes: int | None = None
    forked_run_count: int = 0
    forked_last_run_s: float | None = None
    device: SessionDevice | None = None

    @property
    def latest_run_s(self) -> float | None:
        """The end of the last run in its process or in a fork; None if none ended."""
        ends = [end for end in (self.last_run_s, self.forked_last_run_s) if end is not None]
        return max(ends, default=None)

    @property
    def model_key(self) -> str:
        """A key that sessions of the same model share: the path, or a hash of the bytes.

        Bytes that are the content of another session's file have its path.
        """
        model = self.model
        return model.path or model.same_file or model.digest or f"session {self.number}"


class HighWaterRun(Record, frozen=True, kw_only=True):
    """A run that raised the high-water mark of its process.

    Attributes:
        session: the number of the session.
        t_s: the end of the run, in seconds since the start of the recording.
        shapes: the shapes of its inputs.
        latency_s: its duration.
    """

    session: int
    t_s: float
    peak_rss_bytes: int
    shapes: dict[str, tuple[int, ...]] | None
    latency_s: float


class ProcessXray(Record, frozen=True, kw_only=True):
    """The owners of the memory of a process at one moment.

    Attributes:
        t_s: when it began, in seconds since the start of the recording.
        duration_s: the seconds that it took; at the end of a process it waits for them.
        reason: why it was taken then.
    """

    pid: int
    t_s: float
    reason: XrayReason
    attribution: Attribution
    duration_s: float


class InheritedSession(Record, frozen=True, kw_only=True):
    """A session that was alive in the parent of a process when that was forked.

    Attributes:
        session: the number of the session.
        run_count: the number of its runs in the forked process.
        is_running: whether its first run there has started and not ended.
    """

    session: int
    run_count: int
    is_running: bool


class DeviceSamples(Record, frozen=True, kw_only=True):
    """What NVML reported for a process, as columns of equal length: each change of the size.

    Attributes:
        t_s: seconds since the start of the recording.
        process_bytes: the size on all devices.
    """

    t_s: tuple[float, ...] = ()
    process_bytes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.t_s) != len(self.process_bytes):
            raise ValueError("the columns of the samples differ in length")


class ProcessDevice(Record, frozen=True, kw_only=True):
    """What a process has on a GPU.

    Attributes:
        memory: the memory by owner at the last reading with a session on it, and its phases; a
            process without the hook has neither.
        weight_bytes: the weights of the sessions that were on it then; None if they are not known.
        allocated_bytes: what the allocations of the process took then; None without CUPTI.
        samples: what NVML reported; empty if it had no figure.
    """

    memory: DeviceMemory
    weight_bytes: int | None = None
    allocated_bytes: int | None = None
    samples: DeviceSamples

    @property
    def process_bytes(self) -> int | None:
        """The last figure of NVML; None without one."""
        return self.samples.process_bytes[-1] if self.samples.process_bytes else None

    @property
    def peak_process_bytes(self) -> int | None:
        """The largest figure of NVML, whose readings may have missed the peak; likewise."""
        return max(self.samples.process_bytes, default=None)

    @property
    def steady_bytes(self) -> int | None:
        """The memory at the last reading with a session, or else by NVML; None if unknown."""
        steady = self.memory.steady_bytes
        return self.process_bytes if steady is None else steady


class ProgramProcess(Record, frozen=True, kw_only=True):
    """One process of the program.

    Attributes:
        parent: the process that started it.
        command: its command line.
        started_s, ended_s: seconds since the start of the recording; None if it did not end.
        exit_code: negative for a signal; None if it is not known.
        peak_rss_bytes, peak_pss_bytes: the largest resident set, and proportional set, which counts
            pages that several processes share in parts; None if it cannot be read. The
            proportional set is read seldom: its true peak may be higher.
        earlier_peak_rss_bytes: the kernel's high-water mark when the recording began, for a process
            that was watched; None otherwise.
        peak_pss_s: when `peak_pss_bytes` was read, in seconds since the start of the recording.
        onnxruntime: the version that the process has loaded; None if it has none or the version is
            not known.
        cpus_allowed: the CPUs that the process may use, by its affinity and the limits of its
            control groups, when it started or last created a session; None if it is not known.
        forked_from: the process that it is a fork of, if that had imported onnxruntime.
        inherited: the sessions that were alive in that process at the fork.
        telemetry: whether its environment leaves onnxruntime's telemetry on, which 1.29 and newer
            have; None if that is not known.
        device: what it has on a GPU; None if it is not known to use one.
    """

    pid: int
    parent: int
    command: tuple[str, ...]
    started_s: float
    ended_s: float | None
    exit_code: int | None
    peak_rss_bytes: int
    peak_pss_bytes: int | None
    onnxruntime: str | None
    build: str | None
    python: str | None
    samples: Samples
    cpus_allowed: float | None = None
    forked_from: int | None = None
    inherited: tuple[InheritedSession, ...] = ()
    peak_pss_s: float | None = None
    earlier_peak_rss_bytes: int | None = None
    telemetry: bool | None = None
    device: ProcessDevice | None = None


class ProgramFinding(Record, frozen=True, kw_only=True):
    """A waste in the program.

    Attributes:
        name: the name of the rule.
        sessions: numbers of the sessions.
        bytes: the memory that the remedy saves; None if it is not known.
        message: the waste in one sentence.
        remedy: what to do.
    """

    name: str
    sessions: tuple[int, ...]
    bytes: int | None
    message: str
    remedy: str


class TreeSamples(Record, frozen=True, kw_only=True):
    """The memory of all processes together.

    Attributes:
        t_s: seconds since the start of the recording.
        rss_bytes: the sum of the resident sets at `t_s`; shared pages count once for each process.
        proportional_t_s: the times at which the proportional sets were read, which takes longer.
        pss_bytes: the sum of the proportional sets at `proportional_t_s`.
        swap_bytes: the sum of the swapped bytes at `proportional_t_s`.
    """

    t_s: tuple[float, ...]
    rss_bytes: tuple[int, ...]
    proportional_t_s: tuple[float, ...]
    pss_bytes: tuple[int, ...]
    swap_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        proportional = {len(self.proportional_t_s), len(self.pss_bytes), len(self.swap_bytes)}
        if len(self.t_s) != len(self.rss_bytes) or len(proportional) > 1:
            raise ValueError("the columns of the samples differ in length")


class ProgramRun(PlottableRecord, frozen=True, kw_only=True):
    """The recording of a program: every process, and every session in them.

    Attributes:
        command: the command line of the program; for a process that was watched, its own.
        duration_s: the length of the recording.
        end_xrays_s: the seconds of it in which processes waited at their end for their X-rays, or
            in which X-rays were taken after a process was watched.
        end_waits: start and end of these times, also for X-rays that were given up.
        exit_code: the exit code of the program; negative for a signal, None if it goes on.
        is_watched: whether the program was started without memdiag: then its sessions are unknown.
        earlier_sessions: the sessions that the first process had when the recording of a block of
            it began; they are not listed.
        peak_rss_bytes: the largest sum of the resident sets that was sampled, or the high-water
            mark of a process if that is higher; it was nearly reached at `peak_s`.
        group: what the control group of the first process counted, all other processes in it
            included; None if no group counts memory.
        peak_pss_bytes: the largest sum of the proportional sets that was read.
    """

    schema: Literal["memdiag.run/1"]
    command: tuple[str, ...]
    duration_s: float
    exit_code: int | None
    environment: Environment
    peak_rss_bytes: int
    peak_s: float
    peak_pss_bytes: int | None
    processes: tuple[ProgramProcess, ...]
    sessions: tuple[ProgramSession, ...]
    peaks: tuple[HighWaterRun, ...]
    samples: TreeSamples
    xrays: tuple[ProcessXray, ...]
    findings: tuple[ProgramFinding, ...]
    notes: tuple[str, ...]
    is_watched: bool = False
    end_xrays_s: float = 0.0
    end_waits: tuple[tuple[float, float], ...] = ()
    earlier_sessions: int = 0
    group: GroupMemory | None = None
