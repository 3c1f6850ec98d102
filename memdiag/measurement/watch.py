"""The watcher: follows the child from its start to its end and keeps what it saw."""

import array
import gc
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from memdiag.measurement.child import Child
from memdiag.measurement.inspector import Inspector, LogEvidence
from memdiag.measurement.job import Job
from memdiag.measurement.markers import Event, LogReader, Marker
from memdiag.measurement.observer import Boundary, Observer, ObserverFactory, ProcessGone, Reading
from memdiag.measurement.phase_clock import PhaseClock
from memdiag.measurement.portable import PsutilObserver
from memdiag.measurement.proc import ProcObserver
from memdiag.measurement.pump import make_pump
from memdiag.measurement.seen import Measurement, Progress
from memdiag.measurement.timeline import Timeline
from memdiag.records.profile import Memory, Outcome, PhaseName, Run, Sampling, Status
from memdiag.units import format_duration

_PROGRESS_S = 0.2
# What the runtime's Python binding puts before its messages: "[ONNXRuntimeError] : 1 : FAIL : ".
_STATUS_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_MAX_GAPS = 1_000_000


def observe(pid: int) -> Observer:
    """Return the best observer of process `pid` that this system allows."""
    if sys.platform == "linux":
        try:
            return ProcObserver(pid)
        except OSError:
            # Hidden or restricted /proc: psutil may still be let in, and it says what it can.
            return PsutilObserver(pid)
    return PsutilObserver(pid)


def measure(
    job: Job,
    *,
    observer: ObserverFactory = observe,
    on_progress: Callable[[Progress], None] | None = None,
    inspector: Inspector | None = None,
) -> Measurement:
    """Run `job` in a child of its own and return what was seen, however it ended.

    An `inspector` looks into the child's memory while it waits, outside all phases.

    Raises:
        MeasurementError: the child's interpreter cannot be started.
    """
    collecting = gc.isenabled()
    # A collection of our own garbage would be a gap in the samples.
    gc.disable()
    try:
        with Child(job, job.message()) as child:
            return _Watch(job, child, observer, on_progress, inspector).follow()
    finally:
        if collecting:
            gc.enable()


class _Done(Exception):
    """The child's story is over; the reason is in the watch."""


