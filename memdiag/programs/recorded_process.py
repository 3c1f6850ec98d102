"""A process of a program that is being recorded."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from memdiag.programs import events
from memdiag.programs.log_filter import SessionLog
from memdiag.records.growth import LargestInput
from memdiag.runner.observer import Observer, SpanBoundary, open_observer
from memdiag.runner.sample_timeline import SampleTimeline
from memdiag.system.cpu_limit import cpus_allowed, thread_count
from memdiag.system.loaded_runtime import LoadedRuntime
from memdiag.system.process_tree import ProcessInfo, catches_signal, process_info

if TYPE_CHECKING:
    from memdiag.programs.recorded_session import RecordedSession


class RecordedProcess:
    """A process of the program.

    Args:
        info: its ids and command line.
        now_s: seconds since the start of the recording.
        origin_epoch_s: the start of the recording, in seconds since 1970.
        resets_peak: whether the kernel's high-water mark of the process may be reset.

    Attributes:
        local_sessions: its sessions by the number that its hook gave to them.
        logs: how the logs of its sessions are passed on, by the same number.
        active: its sessions that are being created or run for the first time.
        inherited: the sessions of the process that it was forked from, by the same number as
            `local_sessions`.
        cpus_allowed: the CPUs that it may use; None if that is not known.
        runtime: the onnxruntime that was found in it from outside; None if it was not searched for.
        early_runtime: the onnxruntime that was found when its memory had grown. The hook may yet
            report it; otherwise it becomes `runtime` at the end of the process.
        searched_rss_bytes: the resident set when `early_runtime` was last searched for.
        models: names of models that were found from outside, and whether it is certain that the
            process uses them.
        has_hook: whether its hook has noticed an import of onnxruntime.
        connections: the number of connections of its hook.
        telemetry: whether its environment leaves onnxruntime's telemetry on; None if unknown.
        executable: its Python interpreter; empty if it is not known.
        import_path: the folders from which its Python imports modules.
        has_said_exit: whether its hook has sent the last counts of runs.
        exit_rss_bytes: the resident set at that moment; None if it is not known.
        alive_values: how many inputs and outputs of earlier runs are alive, and how many there
            were, by description; empty if they are not tracked.
        largest_input: the inputs of the run whose inputs had the most bytes; None if they are not
            known or not tracked.
        value_starts: the first bytes of values of an earlier run in hexadecimal, and their sizes in
            bytes, by description.
        value_bytes: the mean bytes of the values of all runs, by description.
        kept_from: the callers of a run whose value is kept, by description of the value.
        reading_wait_s: the seconds until its next reading between runs; None if there is none.
        handles_sigterm: whether it has had a handler for SIGTERM, as a server has.

    Raises:
        ProcessGone: the process has ended.
    """

    def __init__(
        self, info: ProcessInfo, now_s: float, origin_epoch_s: float, *, resets_peak: bool = True
    ) -> None:
        self.info = info
        self.origin_epoch_s = origin_epoch_s
        self.started_s = now_s
        self.ended_s: float | None = None
        self.peak_rss_bytes = 0
        self.peak_pss_bytes: int | None = None
        self.peak_pss_s: float | None = None
        self.onnxruntime: str | None = None
        self.build: str | None = None
        self.python: str | None = None
        self.telemetry: bool | None = None
        self.executable = ""
        self.import_path: tuple[str, ...] = ()
        self.forked_from: int | None = None
        self.timeline = SampleTimeline()
        self.inherited: dict[int, SessionInheritance] = {}
        self.cpus_allowed = cpus_allowed(info.pid)
        self.runtime: LoadedRuntime | None = None
        self.early_runtime: LoadedRuntime | None = None
        self.searched_rss_bytes = 0
        self.models: dict[str, bool] = {}
        self.has_hook = False
        self.connections = 0
        self.has_said_exit = False
        self.exit_rss_bytes: int | None = None
        self.alive_values: dict[str, tuple[int, int]] = {}
        self.largest_input: LargestInput | None = None
        self.value_starts: dict[str, tuple[str, int]] = {}
        self.value_bytes: dict[str, float] = {}
        self.kept_from: dict[str, tuple[tuple[str, int, str], ...]] = {}
        self.reading_wait_s: float | None = None
        self.handles_sigterm = False
        self.local_sessions: dict[int, RecordedSession] = {}
        self.logs: dict[int, SessionLog] = {}
        self.active: list[RecordedSession] = []
        self._observer: Observer = open_observer(info.pid, resets_peak=resets_peak)
        self._marks: dict[RecordedSession, int] = {}
        try:
            self.sample(now_s)  # it may be the only one
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self.info.pid

    @property
    def rss_bytes(self) -> int:
        """The last sample of the resident set."""
        assert self.timeline.last is not None
        return self.timeline.last.rss_bytes

    @property
    def unrecorded(self) -> bool:
        """Whether it uses onnxruntime without the hook."""
        return self.runtime is not None and not self.has_hook

    @property
    def uncertain_models(self) -> list[str]:
        """The models that it may use, since some of their weights are in its memory."""
        return sorted(name for name, is_used in self.models.items() if not is_used)

    @property
    def used_models(self) -> list[str]:
        """The models that it uses, by its files or by weights in its memory."""
        return sorted(name for name, is_used in self.models.items() if is_used)

    @property
    def runtime_version(self) -> str | None:
        """The release of onnxruntime, from the hook or found from outside; None if unknown."""
        return self.onnxruntime or (self.runtime and self.runtime.version)

    @property
    def live_sessions(self) -> list[RecordedSession]:
        """The sessions that were created and not released."""
        return [
            session
            for session in self.local_sessions.values()
            if session.providers and session.released_s is None
        ]

    @property
    def inherited_sessions(self) -> list[RecordedSession]:
        """The sessions of the process that it was forked from, which it has in its memory."""
        return [
            inheritance.session
            for inheritance in self.inherited.values()
            if not inheritance.is_released
        ]

    @property
    def has_sessions(self) -> bool:
        """Whether it has a session that it created, or has run a session that it inherited.

        A fork that runs no session shares the memory of the sessions that it inherited.
        """
        inherited = self.inherited.values()
        return bool(self.live_sessions) or any(session.is_used for session in inherited)

    def introduce(self, hello: events.Hello, parent: RecordedProcess | None) -> None:
        """Store the hook's description of the process; `parent` is the process that was forked."""
        # At first the process may have been a fork that had not started the program yet.
        self.info = process_info(self.pid) or self.info
        self.has_hook = True
        self.onnxruntime, self.build = hello.onnxruntime, hello.build
        self.python, self.forked_from = hello.python, hello.forked_from
        self.telemetry = hello.telemetry
        self.executable, self.import_path = hello.executable, hello.import_path
        if parent is not None:
            inherited_by_number = {
                number: inherited.session for number, inherited in parent.inherited.items()
            }
            session_by_number = {**inherited_by_number, **parent.local_sessions}
            self.inherited = {
                number: SessionInheritance(session_by_number[number])
                for number in hello.sessions
                if number in session_by_number
            }

    def forget_sessions(self, now_s: float) -> None:
        """Store that its sessions until now are gone: another program has replaced it (exec)."""
        for session in self.live_sessions:
            session.release(now_s)
        self.local_sessions, self.logs, self.active = {}, {}, []

    def session(self, event: events.SessionEvent) -> RecordedSession:
        """Return the session that an event is about."""
        return self.local_sessions[event.session]

    def add_values(self, event: events.BetweenRuns) -> None:
        """Store which inputs and outputs of earlier runs are alive."""
        self.largest_input = event.largest_input
        if event.at_exit:
            return  # the values that local variables of the program had are gone
        self.alive_values = event.alive
        self.value_starts = event.starts
        self.value_bytes = event.sizes
        self.kept_from = event.kept_from

    def sample(self, now_s: float) -> int:
        """Take a sample and return the resident set in bytes.

        Raises:
            ProcessGone: it has ended.
        """
        reading = self._observer.sample()
        self.timeline.add(now_s, reading)
        self.peak_rss_bytes = max(self.peak_rss_bytes, reading.rss_bytes)
        for session in self.active:
            session.phases.add_sample(now_s, reading)
        return reading.rss_bytes

    def read_peak(self) -> None:
        """Raise the peak to the high-water mark since the start of the process.

        The mark must not have been reset.

        Raises:
            ProcessGone: it has ended.
        """
        _, peak = self._observer.boundary()
        self.peak_rss_bytes = max(self.peak_rss_bytes, peak or 0)

    @property
    def earlier_peak_rss_bytes(self) -> int | None:
        """The kernel's high-water mark at the start, in bytes; None if the mark may be reset."""
        return self._observer.first_mark_bytes

    def add_pss(self, now_s: float, pss_bytes: int) -> None:
        """Store a reading of the proportional set."""
        if self.peak_pss_bytes is None or pss_bytes > self.peak_pss_bytes:
            self.peak_pss_bytes, self.peak_pss_s = pss_bytes, now_s

    def read_signals(self) -> None:
        """Store whether it has a handler for SIGTERM, which it may remove at its end."""
        self.handles_sigterm = self.handles_sigterm or catches_signal(self.pid, signal.SIGTERM)

    def read_cpus_allowed(self) -> None:
        """Read the limits again, which the program may have changed."""
        self.cpus_allowed = cpus_allowed(self.pid)

    def before_creation(self, now_s: float) -> BeforeCreation:
        """Return the facts that must be read while the process waits to create a session.

        Raises:
            ProcessGone: it has ended.
        """
        return BeforeCreation(thread_count(self.pid), self.boundary(now_s, None))

    def boundary(self, now_s: float, session: RecordedSession | None) -> SpanBoundary:
        """Return the memory now, and the high-water mark since the last boundary of `session`.

        The kernel has one mark for the process, so other active sessions get it at their next
        boundary.

        Raises:
            ProcessGone: it has ended.
        """
        memory, peak = self._observer.boundary()
        if peak is None:
            return SpanBoundary(memory, None)
        self.peak_rss_bytes = max(self.peak_rss_bytes, peak)
        for other in self.active:
            if other is not session:
                self._marks[other] = max(self._marks.get(other, 0), peak)
        return SpanBoundary(memory, max(peak, self._marks.pop(session, 0) if session else 0))

    def end(self, now_s: float) -> None:
        """Store that the process has ended."""
        self.ended_s = now_s
        if self.runtime is None and not self.has_hook:
            self.runtime = self.early_runtime
        self.close()

    def close(self) -> None:
        """Close the files of the process."""
        self._observer.close()


