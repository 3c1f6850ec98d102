"""A trial of a model: load and run it in a child process within a control group."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from memdiag.deploy.file_cache import drop_cached, mapped_files
from memdiag.deploy.limited_group import GroupCounters, LimitedGroup, ParentGroup
from memdiag.process_end import KILLED_AT_LIMIT
from memdiag.records.device import Device
from memdiag.records.limit import CountedMemory, LimitPoint, TrialOutcome
from memdiag.records.phases import CREATION_PHASES, RUN_PHASES
from memdiag.runner.job import Job
from memdiag.runner.measured_child import (
    AtPhaseEnd,
    AtSteady,
    ChildPause,
    MeasuredChild,
    Measurement,
)

_LOADING_PHASES = ("start", *CREATION_PHASES)


@dataclass(kw_only=True)
class ModelTrials:
    """Trials of one model, each in a new process and a new control group.

    Attributes:
        parent: the control group in which groups are created; None to run in that of memdiag.
        job: the model with its configuration, inputs and limits.
        timeout_s: seconds after which a trial has failed.
        files: files that are dropped from the page cache before each trial.
        counted: the memory at the end of the last trial that completed.
        uncounted_bytes: mapped pages of files that its group did not count, because other processes
            had them in memory.
        onnxruntime: the version; None before a child has imported it.
        rss_bytes: the largest resident set in the last trial.
        device: None: the memory of the host is limited.
        number: the number of trials until now.
    """

    parent: ParentGroup | None
    job: Job
    timeout_s: float
    files: frozenset[Path] = frozenset()
    counted: CountedMemory | None = None
    uncounted_bytes: int = 0
    onnxruntime: str | None = None
    rss_bytes: int = 0
    number: int = 0
    device: Device | None = None

    def measure(self, limit_bytes: int | None) -> LimitPoint:
        """Make a trial under `limit_bytes`; None for no limit.

        Raises:
            NoGroupError, GroupRemovedError: the control group cannot be created, or was removed.
            MeasurementError: the interpreter cannot be started.
            KeyboardInterrupt: Ctrl-C.
        """
        drop_cached(self.files)
        limits = replace(self.job.limits, timeout_s=self.timeout_s)
        job = replace(self.job, limits=limits)
        if self.parent is None:
            return self._limit_point(limit_bytes, MeasuredChild(job).run(), [])
        self.number += 1
        with LimitedGroup(self.parent, str(self.number), limit_bytes) as group:
            counters: list[GroupCounters] = []

            def read(pause: ChildPause) -> None:
                if isinstance(pause, AtSteady):
                    counters.append(group.counters())
                    self.files |= mapped_files(pause.pid)
                elif isinstance(pause, AtPhaseEnd) and pause.phase == "first_run":
                    counters.append(group.counters())

            job = replace(job, entering=group.entering)
            measurement = MeasuredChild(job, read, phase_ends=True).run()
            end = group.counters()
        return self._limit_point(limit_bytes, measurement, [*counters, end])

    def _limit_point(
        self, limit_bytes: int | None, measurement: Measurement, counters: Sequence[GroupCounters]
    ) -> LimitPoint:
        """Return the point; `counters` are from the first run and all runs, and at the end."""
        if measurement.interrupted:
            raise KeyboardInterrupt
        self.onnxruntime = measurement.onnxruntime or self.onnxruntime
        self.rss_bytes = max((phase.peak_rss_bytes for phase in measurement.phases), default=0)
        outcome, end = measurement.outcome, counters[-1] if counters else None
        is_completed = outcome.completed
        refaults = 0
        if end is not None and len(counters) >= 2:
            refaults = end.refault_bytes - counters[0].refault_bytes
        if is_completed and len(counters) >= 2:
            steady = counters[-2]
            refaults = steady.refault_bytes - counters[0].refault_bytes
            self.counted = CountedMemory(
                anonymous_bytes=steady.anonymous_bytes,
                file_bytes=steady.file_bytes,
                kernel_bytes=steady.kernel_bytes,
            )
            memory = measurement.steady
            if memory is not None and (mapped := memory.file_and_shared_bytes) is not None:
                self.uncounted_bytes = max(0, mapped - steady.mapped_bytes)
        loaded = is_completed or outcome.phase in RUN_PHASES
        return LimitPoint(
            limit_bytes=limit_bytes,
            outcome=_trial_outcome(measurement, end),
            phase="" if is_completed else outcome.phase,
            load_s=load_s(measurement) if loaded else None,
            latency_s=latency_s(measurement) if is_completed else None,
            peak_bytes=None if end is None else end.peak_bytes,
            refault_bytes=max(0, refaults),
            load_refault_bytes=counters[0].refault_bytes if counters else 0,
            message="" if is_completed else _trial_message(measurement, end),
        )


def _trial_outcome(measurement: Measurement, end: GroupCounters | None) -> TrialOutcome:
    if end is not None and end.oom_kills:
        return "killed"
    status = measurement.outcome.status
    # No limit of `Limits` is set: the group has the limit.
    return "timeout" if status == "limit" else status


def _trial_message(measurement: Measurement, end: GroupCounters | None) -> str:
    if end is not None and end.oom_kills:
        return KILLED_AT_LIMIT
    return measurement.outcome.message


def load_s(measurement: Measurement) -> float:
    """Return the seconds until the session was created."""
    phases = (phase for phase in measurement.phases if phase.name in _LOADING_PHASES)
    return round(sum(phase.duration_s for phase in phases), 6)


def latency_s(measurement: Measurement) -> float | None:
    """Return the median of the runs in seconds, or the first run; None if nothing ran."""
    latencies = [run.latency_s for run in measurement.runs]
    return statistics.median(latencies) if latencies else measurement.first_run_s
