"""Run a model in a child process and measure the child: phases, spans, samples, runs, outcome."""

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

from memdiag.garbage import collection_disabled
from memdiag.process_end import end_text, signal_name
from memdiag.records.profile import (
    EndCause,
    Memory,
    Outcome,
    Phase,
    PhaseName,
    Run,
    Samples,
    Sampling,
    Span,
    Status,
)
from memdiag.runner.child import Child
from memdiag.runner.failure_text import failure_text
from memdiag.runner.job import Job
from memdiag.runner.log import (
    AddressRanges,
    ArenaRegion,
    ArenaReservation,
    LogEvidence,
    LogMarker,
    ScriptEvent,
)
from memdiag.runner.nvml import DeviceReader, DeviceReaderFactory, open_device_reader
from memdiag.runner.observer import (
    MemoryReading,
    ObserverFactory,
    ProcessGone,
    SpanBoundary,
    open_observer,
)
from memdiag.runner.phase_tracker import PhaseTracker
from memdiag.runner.sampler import Sampler
from memdiag.units import format_duration, format_limit, format_size

_PROGRESS_S = 0.2
_LAST_OUTPUT_S = 1.0


class ChildProgress(NamedTuple):
    """The progress of the child, reported at most every 0.2 seconds and at the start of each phase.

    Attributes:
        phase, span: the phase and the span that the child is in.
        elapsed_s: seconds since the child was started.
        rss_bytes: its resident set.
        runs_done: the number of runs after the first.
    """

    phase: PhaseName
    span: str
    elapsed_s: float
    rss_bytes: int
    runs_done: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """The measurement of one child. Fields without a description are as in `Profile`.

    Attributes:
        onnxruntime: the version of onnxruntime; None if the child ended before the import.
        python: the version of the child's interpreter; None in the same case.
        providers: the execution providers of the session; None if no session was created.
        baseline: the memory with onnxruntime imported and the inputs loaded, before the session.
        prefill_cache_bytes, cache_bytes: the KV cache of a generation after the prompt and after
            the last step; None without a generation, or if these were not reached.
        explicit_starts: whether onnxruntime logs where a graph transformer starts (since 1.29).
        interrupted: whether Ctrl-C ended the child.
        arena_regions: the regions by which the arenas of onnxruntime grew, on the host and on
            devices.
        device_reservations: what arenas reserved in the memory of devices.
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
    prefill_cache_bytes: int | None = None
    cache_bytes: int | None = None
    arena_regions: tuple[ArenaRegion, ...] = ()
    device_reservations: tuple[ArenaReservation, ...] = ()


OnDeviceEvent = Callable[[ScriptEvent, float, DeviceReader | None], None]


class AtBaseline(NamedTuple):
    """onnxruntime is imported, nothing of the model is loaded, and the child waits.

    Attributes:
        pid: the process number of the child.
    """

    pid: int


class AtPhaseEnd(NamedTuple):
    """A phase has ended, and the child is stopped. A phase can end more than once.

    Attributes:
        pid: the process number of the child.
        phase: the phase.
        arena: the regions of the arena in the host's memory, according to the log.
        cache: the memory of the KV cache of a generation.
    """

    pid: int
    phase: PhaseName
    arena: AddressRanges
    cache: AddressRanges = ()


class DeviceAccess(NamedTuple):
    """What is needed to read the memory of the child's device while the child waits.

    Attributes:
        copy: `Child.copy_from_device`.
        regions: the regions of all arenas, by the log, in the order of time.
    """

    copy: Callable[[Sequence[tuple[int, int]]], int]
    regions: tuple[ArenaRegion, ...]


class AtSteady(NamedTuple):
    """All runs are done; the child waits.

    Attributes:
        pid: the process number of the child.
        arena: the regions of the arena in the host's memory, according to the log.
        log: the evidence of the log.
        heap_trimmed: whether freed heap was returned to the system.
        cache: the memory of the KV cache of a generation.
        device: access to the memory of its device; None if it has no device.
    """

    pid: int
    arena: AddressRanges
    log: LogEvidence
    heap_trimmed: bool
    cache: AddressRanges = ()
    device: DeviceAccess | None = None


ChildPause = AtBaseline | AtPhaseEnd | AtSteady
"""The child waits or is stopped, so that its memory can be read."""


class _EndOfMeasurement(Exception):
    """Raised when the measurement ends; the status and the message are set before."""


class MeasuredChild:
    """A child that runs `job` while it is measured.

    Args:
        job: the model, the configuration and the limits.
        on_pause: called while the child waits or is stopped, to read its memory; its time
            belongs to no phase.
        phase_ends: also stop the child at the end of each phase.
        observer: creates the reader of the child's memory.
        device: creates the reader of the child's memory on devices.
        on_device_event: called with each event of a child that records its device, the seconds
            since the start, and the reader of `device`, if there is one.
        on_progress: called with the progress of the child.
    """

    def __init__(
        self,
        job: Job,
        on_pause: Callable[[ChildPause], None] | None = None,
        *,
        phase_ends: bool = False,
        observer: ObserverFactory = open_observer,
        device: DeviceReaderFactory = open_device_reader,
        on_device_event: OnDeviceEvent | None = None,
        on_progress: Callable[[ChildProgress], None] | None = None,
    ) -> None:
        self._job = job
        self._on_pause = on_pause
        self._phase_ends = phase_ends
        self._make_observer = observer
        self._make_device_reader = device
        self._device_reader: DeviceReader | None = None
        self._on_device_event = on_device_event
        self._on_progress = on_progress
        self._on_sample: Callable[[float], None] | None = None
        # Reported by the child.
        self._versions: dict[str, str] = {}
        self._providers: tuple[str, ...] | None = None
        self._first_run_s: float | None = None
        # Measured. Time counts to a phase while `_is_timed`: until the last phase has ended.
        self._baseline: Memory | None = None
        self._steady: Memory | None = None
        self._runs: list[Run] = []
        self._cache: list[tuple[int, int]] = []
        self._prefill_cache_bytes: int | None = None
        self._cache_bytes: int | None = None
        self._trimmed: int | None = None
        self._is_timed = True
        # The outcome.
        self._status: Status = "completed"
        self._message = ""
        self._cause: EndCause = ""
        self._interrupted = False
        self._progress_s = 0.0  # the time of the next report

    def run(self, *, on_sample: Callable[[float], None] | None = None) -> Measurement:
        """Start the child, and return its measurement when it is done or has ended.

        A limit ends it, and so does Ctrl-C, without an exception: see `Measurement.interrupted`.

        Args:
            on_sample: called after each sample, with the seconds since the start. It may ask for
                `measurement_until_now`.

        Raises:
            MeasurementError: the child's interpreter cannot be started.
        """
        self._on_sample = on_sample
        # A collection of garbage would be a gap in the samples.
        with collection_disabled(), Child(self._job, self._job.message()) as self._child:
            self._origin, self._origin_epoch = time.perf_counter(), time.time()
            with closing(Sampler(self._make_observer, self._child.pid)) as self._sampler:
                first = self._sampler.last_boundary.memory
                self._phases = PhaseTracker(first, self._job.session.providers)
                try:
                    self._observe_to_end()
                except KeyboardInterrupt:
                    self._interrupted = True
                    self._status, self._message = "killed", "interrupted"
                    self._cause = "interrupt"
                return self._finished_measurement()

    def _observe_to_end(self) -> None:
        """Let the child run until it is done, has ended, or has reached a limit."""
        if self._job.records_device:
            self._device_reader = self._make_device_reader(self._child.pid)
        try:
            self._read_output()
        except _EndOfMeasurement:
            pass
        except ProcessGone:
            # Read its last output: the reason may be there.
            deadline = self._elapsed_s() + _LAST_OUTPUT_S
            while not self._child.silent and self._elapsed_s() < deadline:
                self._child.read(0.05)
        finally:
            if self._device_reader is not None:
                self._device_reader.close()

    def measurement_until_now(self, message: str) -> Measurement:
        """Return the measurement up to this moment, as if the child were killed now.

        Args:
            message: the reason for its outcome.
        """
        phases = self._phases
        if self._is_timed:
            phases = copy.deepcopy(phases)
            phases.finish(self._elapsed_s(), self._sampler.last_known)
        outcome = Outcome(status="killed", phase=self._phases.phase, message=message)
        return self._assembled_measurement(phases, outcome)

    def _finished_measurement(self) -> Measurement:
        """Return the measurement until the child was done or ended."""
        self._child.log.finish()
        phase = self._phases.phase
        if self._is_timed:
            self._is_timed = False
            self._phases.finish(self._elapsed_s(), self._sampler.last_known)
            if not self._interrupted:
                self._status, self._message, self._cause = self._reason_of_end()
        outcome = Outcome(
            status=self._status, phase=phase, message=self._message, cause=self._cause
        )
        return self._assembled_measurement(self._phases, outcome)

    def _assembled_measurement(self, tracker: PhaseTracker, outcome: Outcome) -> Measurement:
        return Measurement(
            onnxruntime=self._versions.get("onnxruntime"),
            python=self._versions.get("python"),
            providers=self._providers,
            baseline=self._baseline,
            phases=tracker.phases(),
            spans=tracker.spans(),
            samples=self._sampler.timeline.samples(),
            sampling=self._sampler.sampling(tracker.lag_s),
            steady=self._steady,
            first_run_s=self._first_run_s,
            runs=tuple(self._runs),
            allocator_retained_bytes=self._trimmed,
            warnings=tuple(self._child.log.warnings),
            explicit_starts=tracker.explicit_starts,
            outcome=outcome,
            interrupted=self._interrupted,
            prefill_cache_bytes=self._prefill_cache_bytes,
            cache_bytes=self._cache_bytes,
            arena_regions=tuple(self._child.log.regions),
            device_reservations=tuple(self._child.log.device_reservations),
        )

    def _elapsed_s(self) -> float:
        """Return the seconds since the child was started, without the time of `on_pause`."""
        return time.perf_counter() - self._origin

    def _read_output(self) -> None:
        """Read log and events of the child, and sample its memory, until its output ends."""
        while True:
            markers: list[LogMarker] = []
            for item in self._child.read(self._sampler.next_s - self._elapsed_s()):
                if isinstance(item, LogMarker):
                    markers.append(item)
                    continue
                self._apply_markers(markers)
                markers = []
                self._apply_event(item)
            self._apply_markers(markers)
            if self._child.silent or (not self._sampler.is_observing and self._child.ended):
                return
            self._sample_if_due()

    def _apply_markers(self, markers: list[LogMarker]) -> None:
        """Start and end the spans of log lines that arrived together."""
        if not markers or not self._is_timed:
            return
        phase = self._phases.phase
        now_s, boundary = self._read_boundary()
        self._phases.add_markers(markers, self._origin_epoch, now_s, boundary)
        self._check_memory(boundary.max_rss_bytes)
        if self._phases.phase != phase:
            self._report_progress(now_s)
            self._read_memory_at_end_of(phase)

    def _apply_event(self, event: ScriptEvent) -> None:
        """Handle one event of scripts/child.py, in the order in which the script sends them."""
        fields = event.fields
        match event.name:
            case "versions":
                self._versions = fields
                return
            case "ready":
                self._read_memory_at(AtBaseline(self._child.pid))
                self._baseline = self._start_span("create the session", "parse")
            case "created":
                self._providers = tuple(fields["providers"])
                if self._job.runs is None:
                    self._end_last_phase()
                else:
                    self._start_span(*self._run_spans[0])
            case name if name.startswith("device_"):
                if self._on_device_event is not None:
                    self._on_device_event(event, self._elapsed_s(), self._device_reader)
                return
            case "cache":
                self._add_cache(fields["ranges"], is_first=fields["first"])
                return
            case "first_run":
                self._first_run_s = fields["latency_s"]
                self._prefill_cache_bytes = self._cached_bytes()
                self._start_span(*self._run_spans[1])
            case "run":
                self._add_run(fields["latency_s"])
            case "steady":
                self._cache_bytes = self._cached_bytes()
                self._steady = self._end_last_phase()
            case "trimmed":
                self._measure_trim(possible=fields["possible"])
            case "end":
                self._read_memory_at_steady(has_device=fields["has_device"])
                if not self._job.records_device:
                    self._child.proceed()
                    raise _EndOfMeasurement
            case "deleted":
                self._child.proceed()
                raise _EndOfMeasurement
            case "error":
                self._status, self._message = "failed", error_sentence(fields, self._job)
                if self._is_timed:
                    self._end_last_phase()
                raise _EndOfMeasurement
        self._child.proceed()

    @property
    def _run_spans(self) -> tuple[tuple[str, PhaseName], tuple[str, PhaseName]]:
        """Name and phase of the span of the first run, and of that of the later runs."""
        if self._job.generation is None:
            return ("first run", "first_run"), ("runs", "steady")
        return ("prompt", "prefill"), ("steps of one token", "decode")

    def _add_cache(self, ranges: AddressRanges, *, is_first: bool) -> None:
        """Note addresses of the KV cache; the first ones replace those of an earlier run."""
        if is_first:
            self._cache.clear()
        self._cache += [(start, end) for start, end in ranges]

    def _cached_bytes(self) -> int | None:
        if self._job.generation is None:
            return None
        return sum(end - start for start, end in self._cache)

    def _start_span(self, name: str, phase: PhaseName) -> Memory:
        """Start a span at an event, at which the child waits; return the memory at its start."""
        ended_phase = self._phases.phase
        now_s, boundary = self._read_boundary()
        self._phases.start_span(name, phase, now_s, boundary)
        self._check_memory(boundary.max_rss_bytes)
        self._report_progress(now_s)
        if ended_phase != "start":
            self._read_memory_at_end_of(ended_phase)
        return boundary.memory

    def _read_memory_at_steady(self, *, has_device: bool) -> None:
        log = self._child.log
        trimmed = self._trimmed is not None
        device = (
            DeviceAccess(self._child.copy_from_device, tuple(log.regions)) if has_device else None
        )
        steady = AtSteady(
            self._child.pid, log.host_regions, log.evidence(), trimmed, tuple(self._cache), device
        )
        self._read_memory_at(steady)

    def _read_memory_at_end_of(self, phase: PhaseName) -> None:
        if self._phase_ends:
            arena, cache = self._child.log.host_regions, tuple(self._cache)
            self._read_memory_at(AtPhaseEnd(self._child.pid, phase, arena, cache))

    def _read_memory_at(self, pause: ChildPause) -> None:
        """Call `on_pause`, with the child stopped at the end of a phase; no phase has its time."""
        if self._on_pause is None:
            return
        started = time.perf_counter()
        try:
            with self._child.stopped() if isinstance(pause, AtPhaseEnd) else nullcontext():
                self._on_pause(pause)
        finally:
            duration = time.perf_counter() - started
            self._origin += duration
            self._origin_epoch += duration

    def _end_last_phase(self) -> Memory:
        """End the measured time of the child; return the memory at its end."""
        now_s, boundary = self._read_boundary()
        self._check_memory(boundary.max_rss_bytes)
        self._is_timed = False
        self._phases.finish(now_s, boundary)
        return boundary.memory

    def _add_run(self, latency_s: float) -> None:
        """Record a run after the first, with the peak since the run before."""
        now_s, boundary = self._read_boundary()
        self._phases.close_window(now_s, boundary)
        self._check_memory(boundary.max_rss_bytes)
        self._runs.append(
            Run(
                latency_s=latency_s,
                rss_bytes=boundary.memory.rss_bytes,
                end_s=round(now_s, 6),
                peak_rss_bytes=boundary.peak_rss_bytes,
            )
        )

    def _measure_trim(self, *, possible: bool) -> None:
        """Measure the memory that malloc returned to the system when the child asked for it."""
        if possible:
            before = self._sampler.last_boundary.memory.rss_bytes
            after = self._sampler.read_boundary().memory.rss_bytes
            self._trimmed = max(0, before - after)

    def _sample_if_due(self) -> None:
        """Take a sample if one is due, check the limits, and report the progress."""
        now_s = self._elapsed_s()
        reading = self._sampler.sample_if_due(now_s, in_timeline=self._is_timed)
        if reading is None:
            return
        if self._on_sample is not None:
            self._on_sample(now_s)
        if self._is_timed:
            self._phases.add_sample(now_s, reading)
        self._check_memory(reading.rss_bytes)
        if now_s > self._job.limits.timeout_s or self._job.limits.deadline.remaining_s <= 0:
            seconds = min(now_s, self._job.limits.timeout_s)
            self._stop_at_limit("timeout", f"stopped after {format_duration(seconds)}")
        if now_s >= self._progress_s:
            self._report_progress(now_s)

    def _read_boundary(self) -> tuple[float, SpanBoundary]:
        """Return the time of a boundary and the memory at it, which is also a sample."""
        boundary = self._sampler.read_boundary()
        now_s = self._elapsed_s()
        reading = MemoryReading.of(boundary.memory)
        self._sampler.add(now_s, reading, in_timeline=self._is_timed)
        return now_s, boundary

    def _check_memory(self, rss_bytes: int) -> None:
        """End the measurement if the resident set exceeds the memory limit."""
        limit = self._job.limits.memory_limit_bytes
        if limit is not None and rss_bytes > limit and self._is_timed:
            excess = format_size(rss_bytes - limit)
            self._stop_at_limit(
                "limit",
                f"memdiag ended the run at the first reading above the limit of"
                f" {format_limit(limit)}, {excess} above it. The peak of a whole run is not known",
            )

    def _stop_at_limit(self, status: Status, message: str) -> None:
        """End the measurement of a child that has reached a limit, after a last reading."""
        self._status, self._message = status, message
        if self._is_timed:
            now_s, boundary = self._elapsed_s(), self._sampler.read_boundary()
            self._is_timed = False
            self._phases.finish(now_s, boundary)
        raise _EndOfMeasurement

    def _report_progress(self, now_s: float) -> None:
        """Report the progress to the caller, if it asked for that."""
        if self._on_progress is None:
            return
        self._progress_s = now_s + _PROGRESS_S
        phase, span = self._phases.phase, self._phases.span
        rss_bytes = self._sampler.rss_bytes
        self._on_progress(ChildProgress(phase, span, now_s, rss_bytes, len(self._runs)))

    def _reason_of_end(self) -> tuple[Status, str, EndCause]:
        """Return the status of a child that ended on its own, the reason in words and the cause."""
        code = self._child.returncode()
        log = self._child.log
        lines = [*log.errors[-1:], *log.tail[-1:]]
        explanation = f": {lines[-1]}" if lines else ""
        sentence = f"the process {end_text(code)}{explanation}"
        if code >= 0:
            return "failed", sentence, ""
        name = signal_name(code)
        if name == "SIGKILL":
            return "killed", "killed by the system (SIGKILL; memory may be short)", "sigkill"
        if name == "SIGXCPU":
            limit_text = "the limit of CPU time was reached (SIGXCPU; raise it with ulimit -t)"
            return "killed", limit_text, ""
        return "killed", sentence, "crash"


def error_sentence(error: dict[str, Any], job: Job) -> str:
    """Return one sentence for the fields of an ``error`` event."""
    message = failure_text(error["message"])
    if error["stage"] == "import":
        return f"{job.session.python} cannot import onnxruntime ({message})"
    return message or str(error["kind"])
