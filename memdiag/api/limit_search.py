"""The search for limits and its record: the part that models and programs share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal, Protocol

from memdiag.api.arguments import OnProgress
from memdiag.defaults import DEFAULT_TIMEOUT_S
from memdiag.deploy.limit_bisection import (
    LATENCY_SLOWDOWN,
    LIMIT_CONFIRMATIONS,
    LIMIT_MARGIN,
    bisect_limits,
    rounded_up,
    smallest_working,
    suggested_limits,
    with_slowness,
)
from memdiag.deploy.limited_group import GroupRemovedError, NoGroupError, ParentGroup
from memdiag.errors import ArgumentError, MeasurementError
from memdiag.records.codec import escaped_record
from memdiag.records.device import Device
from memdiag.records.dimension import Dimension
from memdiag.records.limit import CountedMemory, LimitPoint, MemoryLimit
from memdiag.runner.job import Deadline, TimeLimitReached
from memdiag.units import counted, format_size

UNLIMITED_TRIALS = 2
"""Trials without a limit, whose latencies are the measure of slowness."""

MAX_ABOVE_PEAK = 1.1
"""A limit above this multiple of the peak without a limit does not show what is needed."""

TIMEOUT_RATIO, TIMEOUT_EXTRA_S = 3.0, 3.0
"""A trial has failed if it takes this many times as long as without a limit, and these seconds.
The ratio is in words in the help of `memdiag limit` and in `reports.limit.sentences`."""

MIN_REREAD_RATIO = 4.0
"""A limit has slowed a trial down to its timeout only if the trial reread at least this multiple of
the limit from files."""

PATIENT_TIMEOUT_RATIO = 4.0
"""Ratio by which the timeout is longer in a second attempt."""


class LimitTrials(Protocol):
    """Trials of a model or program, as `ModelTrials` and `ProgramTrials` make them.

    Attributes:
        timeout_s: seconds after which a trial has failed.
        counted: the memory of the last trial that completed.
        uncounted_bytes: mapped pages of files that its group did not count.
        rss_bytes: the most memory in the last trial by other figures than the peak of the group,
            which older kernels do not state.
    """

    timeout_s: float
    counted: CountedMemory | None
    uncounted_bytes: int
    rss_bytes: int

    def measure(self, limit_bytes: int | None) -> LimitPoint:
        """Make a trial under `limit_bytes`; None for no limit."""
        ...


def longest_trial_s(time_limit_s: float | None) -> float:
    """Return the seconds after which a trial without a limit is ended, however long the search."""
    return max(DEFAULT_TIMEOUT_S, time_limit_s or 0.0)


def check_limits(limits: Sequence[int]) -> None:
    """Check that limits are greater than 0.

    Raises:
        UsageError: a limit is 0 or less.
    """
    if any(limit <= 0 for limit in limits):
        raise ArgumentError("{at_bytes}: a limit must be greater than 0.")


def require_completed_trial(point: LimitPoint, subject: str, parent: ParentGroup | None) -> None:
    """Check that the trial without a limit completed.

    Raises:
        MeasurementError: it did not.
    """
    if point.is_completed:
        return
    phase_clause = f" in {point.phase}" if point.phase else ""
    text = f"{subject}: it does not work without a limit either{phase_clause}: {point.message}."
    parent_limit_bytes = parent.limit_bytes if parent is not None else None
    if point.outcome == "killed" and parent_limit_bytes is not None:
        text += (
            f" The control group of memdiag is limited to {format_size(parent_limit_bytes)}. Run"
            " memdiag limit outside of it."
        )
    raise MeasurementError(text)


class LimitSearch:
    """A search for limits, whose trials are kept if it ends early.

    Args:
        trials: makes the trials.
        first: the first trial without a limit.
        duration_s: the duration of this trial in seconds.

    Attributes:
        points: the trials.
        message: why the search ended early; empty otherwise.
    """

    def __init__(self, trials: LimitTrials, first: LimitPoint, duration_s: float) -> None:
        self._trials = trials
        self._duration_s = duration_s
        self._timeout_s: float | None = None
        self.points = [first]
        self.message = ""
        self._counted = trials.counted
        self._uncounted_bytes = trials.uncounted_bytes
        self._rss_bytes = trials.rss_bytes
        self._is_search = True

    def run(
        self, deadline: Deadline, on_progress: OnProgress, at_bytes: Sequence[int] = ()
    ) -> None:
        """Make trials until both limits are known; at an early end `message` states the reason.

        Args:
            deadline: the time after which no further trial is started.
            on_progress: called before each trial.
            at_bytes: limits in bytes; one trial is made under each of them, instead of a search.
        """
        try:
            self._run_trials(deadline, on_progress, at_bytes)
        except KeyboardInterrupt:
            self.message = "interrupted"
        except TimeLimitReached:
            self.message = "the time limit was reached"
        except (GroupRemovedError, NoGroupError) as error:
            self.message = str(error)

    def _run_trials(
        self, deadline: Deadline, on_progress: OnProgress, at_bytes: Sequence[int]
    ) -> None:
        for _ in range(UNLIMITED_TRIALS - 1):
            deadline.check()
            on_progress("without a limit")
            started = time.monotonic()
            self.points.append(self._trials.measure(None))
            self._duration_s = min(self._duration_s, time.monotonic() - started)
        timeout_s = TIMEOUT_RATIO * self._duration_s + TIMEOUT_EXTRA_S
        self._timeout_s = round(min(self._trials.timeout_s, timeout_s), 3)

        def measure(limit_bytes: int) -> LimitPoint:
            deadline.check()
            number = len(self.points) - UNLIMITED_TRIALS + 1
            on_progress(f"trial {number}: {format_size(limit_bytes)}")
            return self._make_trial(limit_bytes)

        for limit in at_bytes:
            self.points.append(measure(limit))
            self.points[:] = with_slowness(self.points)
        self._is_search = not at_bytes
        if at_bytes:
            return
        peak_bytes = self._peak_bytes
        droppable_bytes = self._counted.file_bytes if self._counted else 0
        bisect_limits(
            measure,
            self.points,
            guess=rounded_up(max(peak_bytes // 2, peak_bytes - droppable_bytes)),
            peak=rounded_up(peak_bytes),
        )

    def _make_trial(self, limit_bytes: int) -> LimitPoint:
        """Make a trial, and repeat it with more time if it timed out without rereading much.

        Other work on the machine may have slowed such a trial down.
        """
        assert self._timeout_s is not None
        self._trials.timeout_s = self._timeout_s
        point = self._trials.measure(limit_bytes)
        reread_bytes = point.refault_bytes + point.load_refault_bytes
        if point.outcome == "timeout" and reread_bytes < MIN_REREAD_RATIO * limit_bytes:
            self._trials.timeout_s = PATIENT_TIMEOUT_RATIO * self._timeout_s
            point = self._trials.measure(limit_bytes)
        return point

    @property
    def _peak_bytes(self) -> int:
        """The largest peak without a limit in bytes, as the group counted it if it did."""
        peaks = [point.peak_bytes or 0 for point in self.points if point.limit_bytes is None]
        return max(*peaks, 0) or self._rss_bytes

    def record(
        self,
        parent: ParentGroup | None,
        *,
        subject: str,
        kind: Literal["model", "program"],
        estimated_bytes: int | None = None,
        dimensions: tuple[Dimension, ...] = (),
        device: Device | None = None,
        onnxruntime: str | None = None,
        notes: Sequence[str] = (),
        duration_s: float,
    ) -> MemoryLimit:
        """Return the record of the search; the arguments are fields of `MemoryLimit`."""
        smallest_bytes = smallest_working(self.points)
        comfortable_bytes = smallest_working(self.points, comfortable=True)
        peak_bytes = self._peak_bytes
        # A limit that was given may be far above what is needed.
        is_measured = (
            comfortable_bytes is not None
            and not 0 < MAX_ABOVE_PEAK * peak_bytes < comfortable_bytes
        )
        needed_bytes = comfortable_bytes if is_measured else max(peak_bytes, estimated_bytes or 0)
        assert needed_bytes is not None
        request, limit = suggested_limits(needed_bytes, self._uncounted_bytes)
        return escaped_record(
            MemoryLimit(
                subject=subject,
                kind=kind,
                smallest_bytes=smallest_bytes,
                comfortable_bytes=comfortable_bytes,
                request_bytes=request,
                limit_bytes=limit,
                is_measured_under_limits=is_measured,
                margin=LIMIT_MARGIN,
                uncounted_bytes=self._uncounted_bytes,
                counted=self._counted,
                measured_peak_bytes=(
                    self._rss_bytes if parent is None and device is None else None
                ),
                estimated_bytes=estimated_bytes,
                group_version=None if parent is None else parent.version,
                trial_timeout_s=self._timeout_s,
                max_slowdown=LATENCY_SLOWDOWN,
                points=tuple(self.points),
                dimensions=dimensions,
                onnxruntime=onnxruntime,
                notes=(*notes, *self._trial_notes(parent)),
                message=self.message,
                duration_s=round(duration_s, 3),
                device=device,
            )
        )

    def _trial_notes(self, parent: ParentGroup | None) -> list[str]:
        notes = []
        parent_limit_bytes = None if parent is None else parent.limit_bytes
        if parent_limit_bytes is not None:
            notes.append(
                "the control group of memdiag is itself limited to"
                f" {format_size(parent_limit_bytes)}, which limits the trials as well"
            )
        smallest = smallest_working(self.points)
        trial_count = sum(point.limit_bytes == smallest for point in self.points)
        limited_trials = sum(point.limit_bytes is not None for point in self.points)
        if smallest is not None and trial_count < LIMIT_CONFIRMATIONS and self._is_search:
            reason = "" if self.message else f", as {limited_trials} trials were made"
            notes.append(
                f"{format_size(smallest)} was tried only {counted(trial_count, 'time')}, and not"
                f" {LIMIT_CONFIRMATIONS} times{reason}"
            )
        return notes