class _Watch:
    def __init__(
        self,
        job: Job,
        child: Child,
        observer: ObserverFactory,
        on_progress: Callable[[Progress], None] | None,
        inspector: Inspector | None,
    ) -> None:
        self._origin = time.perf_counter()
        self._origin_epoch = time.time()
        self._job = job
        self._child = child
        self._make_observer = observer
        self._on_progress = on_progress
        self._inspector = inspector
        self._log = LogReader(child.secret)
        self._timeline = Timeline()
        self._versions: dict[str, str] = {}
        self._providers: tuple[str, ...] | None = None
        self._baseline: Memory | None = None
        self._steady: Memory | None = None
        self._first_run_s: float | None = None
        self._runs: list[Run] = []
        self._retained: int | None = None
        self._status: Status = "completed"
        self._message = ""
        self._interrupted = False
        self._running = True
        self._gaps = array.array("d")
        self._sampled_s = 0.0
        self._rss_bytes = 0
        self._count = 0
        self._progress_s = 0.0
        self._last = Boundary(
            Memory(rss_bytes=0, anonymous_bytes=None, file_bytes=None, shared_bytes=None), None
        )

    def follow(self) -> Measurement:
        """Watch until the child is done, gone, or has used up what it was allowed."""
        self._observer: Observer | None = None
        try:
            self._observer = self._make_observer(self._child.pid)
            self._last = self._observer.boundary()
        except ProcessGone:
            # So short a life has nothing to read; the log still says why.
            self._observer = None
        self._clock = PhaseClock(self._last.memory, self._job.providers)
        pump = make_pump(self._child.log)
        try:
            while True:
                period_s = self._observer.period_s if self._observer else _PROGRESS_S
                pump.wait(max(0.0, self._sampled_s + period_s - self._now()))
                if chunk := pump.take():
                    self._handle(self._log.feed(chunk))
                if pump.ended or (self._observer is None and self._child.ended):
                    break
                self._look()
        except _Done:
            pass
        except ProcessGone:
            # Read what it said last: the reason may be there.
            deadline = self._now() + 1.0
            while not pump.ended and self._now() < deadline:
                pump.wait(0.05)
                self._log.feed(pump.take())
        except KeyboardInterrupt:
            self._interrupted = True
            self._status, self._message = "killed", "interrupted"
        finally:
            pump.close()
        self._log.finish()
        return self._conclude()

    def _now(self) -> float:
        return time.perf_counter() - self._origin

    def _inspect(self, ended: PhaseName) -> None:
        """Let the inspector look at the end of a phase; the time it takes did not pass."""
        if self._inspector is None or not self._inspector.phases:
            return
        started = time.perf_counter()
        with self._child.stopped():
            self._inspector.phase(self._child.pid, ended, self._log.arena)
        taken = time.perf_counter() - started
        self._origin += taken
        self._origin_epoch += taken

    def _look(self) -> None:
        """Take a sample if it is time, and see to the limits and the display."""
        now_s = self._now()
        if self._observer is None or now_s < self._sampled_s + self._observer.period_s * 0.5:
            return
        self._check_limit(self._sample(now_s).rss_bytes)
        if now_s > self._job.timeout_s or self._job.deadline.remaining_s <= 0:
            seconds = min(now_s, self._job.timeout_s)
            self._stop("timeout", f"stopped after {format_duration(seconds)}")
        if self._on_progress and now_s >= self._progress_s:
            self._report(now_s)

    def _take(self, now_s: float, reading: Reading) -> None:
        if self._count and len(self._gaps) < _MAX_GAPS:
            self._gaps.append(now_s - self._sampled_s)
        self._count += 1
        self._sampled_s = now_s
        self._rss_bytes = reading.rss_bytes
        if self._running:
            self._timeline.add(now_s, reading)

    def _sample(self, now_s: float) -> Reading:
        assert self._observer is not None
        reading = self._observer.sample()
        self._take(now_s, reading)
        if self._running:
            self._clock.sample(now_s, reading)
        return reading

    def _check_limit(self, rss_bytes: int) -> None:
        limit = self._job.memory_limit_bytes
        if limit is not None and rss_bytes > limit and self._running:
            self._stop("limit", f"it took {rss_bytes:,} bytes, more than the limit of {limit:,}")

    def _report(self, now_s: float) -> None:
        assert self._on_progress is not None
        self._progress_s = now_s + _PROGRESS_S
        self._on_progress(
            Progress(
                self._clock.phase,
                self._clock.span,
                now_s,
                self._rss_bytes,
                len(self._runs),
            )
        )

    def _boundary(self) -> tuple[float, Boundary]:
        if self._observer is None:
            raise ProcessGone
        self._last = reading = self._observer.boundary()
        now_s = self._now()
        memory = reading.memory
        file = memory.file_bytes
        if file is not None:
            file += memory.shared_bytes or 0
        self._take(
            now_s, Reading(memory.rss_bytes, memory.anonymous_bytes, file, memory.shared_bytes)
        )
        return now_s, reading

    def _handle(self, items: list[Marker | Event]) -> None:
        markers: list[Marker] = []
        for item in items:
            if isinstance(item, Marker):
                markers.append(item)
            else:
                self._mark(markers)
                markers = []
                handler = getattr(self, f"_on_{item.name}")
                handler(**item.fields)
        self._mark(markers)

    def _mark(self, markers: list[Marker]) -> None:
        if not markers or not self._running:
            return
        phase = self._clock.phase
        now_s, reading = self._boundary()
        self._clock.mark(markers, self._origin_epoch, now_s, reading)
        self._check_limit(reading.peak_rss_bytes or reading.memory.rss_bytes)
        if self._clock.phase != phase:
            if self._on_progress:
                self._report(now_s)
            self._inspect(phase)

    def _cut(self, name: str, phase: PhaseName) -> Memory:
        ended = self._clock.phase
        now_s, reading = self._boundary()
        self._clock.cut(name, phase, now_s, reading)
        self._check_limit(reading.peak_rss_bytes or reading.memory.rss_bytes)
        if self._on_progress:
            self._report(now_s)
        if ended != "start":
            self._inspect(ended)
        return reading.memory

    def _close(self) -> Memory:
        """End the last phase."""
        now_s, reading = self._boundary()
        self._check_limit(reading.peak_rss_bytes or reading.memory.rss_bytes)
        self._running = False
        self._clock.stop(now_s, reading)
        return reading.memory

    def _stop(self, status: Status, message: str) -> None:
        """End a child that has used up what it was allowed, after a last look at it."""
        self._status, self._message = status, message
        if self._running:
            now_s, reading = self._now(), self._last
            if self._observer is not None:
                self._last = reading = self._observer.boundary()
            self._running = False
            self._clock.stop(now_s, reading)
        raise _Done

    # The loader's events, in the order in which they come.

    def _on_versions(self, **versions: str) -> None:
        self._versions = versions

    def _on_ready(self) -> None:
        if self._inspector:
            self._inspector.baseline(self._child.pid)
        self._baseline = self._cut("create the session", "parse")
        self._child.proceed()

    def _on_created(self, providers: list[str]) -> None:
        self._providers = tuple(providers)
        if self._job.runs is None:
            self._close()
        else:
            self._cut("first run", "first_run")
        self._child.proceed()

    def _on_first_run(self, latency_s: float) -> None:
        self._first_run_s = latency_s
        self._cut("runs", "steady")
        self._child.proceed()

    def _on_run(self, latency_s: float) -> None:
        now_s, reading = self._boundary()
        self._clock.mark((), self._origin_epoch, now_s, reading)
        self._check_limit(reading.peak_rss_bytes or reading.memory.rss_bytes)
        run = Run(
            latency_s=latency_s,
            rss_bytes=reading.memory.rss_bytes,
            end_s=round(now_s, 6),
            peak_rss_bytes=reading.peak_rss_bytes,
        )
        self._runs.append(run)
        self._child.proceed()

    def _on_steady(self) -> None:
        self._steady = self._close()
        self._child.proceed()

    def _on_trimmed(self, possible: bool) -> None:
        assert self._observer is not None
        if possible:
            before = self._last.memory.rss_bytes
            self._retained = max(0, before - self._observer.boundary().memory.rss_bytes)
        self._child.proceed()

    def _on_end(self) -> None:
        if self._inspector:
            log = LogEvidence(
                changed=frozenset(self._log.changed),
                removed=self._log.removed,
                removed_all=self._log.removed_all,
                reserved=self._log.reserved,
            )
            self._inspector.steady(self._child.pid, log, self._log.arena)
        self._child.proceed()
        raise _Done

    def _on_error(self, **error: Any) -> None:
        self._status = "failed"
        self._message = explain(error, self._job)
        if self._running:
            self._close()
        raise _Done

    def _conclude(self) -> Measurement:
        phase = self._clock.phase
        if self._running:
            self._running = False
            # It ended on its own: its memory, and the mark of the last window, went with it.
            now_s = self._now()
            self._clock.stop(now_s, Boundary(self._last_seen(), None))
            if not self._interrupted:
                self._status, self._message = self._how_it_ended()
        return Measurement(
            onnxruntime=self._versions.get("onnxruntime"),
            python=self._versions.get("python"),
            providers=self._providers,
            baseline=self._baseline,
            phases=self._clock.phases(),
            spans=self._clock.spans(),
            samples=self._timeline.samples(),
            sampling=Sampling(
                method=self._observer.method if self._observer else "psutil",
                count=self._count,
                period_s=round(statistics.median(self._gaps), 6) if self._gaps else 0.0,
                largest_gap_s=round(max(self._gaps, default=0.0), 6),
                boundary_lag_s=None if self._clock.lag_s is None else round(self._clock.lag_s, 6),
            ),
            steady=self._steady,
            first_run_s=self._first_run_s,
            runs=tuple(self._runs),
            allocator_retained_bytes=self._retained,
            warnings=tuple(self._log.warnings),
            explicit_starts=self._clock.explicit_starts,
            outcome=Outcome(status=self._status, phase=phase, message=self._message),
            interrupted=self._interrupted,
        )

    def _last_seen(self) -> Memory:
        last = self._timeline.last
        return self._last.memory if last is None else last.memory

    def _how_it_ended(self) -> tuple[Status, str]:
        code = self._child.returncode()
        said = [*self._log.errors[-1:], *self._log.tail[-1:]]
        because = f": {said[-1]}" if said else ""
        if code >= 0:
            return "failed", f"the process ended by itself (exit code {code}){because}"
        name = signal.Signals(-code).name
        if name == "SIGKILL":
            return "killed", "killed by the system (SIGKILL, most often for want of memory)"
        return "killed", f"the process died of {name}{because}"


def explain(error: dict[str, Any], job: Job) -> str:
    """Return one sentence for an `error` event of the loader."""
    message = _STATUS_CODE.sub("", " ".join(str(error["message"]).split()))
    if error["stage"] == "import":
        return f"{job.python} cannot import onnxruntime ({message})"
    return message or str(error["kind"])
