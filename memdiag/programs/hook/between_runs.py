"""Stops between two runs for ``memdiag leak``, and counts which values of runs are still alive.

Between runs no temporary values are in use. While the memory is read, no thread may start a run,
and the reading waits for runs under way: otherwise heap and arenas would change. A heap that grows
by the outputs of each run is not a leak of onnxruntime if the program keeps the arrays. Weak
references to inputs and outputs of earlier runs tell whether it does. If it keeps copies, the heap
has blocks that start like the values of an earlier run.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
import weakref

from .tracebacks import hide_frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FOLLOWED_RUNS = ("run", "run_with_ort_values")
"""Methods of sessions whose values are followed: their arguments begin with the names of outputs,
and the inputs."""

# The references must not grow with the runs as values do: they stop after `MAX_REFERENCES` runs.
MAX_FOLLOWED_NAMES = 32  # inputs and outputs that are followed, the largest first
MAX_REFERENCES = 64  # to values of one name; if there are more, every second one is dropped
MAX_REMEMBERED_CALLS = 60  # whose callers are remembered
RECENT_RUNS = 20  # runs whose values may be alive in any program
START_BYTES = 64
MIN_WAIT_S = 0.5
MAX_WAIT_S = 10.0
WAITED_RUNS = 3  # the longest wait for runs to end, in durations of the longest run until now
MAX_READING_S = 120.0  # the longest wait for an answer
SETTLING_S = 0.005  # in which other threads drop the values of their runs, or reach the next run
_NUMBERS_OF_NUMPY = ("b", "i", "u", "f", "c")  # kinds of types


class EarlierValues:
    """Weak references to inputs and outputs of runs, by descriptions such as "output 'y'".

    An array that is an input of many runs is one value.

    Attributes:
        runs: the number of runs.
        largest_input: the first run whose input arrays had the most bytes in all: its number,
            counted from 1, the bytes, and the shapes by name; None if no input was an array.
        starts: the first bytes of the values of one earlier run in hexadecimal, and their sizes in
            bytes, by description. Copies of the values start with these bytes.
        sizes: the mean bytes of the values of all runs until now, by description. Values that are
            not arrays of numbers are left out.
    """

    def __init__(self) -> None:
        # By identity: Python returns the same reference for an object that is alive.
        self._references: dict[str, dict[int, weakref.ref[Any]]] = {}
        self._stride = 1
        self._last_values: dict[str, Any] = {}
        self._calls: list[tuple[int, list[list[Any]], dict[str, Any]]] = []
        self.runs = 0
        self.largest_input: dict[str, Any] | None = None
        self._largest_bytes = 0
        self.starts: dict[str, tuple[str, int]] = {}
        self.sizes: dict[str, float] = {}
        self._array_counts: dict[str, int] = {}

    def add(self, values: dict[str, Any]) -> None:
        """Add the inputs and outputs of one run, by description."""
        self.runs += 1
        arrays = {
            name: value
            for name, value in values.items()
            if name[:6] == "input " and hasattr(value, "nbytes") and hasattr(value, "shape")
        }
        input_bytes = sum(array.nbytes for array in arrays.values())
        if input_bytes > self._largest_bytes:
            self._largest_bytes = input_bytes
            shapes = {name[7:-1]: tuple(array.shape) for name, array in arrays.items()}
            self.largest_input = {"run": self.runs, "bytes": input_bytes, "shapes": shapes}
        new_names = [
            name
            for name, value in values.items()
            if name not in self._references and _has_ref(value)
        ]
        for name in sorted(new_names, key=lambda name: -_array_bytes(values[name]))[
            : MAX_FOLLOWED_NAMES - len(self._references)
        ]:
            self._references[name] = {}
        self._last_values = {
            name: weakref.ref(values[name])
            for name in self._references.keys() & values.keys()
            if _has_ref(values[name])
        }
        for name in self._references.keys() & values.keys():
            if _is_numbers(values[name]):
                count = self._array_counts[name] = self._array_counts.get(name, 0) + 1
                mean = self.sizes.get(name, 0.0)
                self.sizes[name] = mean + (values[name].nbytes - mean) / count
        if self.runs % self._stride:
            return
        for name in self._references.keys() & self._last_values.keys():
            reference = self._last_values[name]
            self._references[name][id(reference)] = reference
        if any(len(references) > MAX_REFERENCES for references in self._references.values()):
            self._stride *= 2
            for followed in self._references.values():
                for key in list(followed)[::2]:
                    del followed[key]

    def counts(self) -> dict[str, list[int]]:
        """Return how many values of earlier runs are alive, and how many are followed, by
        description."""
        return {
            name: self._alive_counts(references) for name, references in self._references.items()
        }

    def remember_call(self, callers: list[list[Any]]) -> None:
        """Remember the callers of the last run, to know which calls have values that are kept."""
        self._calls.append((self.runs, callers, self._last_values))
        del self._calls[:-MAX_REMEMBERED_CALLS]

    def kept_from(self) -> dict[str, list[list[Any]]]:
        """Return the callers of the latest remembered run whose value is still alive, by name."""
        return {
            name: callers
            for run, callers, values in self._calls
            if run <= self.runs - RECENT_RUNS
            for name, reference in values.items()
            if reference() is not None
        }

    def remember_starts(self) -> None:
        """Store the first bytes of those values of the last run that are alive."""
        self.starts = {}
        for name in self._references.keys() & self._last_values.keys():
            value = self._last_values[name]()
            if _is_numbers(value) and value.size and value.flags.c_contiguous:
                start = value.reshape(-1)[: START_BYTES // value.itemsize + 1].tobytes()
                self.starts[name] = start[:START_BYTES].hex(), value.nbytes

    def _alive_counts(self, references: dict[int, weakref.ref[Any]]) -> list[int]:
        recent = -(-RECENT_RUNS // self._stride)
        older = list(references.values())[:-recent]
        return [sum(reference() is not None for reference in older), len(older)]


def _is_numbers(value: Any) -> bool:
    return getattr(getattr(value, "dtype", None), "kind", None) in _NUMBERS_OF_NUMPY


def _array_bytes(value: Any) -> int:
    return value.nbytes if _is_numbers(value) else 0


def _has_ref(value: Any) -> bool:
    return type(value).__weakrefoffset__ > 0  # lists and texts have none


def followed_run_method(run: Callable[..., Any], add: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls `run`, and then `add` with its inputs and outputs.

    Args:
        run: a method of sessions. The values of an IOBinding are not followed.
        add: `EarlierValues.add`, or a function that calls it.
    """
    has_values = run.__name__ in FOLLOWED_RUNS

    @functools.wraps(run)
    def followed_run(self: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            result = run(self, *arguments, **keywords)
        except BaseException as error:
            hide_frames(error)
            raise
        with contextlib.suppress(Exception):  # nothing here may end the program
            add(_run_values(self, arguments, keywords, result) if has_values else {})
        return result

    return followed_run


def _run_values(
    session: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], outputs: list[Any]
) -> dict[str, Any]:
    """Return the inputs and outputs of a run by description."""
    feeds: Any = keywords.get("input_feed", keywords.get("input_dict_ort_values"))
    if feeds is None:
        feeds = arguments[1]
    names = (arguments[0] if arguments else keywords.get("output_names")) or _output_names(session)
    values = {f"input {name!r}": value for name, value in feeds.items()}
    for name, value in zip(names, outputs):  # Python 3.9
        values[f"output {name!r}"] = value
    return values


