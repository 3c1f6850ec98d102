"""Estimated durations of the steps of a search."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite

from memdiag.units import format_duration

TIME_LIMIT_MARGIN = 1.25
"""Factor of the time limit that is recommended, because durations vary."""


@dataclass(kw_only=True)
class DurationRatio:
    """Ratio of measured to expected durations of the pieces of work so far.

    Attributes:
        measured_s, expected_s: the sums.
    """

    measured_s: float = 0.0
    expected_s: float = 0.0
    clock: Callable[[], float] = time.monotonic

    @property
    def ratio(self) -> float:
        """Measured seconds per expected second; 1 before any work was done."""
        return self.measured_s / self.expected_s if self.expected_s else 1.0

    @contextmanager
    def timed(self, expected_s: float) -> Iterator[None]:
        """Measure the duration of the block. If it is cut off early, it does not count."""
        started = self.clock()
        is_finished = False
        try:
            yield
            is_finished = True
        finally:
            measured_s = self.clock() - started
            if is_finished or measured_s > expected_s:
                self.measured_s += measured_s
                self.expected_s += expected_s


@dataclass(kw_only=True)
class StepEstimate:
    """Mean duration of the steps so far.

    Attributes:
        first_s: estimated duration of the first step.
        end: when the search has to end, by `clock`; infinite without a time limit.
    """

    first_s: float
    end: float
    clock: Callable[[], float] = time.monotonic
    _started: float = field(init=False)
    _count: int = field(init=False, default=0)

    @property
    def step_s(self) -> float:
        """Mean duration of the steps so far, the unfinished one included; 0 before the first."""
        return self._mean_s() if self._count else 0.0

    def __post_init__(self) -> None:
        self._started = self.clock()

    def step(self, remaining_steps: int | None = None) -> str:
        """Count a step that starts now; return as text how long it and `remaining_steps` take."""
        step_s = self._mean_s() if self._count else self.first_s
        self._count += 1
        remaining_s = max(0.0, self.end - self.clock())
        parts = [f"about {format_duration(min(step_s, remaining_s))}"]
        if isfinite(remaining_s):
            parts.append(f"at most {format_duration(remaining_s)} left in all")
        elif remaining_steps:
            parts.append(f"about {format_duration(step_s * (remaining_steps + 1))} left in all")
        return ", ".join(parts)

    def _mean_s(self) -> float:
        return (self.clock() - self._started) / self._count
