"""Medians and spreads of interleaved runs."""

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Spread(NamedTuple):
    """The median of some figures, and the smallest and largest of them."""

    median: float
    low: float
    high: float

    def text(self, unit: str = "", digits: int = 1) -> str:
        """Return it as ``12.3 (11.9-14.0)``."""
        low, high = f"{self.low:.{digits}f}", f"{self.high:.{digits}f}"
        return f"{self.median:.{digits}f}{unit} ({low}–{high})"


def spread(figures: Sequence[float]) -> Spread:
    """Return the spread of `figures`, of which there is at least one."""
    return Spread(statistics.median(figures), min(figures), max(figures))


def interleave(subjects: dict[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Run all subjects in turn, `rounds` times, and return what each returned, by name.

    Every other round goes backwards, so that none always follows the same one.
    """
    results: dict[str, list[T]] = {name: [] for name in subjects}
    for turn in range(rounds):
        names = list(subjects)
        for name in names if turn % 2 == 0 else reversed(names):
            results[name].append(subjects[name]())
    return results
