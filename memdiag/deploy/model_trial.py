"""A trial of a model: load and run it in a child process within a control group."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from memdiag.deploy.file_cache import drop_from_page_cache, mapped_files
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
        parent: the control group in which groups are created; None to run in memdiag's own group.
        job: the model with its configuration, inputs and limits.
        timeout_s: seconds after which a trial has failed.
        files: files that are dropped from the page cache before each trial.
        counted: the memory at the end of the last trial that completed.
        uncounted_bytes: mapped pages of files that its group did not count, because other processes
            had them in memory.
        onnxruntime: the version of onnxruntime; None before a child has imported it.
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
        drop_from_page_cache(self.files)
        limits = replace(self.job.limits, timeout_s=self.timeout_s)
        job = replace(self.job, limits=limits)
        if self.parent is None:
            return self._limit_point(limit_bytes, MeasuredChild(job).run(), [])
        self.number += 1
        with LimitedGroup(self.parent, str(self.number), limit_bytes) as group:
            counters: list[GroupCounters] = []

            def read_counters(pause: ChildPause) -> None:
                if isinstance(pause, AtSteady):
                    counters.append(group.counters())
                    self.files |= mapped_files(pause.pid)
                elif isinstance(pause, AtPhaseEnd) and pause.phase == "first_run":
                    counters.append(group.counters())

            job = replace(job, entering=group.entering)
            measurement = MeasuredChild(job, read_counters, phase_ends=True).run()
            end_counters = group.counters()
        return self._limit_point(limit_bytes, measurement, [*counters, end_counters])

    def _limit_point(
        self, limit_bytes: int | None, measurement: Measurement, counters: Sequence[GroupCounters]
    ) -> LimitPoint:
        """Return the trial's point; `counters` were read after the first run, after all runs, and
        at the end."""
        if measurement.interrupted:
            raise KeyboardInterrupt
        self.onnxruntime = measurement.onnxruntime or self.onnxruntime
        self.rss_bytes = max((phase.peak_rss_bytes for phase in measurement.phases), default=0)
        outcome, end_counters = measurement.outcome, counters[-1] if counters else None
        is_completed = outcome.completed
        refaults = 0
        if end_counters is not None and len(counters) >= 2:
            refaults = end_counters.refault_bytes - counters[0].refault_bytes
        if is_completed and len(counters) >= 2:
            steady_counters = counters[-2]
            refaults = steady_counters.refault_bytes - counters[0].refault_bytes
            self.counted = CountedMemory(
                anonymous_bytes=steady_counters.anonymous_bytes,
                file_bytes=steady_counters.file_bytes,
                kernel_bytes=steady_counters.kernel_bytes,
            )
            memory = measurement.steady
            if memory is not None and (mapped_bytes := memory.file_and_shared_bytes) is not None:
                self.uncounted_bytes = max(0, mapped_bytes - steady_counters.mapped_bytes)
        has_loaded = is_completed or outcome.phase in RUN_PHASES
        return LimitPoint(
            limit_bytes=limit_bytes,
            outcome=_trial_outcome(measurement, end_counters),
            phase="" if is_completed else outcome.phase,
            load_s=load_s(measurement) if has_loaded else None,
            latency_s=latency_s(measurement) if is_completed else None,
            peak_bytes=None if end_counters is None else end_counters.peak_bytes,
            refault_bytes=max(0, refaults),
            load_refault_bytes=counters[0].refault_bytes if counters else 0,
            message="" if is_completed else _trial_message(measurement, end_counters),
        )


def _trial_outcome(measurement: Measurement, end_counters: GroupCounters | None) -> TrialOutcome:
    if end_counters is not None and end_counters.oom_kills:
        return "killed"
    status = measurement.outcome.status
    # No limit of `Limits` is set: the group has the limit.
    return "timeout" if status == "limit" else status


def _trial_message(measurement: Measurement, end_counters: GroupCounters | None) -> str:
    if end_counters is not None and end_counters.oom_kills:
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
