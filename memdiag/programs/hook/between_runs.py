"""Stops between two runs for ``memdiag leak``, and counts which values of runs are still alive.

Between runs no temporary values are in use, at least of this thread. A heap that grows by the
outputs of each run is no leak of onnxruntime if the program keeps the arrays: weak references to
inputs and outputs of earlier runs tell whether it does.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

FOLLOWED_RUNS = ("run", "run_with_ort_values")
"""Methods of sessions whose second argument, after `self`, are the inputs."""

MAX_REFERENCES = 200  # of a kind; from here on every second one is dropped
RECENT = 20  # runs whose values may be alive in any program


class EarlierValues:
    """Weak references to inputs and outputs of runs."""

    def __init__(self) -> None:
        self._references: dict[str, list[weakref.ref[Any]]] = {"input": [], "output": []}
        self._stride = 1
        self.runs = 0

    def add(self, inputs: Iterable[Any], outputs: Iterable[Any]) -> None:
        """Add the values of one run."""
        self.runs += 1
        if self.runs % self._stride == 0:
            self._remember("input", inputs)
            self._remember("output", outputs)

    def counts(self) -> dict[str, list[int]]:
        """Return how many values of earlier runs are alive, and how many there are, by kind."""
        return {kind: self._count(found) for kind, found in self._references.items()}

    def _remember(self, kind: str, values: Iterable[Any]) -> None:
        references = self._references[kind]
        for value in values:
            try:
                references.append(weakref.ref(value))
            except TypeError:
                continue  # lists and texts
        if len(references) > MAX_REFERENCES:
            self._stride *= 2
            for found in self._references.values():
                del found[::2]

    def _count(self, references: list[weakref.ref[Any]]) -> list[int]:
        older = references[:-RECENT]
        return [sum(reference() is not None for reference in older), len(older)]


def following(
    run: Callable[..., Any], feeds_at: int, add: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a method that calls `run`, and then `add` with its inputs and outputs.

    Args:
        run: a method of sessions.
        feeds_at: the position of the inputs in its arguments.
        add: `EarlierValues.add`, or a function that calls it.
    """

    @functools.wraps(run)
    def followed_run(self: Any, *arguments: Any, **named: Any) -> Any:
        result = run(self, *arguments, **named)
        with contextlib.suppress(Exception):  # nothing here may end the program
            feeds: Any = named.get("input_feed", named.get("input_dict_ort_values"))
            if feeds is None and len(arguments) > feeds_at:
                feeds = arguments[feeds_at]
            add(feeds.values() if hasattr(feeds, "values") else (), result or ())
        return result

    return followed_run


class PauseBetweenRuns:
    """Asks memdiag to read the memory between two runs, at most once a period.

    Args:
        ask: sends an event with its fields and waits for the answer.
        period_s: the seconds between two events.
    """

    def __init__(self, ask: Callable[..., Any], period_s: float) -> None:
        self._ask = ask
        self._period_s = period_s
        self._lock = threading.Lock()
        self._values = EarlierValues()
        self._asked_s = time.perf_counter() - period_s

    def watched(self, run: Callable[..., Any], feeds_at: int) -> Callable[..., Any]:
        """Return a method that calls `run`, and stops after it if the period has passed."""
        return following(run, feeds_at, self._add)

    def _add(self, inputs: Iterable[Any], outputs: Iterable[Any]) -> None:
        with self._lock:
            self._values.add(inputs, outputs)
            if time.perf_counter() - self._asked_s < self._period_s:
                return
            counts, runs = self._values.counts(), self._values.runs
            # Other threads go on; only this one waits.
            self._asked_s = float("inf")
        try:
            self._ask("between_runs", runs=runs, **counts)
        finally:
            self._asked_s = time.perf_counter()
