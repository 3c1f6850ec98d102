"""The search for the smallest limits by trials: bisection, then confirmation; and the suggested
limits.

Whether a process is killed is random within a few per cent of a limit. A limit counts as working
only if every trial at this limit and above succeeded, `LIMIT_CONFIRMATIONS` of them at the limit
itself.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from memdiag.records.limit import LimitPoint
from memdiag.units import MIB

LIMIT_CONFIRMATIONS = 3
"""Trials that must succeed at a limit."""

LIMIT_PRECISION = 0.03
"""Distance, as a share of the limit, at which a failing limit is close to a working one."""

MIN_PRECISION_BYTES = 2 * MIB

MAX_TRIALS = 30
"""The most trials under a limit, in all."""

LOWER, UPPER = 0.93, 1.1
"""Ratios of the next limit to the last, while no limit is known to fail, or none to work. They are
squared with each trial, as the first limit may be far off."""

MAX_DOUBLINGS = 3

MAX_RISE = 4.0
"""Ratio of the largest tried limit to the peak without a limit."""

MIN_REFAULT_BYTES = MIB
"""Contents of files that were read again count only from this number of bytes on, in all runs."""

LATENCY_SLOWDOWN = 1.05
"""Largest latency that is not slow, relative to the latency without a limit."""

LOAD_SLOWDOWN = 2.0
"""Largest time of loading that is not slow. Loading reads files from a disk and varies more."""

MeasureLimit = Callable[[int], LimitPoint]
"""A trial under a limit in bytes."""


class UsualTimes(NamedTuple):
    """Latency and load time of a trial that its limit does not slow down; None if not known."""

    latency_s: float | None
    load_s: float | None


def usual_times(points: Sequence[LimitPoint]) -> UsualTimes:
    """Return the shortest times of trials without a limit, and of trials that no limit slowed down.

    Other work on the machine only adds time, and a limit under which nothing was read again adds no
    time. So the shortest time is the best measure of the usual time.
    """
    unaffected_points = [
        point
        for point in points
        if point.is_completed and (point.limit_bytes is None or not _has_reread_more(point, points))
    ]
    latencies = [point.latency_s for point in unaffected_points if point.latency_s is not None]
    loads = [point.load_s for point in unaffected_points if point.load_s is not None]
    return UsualTimes(min(latencies, default=None), min(loads, default=None))


def with_slowness(points: Sequence[LimitPoint]) -> list[LimitPoint]:
    """Return `points` with `is_slow`, by the usual times.

    Times vary on a busy machine. So a trial counts as slow only if files were also read again,
    which the kernel counts: a limit has this effect before the process is killed. If no latency is
    known, as for a server, files that were read again are enough.
    """
    usual = usual_times(points)
    return [
        msgspec.structs.replace(point, is_slow=_is_slow(point, points, usual)) for point in points
    ]


def _is_slow(point: LimitPoint, points: Sequence[LimitPoint], usual: UsualTimes) -> bool:
    if point.limit_bytes is None or not point.is_completed or not _has_reread_more(point, points):
        return False
    if point.latency_s is None or usual.latency_s is None:
        return True
    if _most_without_limit(points, "refault_bytes") + MIN_REFAULT_BYTES <= point.refault_bytes and (
        point.latency_s > LATENCY_SLOWDOWN * usual.latency_s
    ):
        return True
    if point.load_s is None or usual.load_s is None:
        return False
    has_reread = (
        _most_without_limit(points, "load_refault_bytes") + MIN_REFAULT_BYTES
        <= point.load_refault_bytes
    )
    return has_reread and point.load_s > LOAD_SLOWDOWN * usual.load_s


def _has_reread_more(point: LimitPoint, points: Sequence[LimitPoint]) -> bool:
    """Return whether more was read again than in any trial without a limit."""
    return any(
        getattr(point, name) >= _most_without_limit(points, name) + MIN_REFAULT_BYTES
        for name in ("refault_bytes", "load_refault_bytes")
    )


def _most_without_limit(points: Sequence[LimitPoint], name: str) -> int:
    return max((getattr(point, name) for point in points if point.limit_bytes is None), default=0)


def smallest_working(points: Sequence[LimitPoint], *, comfortable: bool = False) -> int | None:
    """Return the smallest limit above every limit at which a trial failed; None if there is none.

    Args:
        points: the trials.
        comfortable: count a slow trial as failed.
    """
    limited_points = [point for point in points if point.limit_bytes is not None]
    failed_limits = [
        _trial_limit(point) for point in limited_points if not _is_working(point, comfortable)
    ]
    working_limits = [
        _trial_limit(point) for point in limited_points if _is_working(point, comfortable)
    ]
    return min(
        (limit for limit in working_limits if limit > max(failed_limits, default=0)), default=None
    )


def bisect_limits(
    measure: MeasureLimit,
    points: list[LimitPoint],
    *,
    guess: int,
    peak: int,
    precision: float = LIMIT_PRECISION,
) -> None:
    """Find the smallest limit that works, and the smallest that is comfortable.

    Every trial is appended to `points`, so that an interrupted search leaves its trials there;
    `smallest_working` returns the results.

    Args:
        measure: makes a trial.
        points: the trials so far: those without a limit.
        guess: the limit in bytes that is tried first, such as the peak of memory that cannot be
            dropped.
        peak: the peak without a limit in bytes: a larger limit should change nothing.
        precision: the distance at which the search ends, as a share of the limit.
    """
    bisection = _LimitBisection(measure, points, precision)
    bisection.find(first=guess, peak=peak, comfortable=False)
    bisection.find(first=peak, peak=peak, comfortable=True)


class _LimitBisection:
    def __init__(
        self,
        measure: MeasureLimit,
        points: list[LimitPoint],
        precision: float,
    ) -> None:
        self._measure = measure
        self._points = points
        self._unlimited_count = len(points)
        self._precision = precision

    def find(self, *, first: int, peak: int, comfortable: bool) -> None:
        """Bisect, and confirm the result; the search goes on if the result is not confirmed."""
        limit = self._next_limit(first, comfortable)
        while limit is not None and self._trial_count < MAX_TRIALS and limit <= MAX_RISE * peak:
            self._points.append(self._measure(limit))
            self._points[:] = with_slowness(self._points)
            limit = self._next_limit(first, comfortable)

    @property
    def _trial_count(self) -> int:
        return len(self._points) - self._unlimited_count

    def _next_limit(self, first: int, comfortable: bool) -> int | None:
        """Return the limit of the next trial; None once the result is confirmed."""
        limited_points = [point for point in self._points if point.limit_bytes is not None]
        largest_failed = max(
            (
                _trial_limit(point)
                for point in limited_points
                if not _is_working(point, comfortable)
            ),
            default=0,
        )
        working_limit = smallest_working(self._points, comfortable=comfortable)
        if working_limit is None:
            failed_rises = sum(
                _trial_limit(point) >= first and not _is_working(point, comfortable)
                for point in limited_points
            )
            return (
                rounded_up(round(largest_failed * _growing_ratio(UPPER, failed_rises)))
                if failed_rises
                else first
            )
        if working_limit - largest_failed > max(
            MIN_PRECISION_BYTES, self._precision * working_limit
        ):
            if not largest_failed:
                return rounded_up(
                    round(working_limit * _growing_ratio(LOWER, len(limited_points))) - MIB
                )
            return rounded_up((working_limit + largest_failed) // 2)
        successes = sum(_trial_limit(point) == working_limit for point in limited_points)
        return working_limit if successes < LIMIT_CONFIRMATIONS else None


def rounded_up(size: int) -> int:
    """Return `size` in whole MiB, at least 1 MiB."""
    return max(1, -(-size // MIB)) * MIB


def _trial_limit(point: LimitPoint) -> int:
    assert point.limit_bytes is not None
    return point.limit_bytes


def _growing_ratio(ratio: float, trials: int) -> float:
    """Return `ratio`, squared with each trial after the first."""
    return float(ratio**2 ** min(MAX_DOUBLINGS, trials - 1))


def _is_working(point: LimitPoint, comfortable: bool) -> bool:
    return point.is_completed and not (comfortable and point.is_slow)


LIMIT_MARGIN = 0.2
"""Share of the request by which the limit is larger: for inputs and machines that were not
measured, and for other processes in the container (probes, an agent, a shell)."""


class LimitSuggestion(NamedTuple):
    """Request and limit in bytes."""

    request_bytes: int
    limit_bytes: int


def suggested_limits(needed_bytes: int, uncounted_bytes: int = 0) -> LimitSuggestion:
    """Return the suggested request and limit.

    Args:
        needed_bytes: the memory with which nothing slows down.
        uncounted_bytes: pages that other processes had in memory, and that count in a container.
    """
    request = rounded_up(needed_bytes + uncounted_bytes)
    return LimitSuggestion(request, rounded_up(round(request * (1 + LIMIT_MARGIN))))
