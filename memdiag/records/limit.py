"""The memory limit that a model or program needs, found by trials under real limits."""

from __future__ import annotations

from typing import Literal

from memdiag.records.base import PlottableRecord, Record
from memdiag.records.device import Device
from memdiag.records.dimension import Dimension

LIMIT_SCHEMA: Literal["memdiag.limit/1"] = "memdiag.limit/1"

TrialOutcome = Literal["completed", "killed", "failed", "timeout"]
"""``timeout``: the program took far longer than without a limit; ``killed``: at the limit."""


class CountedMemory(Record, frozen=True, kw_only=True):
    """The memory that a control group counted at the end of the runs.

    Attributes:
        anonymous_bytes: memory without a file: heap, arenas, copies of weights.
        file_bytes: cached contents of files, mapped or not, which the kernel drops before it kills.
        kernel_bytes: memory of the kernel for the processes; None if it is not known.
    """

    anonymous_bytes: int
    file_bytes: int
    kernel_bytes: int | None


class LimitPoint(Record, frozen=True, kw_only=True):
    """One trial: a new process, in a new control group unless the memory on a GPU is limited.

    Attributes:
        limit_bytes: the limit; None for a trial without one.
        outcome: how it ended.
        phase: the phase in which it ended, unless it completed; empty for a program.
        load_s: the seconds until the session was created; None for a program, or if it was not.
        latency_s: the median of the runs, or the duration of the program; None if none completed.
        peak_bytes: the most memory that the group counted, or that the arena on the GPU took; None
            if it is not stated.
        refault_bytes: contents of files that were dropped and read again, during the runs of a
            model, or in all of a program.
        load_refault_bytes: the same until the first run of a model had ended; 0 for a program.
        is_slow: whether the limit made it slow: files were read again, and the latency is more than
            `max_slowdown` times the usual one, or loading took more than twice as long. The usual
            times are the shortest of the trials in which nothing was read again.
        device_bytes: the memory of the process on a GPU after the runs; None if the limit is not
            for that, or if they did not complete.
        message: why it did not complete; empty if it did.
    """

    limit_bytes: int | None
    outcome: TrialOutcome
    phase: str = ""
    load_s: float | None = None
    latency_s: float | None = None
    peak_bytes: int | None
    refault_bytes: int = 0
    load_refault_bytes: int = 0
    is_slow: bool = False
    message: str = ""
    device_bytes: int | None = None

    @property
    def is_completed(self) -> bool:
        """Whether the program ran to its end."""
        return self.outcome == "completed"


class MemoryLimit(PlottableRecord, frozen=True, kw_only=True):
    """The smallest memory limits under which a model or program works.

    Attributes:
        subject: the model, or the command.
        kind: a ``model`` that was loaded and run, or a ``program``.
        smallest_bytes: the smallest limit that was found under which it works; None if none was.
        comfortable_bytes: the smallest limit found under which it is not slow; None if none was.
        request_bytes: the suggested request: memory that is reserved.
        limit_bytes: the suggested limit.
        is_measured_under_limits: whether the suggestion is from trials under limits, rather than
            from the memory that a process without a limit took.
        margin: the share of the request by which the suggested limit is larger.
        device: the GPU whose memory is limited: limits are values of ``gpu_mem_limit``, and a peak
            is that of the arena. None if the memory of the host is limited.
        uncounted_bytes: pages of libraries and files that other processes had in memory, and that
            no group counted here; the suggestion includes them.
        counted: the memory at the end of the runs without a limit; None without a control group.
        measured_peak_bytes: the largest resident set of a process, where there is no control group;
            None otherwise.
        estimated_bytes: the largest peak that `memdiag.estimate` predicts in that case.
        group_version: the version of the control groups; None if there are none to use.
        trial_timeout_s: the seconds after which a trial under a limit was too slow; None if none
            was made.
        max_slowdown: the largest latency that is not slow, relative to the usual one.
        points: the trials in the order in which they were made.
        dimensions: the free dimensions and their sizes.
        onnxruntime: the version; None if it is not known.
        notes: sentences on the limits of the measurement.
        message: why the search ended early, or could not be made; empty otherwise.
        duration_s: the time it took.
    """

    schema: Literal["memdiag.limit/1"] = LIMIT_SCHEMA
    subject: str
    kind: Literal["model", "program"]
    smallest_bytes: int | None
    comfortable_bytes: int | None
    request_bytes: int
    limit_bytes: int
    is_measured_under_limits: bool
    margin: float
    uncounted_bytes: int
    counted: CountedMemory | None
    measured_peak_bytes: int | None = None
    estimated_bytes: int | None = None
    group_version: Literal[1, 2] | None
    trial_timeout_s: float | None = None
    max_slowdown: float
    points: tuple[LimitPoint, ...]
    dimensions: tuple[Dimension, ...] = ()
    onnxruntime: str | None
    notes: tuple[str, ...] = ()
    message: str = ""
    duration_s: float
    device: Device | None = None

    @property
    def unlimited(self) -> tuple[LimitPoint, ...]:
        """The trials without a limit."""
        return tuple(point for point in self.points if point.limit_bytes is None)

    @property
    def limited(self) -> tuple[LimitPoint, ...]:
        """The trials under a limit, the smallest limit first."""
        points = [point for point in self.points if point.limit_bytes is not None]
        return tuple(sorted(points, key=lambda point: point.limit_bytes or 0))

    @property
    def largest_failed(self) -> LimitPoint | None:
        """The trial with the largest limit below the smallest that works; None without one."""
        smallest = self.smallest_bytes
        failed = [
            point
            for point in self.limited
            if not point.is_completed and (smallest is None or (point.limit_bytes or 0) < smallest)
        ]
        return failed[-1] if failed else None
