"""Estimated duration of the steps of a search, for its progress line."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite

from memdiag.units import format_duration


@dataclass(kw_only=True)
class Pace:
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

    def __post_init__(self) -> None:
        self._started = self.clock()

    def step(self, left: int | None = None) -> str:
        """Count a step that starts now; return its estimated duration, and that of `left` more."""
        each_s = (self.clock() - self._started) / self._count if self._count else self.first_s
        self._count += 1
        remaining_s = max(0.0, self.end - self.clock())
        words = [f"about {format_duration(min(each_s, remaining_s))}"]
        if isfinite(remaining_s):
            words.append(f"at most {format_duration(remaining_s)} left in all")
        elif left:
            words.append(f"about {format_duration(each_s * (left + 1))} left in all")
        return ", ".join(words)