@dataclass
class SessionInheritance:
    """A session that a forked process inherited.

    Attributes:
        session: the session, in the process that created it.
        runs: the number of its runs in the forked process, by the shapes of their inputs.
        is_running: whether its first run there has started and not ended.
        is_released: whether the forked process has released it.
        last_run_s: the end of its last run there, in seconds since the start of the recording.
    """

    session: RecordedSession
    runs: dict[str, int] = field(default_factory=dict)
    is_running: bool = False
    is_released: bool = False
    last_run_s: float | None = None

    @property
    def run_count(self) -> int:
        """The number of its runs in the forked process."""
        return sum(self.runs.values())

    @property
    def is_used(self) -> bool:
        """Whether the forked process has run it, or runs it, and has not released it."""
        return (self.run_count > 0 or self.is_running) and not self.is_released

    def handle(self, event: events.SessionEvent, now_s: float) -> None:
        """Handle an event of the forked process."""
        match event:
            case events.RunCounts():
                self.runs |= {repr(run.shapes): run.runs for run in event.runs}
                self.last_run_s = now_s - event.last_run_age_s
            case events.FirstRun():
                self.is_running = True
            case events.FirstRunDone():
                self.is_running = False
            case events.Released():
                self.is_released = True


class BeforeCreation(NamedTuple):
    """A process at the start of a creation.

    Attributes:
        threads: the number of its threads; None if it is not known.
        boundary: its memory.
    """

    threads: int | None
    boundary: SpanBoundary
