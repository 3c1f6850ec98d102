"""A session of a program that is being recorded."""

import os

from memdiag.programs import events
from memdiag.programs.log_filter import SessionLog
from memdiag.programs.recorded_process import BeforeCreation, RecordedProcess
from memdiag.records.phases import CREATION_PHASES, PhaseName
from memdiag.records.profile import UNKNOWN_MEMORY, Phase
from memdiag.records.run import InputShapes, PhaseTime, SessionMemory
from memdiag.runner.log import LogMarker, LogParser
from memdiag.runner.observer import SpanBoundary
from memdiag.runner.phase_tracker import PhaseTracker, phase_of_peak
from memdiag.session_options import ORT_BYTES_OPTION
from memdiag.system.cpu_limit import thread_count


class RecordedSession:
    """A session of the program.

    Args:
        number: its number in the recording.
        process: its process.
        now_s: seconds since the start of the recording.
        description: the hook's event at the start of the creation.
        before: the process at the start of the creation.

    Attributes:
        rss_before_bytes: the resident set of the process at the start of the creation.
        keeps_bytes: whether it has the bytes from which it was created.
    """

    def __init__(
        self,
        number: int,
        process: RecordedProcess,
        now_s: float,
        description: events.Create,
        before: BeforeCreation,
    ) -> None:
        self.number = number
        self.process = process
        self.description = description
        self.created_s = now_s
        self.creation_s: float | None = None
        self.released_s: float | None = None
        self.first_run_s: float | None = None
        self.last_run_s: float | None = None
        self.error: str | None = None
        self.providers: tuple[str, ...] = ()
        self.address: int | None = None
        self.run_threads = 0
        self.shapes: dict[str, InputShapes] = {}
        self.shared_with: set[int] = set()
        self.memory: SessionMemory | None = None
        self.started_threads: int | None = None
        self.keeps_bytes = description.model.path is None
        self.rss_before_bytes = before.boundary.memory.rss_bytes
        self._threads_before = before.threads
        self._log = LogParser(os.urandom(16).hex())
        process.local_sessions[description.session] = self
        process.logs[description.session] = SessionLog(description.severity, description.logid)
        self.phases = PhaseTracker(before.boundary.memory, description.providers)
        self._activate_session()
        self.phases.start_span("create the session", "parse", now_s, before.boundary)

    @property
    def model_key(self) -> str:
        """A key that sessions of the same model share: the path, or a hash of the bytes."""
        model = self.description.model
        return str(model.path or model.digest)

    @property
    def kept_bytes(self) -> range:
        """The addresses of the bytes from which it was created, if it keeps them without need.

        Empty otherwise.
        """
        model, config = self.description.model, self.description.config
        is_used = config.get(ORT_BYTES_OPTION) == "1"
        start, size = model.address or 0, model.bytes or 0
        return range(start, start + size * (self.keeps_bytes and not is_used))

    def add_log(self, now_s: float, lines: bytes) -> None:
        """Add lines of the session's log."""
        markers = [item for item in self._log.feed(lines) if isinstance(item, LogMarker)]
        if markers:
            reading = self.process.boundary(now_s, self)
            self.phases.add_markers(markers, self.process.origin_epoch_s, now_s, reading)

    def finish_creation(self, now_s: float, event: events.Created) -> None:
        """End the creation."""
        self.creation_s = event.latency_s
        self.error = event.error
        self.providers = event.providers
        self.address = event.address
        threads = thread_count(self.process.pid)
        # Threads of sessions that are created at the same time cannot be assigned to a session.
        if threads is not None and self._threads_before is not None and not self.shared_with:
            self.started_threads = max(0, threads - self._threads_before)
        for local_number in event.ran_meanwhile:
            if local_number in self.process.local_sessions:
                self.shared_with.add(self.process.local_sessions[local_number].number)
        self._leave_phase(now_s)

    def start_first_run(self, now_s: float) -> None:
        """Start the first run."""
        self._activate_session()
        self.phases.start_span("first run", "first_run", now_s, self.process.boundary(now_s, self))

    def finish_first_run(self, now_s: float) -> None:
        """End the first run."""
        self.first_run_s = now_s
        self._leave_phase(now_s)

    def add_runs(self, now_s: float, event: events.RunCounts) -> None:
        """Store the counts of runs that have changed."""
        self.last_run_s = now_s - event.last_run_age_s
        self.run_threads = max(self.run_threads, event.threads)
        self.keeps_bytes = event.keeps_bytes
        for run in event.runs:
            self.shapes[repr(run.shapes)] = InputShapes(
                shapes=run.shapes,
                runs=run.runs,
                total_s=run.total_s,
                min_s=run.min_s,
                max_s=run.max_s,
            )

    def release(self, now_s: float) -> None:
        """Store that the program has released the session."""
        self.released_s = now_s

    def finished_phases(self) -> tuple[Phase, ...]:
        """Return the phases. A phase that was open when the process ended has its end there."""
        last_sample = self.process.timeline.last
        memory = UNKNOWN_MEMORY if last_sample is None else last_sample.memory
        ended_s = self.process.ended_s or self.created_s
        self.phases.finish(ended_s, SpanBoundary(memory, None))
        return tuple(phase for phase in self.phases.phases() if phase.name != "start")

    def peak_phase(self) -> PhaseName | None:
        """Return the phase with the peak; call it after `finished_phases`."""
        phases = [phase for phase in self.phases.phases() if phase.name != "start"]
        if not phases:
            return None
        return phase_of_peak(phases, self.phases.spans(), phases[0].start.rss_bytes).name

    def exact_creation_peak(self) -> int | None:
        """Return the kernel's mark of the whole creation in bytes; None if there is none.

        Call it after `finished_phases`.
        """
        peak = self.phases.common_peak(CREATION_PHASES)
        return peak[0] if peak is not None and peak[1] == "exact" else None

    def phase_times(self) -> tuple[PhaseTime, ...]:
        """Return when the phases took place; call it after `finished_phases`."""
        times: list[PhaseTime] = []
        for span in self.phases.spans():
            if span.phase == "start":
                continue
            start_s, end_s = round(span.start_s, 6), round(span.end_s, 6)
            if times and (times[-1].phase, times[-1].end_s) == (span.phase, start_s):
                start_s = times.pop().start_s
            times.append(PhaseTime(phase=span.phase, start_s=start_s, end_s=end_s))
        return tuple(times)

    def _activate_session(self) -> None:
        for other in self.process.active:
            other.shared_with.add(self.number)
            self.shared_with.add(other.number)
        self.process.active.append(self)

    def _leave_phase(self, now_s: float) -> None:
        """End the open span. The time after it belongs to no phase."""
        self.phases.start_span("outside", "start", now_s, self.process.boundary(now_s, self))
        self.process.active.remove(self)