def _output_names(session: Any) -> list[str]:
    names = vars(session).get("_memdiag_output_names")
    if names is None:
        names = session._memdiag_output_names = [output.name for output in session.get_outputs()]
    return list(names)


class RunsInFlight:
    """Counts the runs under way in all threads, and stops new ones while the memory is read.

    A run within a run of the same thread belongs to that run: it neither waits nor counts.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset the state in a forked child, which has none of its parent's other threads."""
        self._condition = threading.Condition(threading.Lock())
        self._thread_state = threading.local()
        self._runs_under_way = 0
        self._is_stopped = False
        self._longest_s = 0.0

    def counting_method(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that calls `run`, and counts it as a run under way until it ends."""
        if run.__name__ == "run_async":
            return self._counting_async_method(run)

        @functools.wraps(run)
        def counted_run(*arguments: Any, **keywords: Any) -> Any:
            if getattr(self._thread_state, "is_running", False):
                return run(*arguments, **keywords)
            began_s = self._start_run()
            self._thread_state.is_running = True
            try:
                return run(*arguments, **keywords)
            finally:
                self._thread_state.is_running = False
                self._end_run(began_s)

        return counted_run

    def _counting_async_method(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def counted_run(
            session: Any,
            output_names: Any,
            input_feed: Any,
            callback: Any,
            *more_arguments: Any,
            **keywords: Any,
        ) -> Any:
            began_s = self._start_run()

            def counted_callback(*results: Any) -> None:
                self._end_run(began_s)
                try:
                    callback(*results)
                except BaseException as error:
                    hide_frames(error)
                    raise

            try:
                return run(
                    session, output_names, input_feed, counted_callback, *more_arguments, **keywords
                )
            except BaseException:
                self._end_run(began_s)
                raise

        return counted_run

    def stop(self) -> int:
        """Let no run start from now on, and wait until the runs under way have ended.

        Returns:
            The number of runs that have not ended within a bounded time: a run may wait for a lock
            of the thread that waits here.
        """
        with self._condition:
            self._is_stopped = True
            max_wait_s = min(MAX_WAIT_S, max(MIN_WAIT_S, WAITED_RUNS * self._longest_s))
            self._condition.wait_for(lambda: not self._runs_under_way, max_wait_s)
            return self._runs_under_way

    def go_on(self) -> None:
        """Let runs start again."""
        with self._condition:
            self._is_stopped = False
            self._condition.notify_all()

    def _start_run(self) -> float:
        with self._condition:
            if self._is_stopped:
                self._condition.wait_for(lambda: not self._is_stopped, MAX_READING_S)
            self._runs_under_way += 1
        return time.perf_counter()

    def _end_run(self, began_s: float) -> None:
        with self._condition:
            # A child may be forked in a run.
            self._runs_under_way = max(0, self._runs_under_way - 1)
            self._longest_s = max(self._longest_s, time.perf_counter() - began_s)
            if self._is_stopped and not self._runs_under_way:
                self._condition.notify_all()


class PauseBetweenRuns:
    """Asks memdiag to read the memory between two runs, at most once a period.

    No thread is in a run then: other threads wait before their next run.

    Args:
        ask: sends an event with its fields and waits for the answer.
        period_s: the seconds between two events, unless the answer has another number.
        callers: returns file, line and function of the callers of a run, the nearest first.
    """

    def __init__(
        self, ask: Callable[..., Any], period_s: float, callers: Callable[[], list[list[Any]]]
    ) -> None:
        self._ask = ask
        self._callers = callers
        self._period_s = period_s
        self._lock = threading.Lock()
        self._values = EarlierValues()
        self._in_flight = RunsInFlight()
        self._due_s = time.perf_counter()
        self._asked_runs = 0

    def pausing_method(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that calls `run`, and pauses after it if the period has passed."""
        return followed_run_method(self._in_flight.counting_method(run), self._add_values)

    def after_fork(self) -> None:
        """Reset the state in a forked child: other threads of its parent may have had the locks."""
        self._lock = threading.Lock()
        self._in_flight.forget()
        self._due_s = time.perf_counter()

    def at_exit(self) -> None:
        """Ask once more at the end of the program, if there were runs since the last time."""
        with self._lock:
            if self._values.runs == self._asked_runs:
                return
            self._due_s = math.inf
        self._stop_and_ask(at_exit=True)

    def _add_values(self, values: dict[str, Any]) -> None:
        with self._lock:
            self._values.add(values)
            if time.perf_counter() < self._due_s:
                return
            self._due_s = math.inf
            self._values.remember_call(self._callers())
        self._stop_and_ask()

    def _stop_and_ask(self, *, at_exit: bool = False) -> None:
        wait_s, began_s = self._period_s, time.perf_counter()
        try:
            in_flight = self._in_flight.stop()
            if threading.active_count() > 1:
                time.sleep(SETTLING_S)
            stopped_s = time.perf_counter() - began_s
            with self._lock:
                values = self._values
                counts, self._asked_runs = values.counts(), values.runs
                largest, starts, sizes = values.largest_input, values.starts, dict(values.sizes)
                kept_from = values.kept_from()
            answer = self._ask(
                "between_runs",
                runs=self._asked_runs,
                largest_input=largest,
                alive=counts,
                kept_from=kept_from,
                starts=starts,
                sizes=sizes,
                runs_in_flight=in_flight,
                at_exit=at_exit,
            )
            wait_s = (answer or {}).get("wait_s", wait_s)
            if in_flight:  # waiting in vain takes at most half of the time
                wait_s = max(stopped_s, wait_s)
        finally:
            self._in_flight.go_on()
            with self._lock:  # the program may copy these values after this run
                self._values.remember_starts()
                self._due_s = math.inf if at_exit else time.perf_counter() + wait_s
