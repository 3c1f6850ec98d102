"""Stops between two runs for ``memdiag leak``, and counts which values of runs are still alive.

Between runs no temporary values are in use, at least of this thread. A heap that grows by the
outputs of each run is no leak of onnxruntime if the program keeps the arrays: weak references to
inputs and outputs of earlier runs tell whether it does. If it keeps copies of them, the heap has
blocks that start as the values of an earlier run did.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FOLLOWED_RUNS = ("run", "run_with_ort_values")
"""Methods of sessions whose values are followed: their arguments begin with the names of outputs,
and the inputs."""

MAX_NAMES = 32  # inputs and outputs that are followed
MAX_REFERENCES = 200  # to values of one name; from here on every second one is dropped
RECENT = 20  # runs whose values may be alive in any program
START_BYTES = 64
_NUMBERS_OF_NUMPY = ("b", "i", "u", "f", "c")  # kinds of types


class EarlierValues:
    """Weak references to inputs and outputs of runs, by descriptions such as "output 'y'".

    An array that is an input of many runs is one value.

    Attributes:
        runs: the number of runs.
        largest_input_bytes: the most bytes that all inputs of a run had together, as far as they
            are arrays.
        starts: the first bytes of the values of one earlier run in hexadecimal, and their sizes in
            bytes, by description: what copies of them start with.
    """

    def __init__(self) -> None:
        # By identity: Python returns the same reference for an object that is alive.
        self._references: dict[str, dict[int, weakref.ref[Any]]] = {}
        self._stride = 1
        self._last: dict[str, Any] = {}
        self.runs = 0
        self.largest_input_bytes = 0
        self.starts: dict[str, tuple[str, int]] = {}

    def add(self, values: dict[str, Any]) -> None:
        """Add the inputs and outputs of one run, by description."""
        self.runs += 1
        input_bytes = sum(
            getattr(value, "nbytes", 0) for name, value in values.items() if name[:6] == "input "
        )
        self.largest_input_bytes = max(input_bytes, self.largest_input_bytes)
        self._last = {name: weakref.ref(value) for name, value in values.items() if _has_ref(value)}
        if self.runs % self._stride:
            return
        for name, reference in self._last.items():
            if name in self._references or len(self._references) < MAX_NAMES:
                self._references.setdefault(name, {})[id(reference)] = reference
        if any(len(found) > MAX_REFERENCES for found in self._references.values()):
            self._stride *= 2
            for found in self._references.values():
                for key in list(found)[::2]:
                    del found[key]

    def counts(self) -> dict[str, list[int]]:
        """Return how many values of earlier runs are alive, and how many there are."""
        return {name: self._count(found) for name, found in self._references.items()}

    def remember_starts(self) -> None:
        """Take the first bytes of the values of the last run, as far as they are alive."""
        self.starts = {}
        for name, reference in list(self._last.items())[:MAX_NAMES]:
            value = reference()
            kind = getattr(getattr(value, "dtype", None), "kind", None)
            if kind in _NUMBERS_OF_NUMPY and value.size and value.flags.c_contiguous:
                start = value.reshape(-1)[: START_BYTES // value.itemsize + 1].tobytes()
                self.starts[name] = start[:START_BYTES].hex(), value.nbytes

    def _count(self, references: dict[int, weakref.ref[Any]]) -> list[int]:
        older = list(references.values())[:-RECENT]
        return [sum(reference() is not None for reference in older), len(older)]


def _has_ref(value: Any) -> bool:
    return type(value).__weakrefoffset__ > 0  # lists and texts have none


def following(run: Callable[..., Any], add: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls `run`, and then `add` with its inputs and outputs.

    Args:
        run: a method of sessions. The values of an IOBinding are not followed.
        add: `EarlierValues.add`, or a function that calls it.
    """
    has_values = run.__name__ in FOLLOWED_RUNS

    @functools.wraps(run)
    def followed_run(self: Any, *arguments: Any, **named: Any) -> Any:
        result = run(self, *arguments, **named)
        with contextlib.suppress(Exception):  # nothing here may end the program
            add(_values(self, arguments, named, result) if has_values else {})
        return result

    return followed_run


def _values(
    session: Any, arguments: tuple[Any, ...], named: dict[str, Any], outputs: list[Any]
) -> dict[str, Any]:
    """Return the inputs and outputs of a run by description."""
    feeds: Any = named.get("input_feed", named.get("input_dict_ort_values"))
    if feeds is None:
        feeds = arguments[1]
    names = (arguments[0] if arguments else named.get("output_names")) or _output_names(session)
    values = {f"input {name!r}": value for name, value in feeds.items()}
    for name, value in zip(names, outputs):  # Python 3.9
        values[f"output {name!r}"] = value
    return values


def _output_names(session: Any) -> list[str]:
    names = vars(session).get("_memdiag_output_names")
    if names is None:
        names = session._memdiag_output_names = [each.name for each in session.get_outputs()]
    return list(names)


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

    def watched(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that calls `run`, and stops after it if the period has passed."""
        return following(run, self._add)

    def _add(self, values: dict[str, Any]) -> None:
        with self._lock:
            self._values.add(values)
            if time.perf_counter() - self._asked_s < self._period_s:
                return
            counts, runs = self._values.counts(), self._values.runs
            largest, starts = self._values.largest_input_bytes, self._values.starts
            # Other threads go on; only this one waits.
            self._asked_s = float("inf")
        try:
            self._ask(
                "between_runs",
                runs=runs,
                largest_input_bytes=largest,
                alive=counts,
                starts=starts,
            )
        finally:
            with self._lock:  # the program may copy these values after this run
                self._values.remember_starts()
                self._asked_s = time.perf_counter()
