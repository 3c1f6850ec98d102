"""The runs of sessions: methods that count them, and the counts by the shapes of inputs."""

from __future__ import annotations

import contextlib
import functools
import operator
import resource
import sys
import threading
import time

from .sessions import high_water_mark
from .tracebacks import hide_frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any

    from .sessions import HookSessions

SEND_PERIOD_S = 0.5
CHECK_PERIOD_S = 0.02  # between two readings of the high-water mark, unless shapes are new
MAX_CHECK_SHARE = 0.001  # of the time of a thread, for these readings
FIRST_RUNS = 20  # of a session, whose counts are sent at once
MIN_MARK_RISE_BYTES = 1 << 20  # of the high-water mark, for a run to be recorded as its cause
MAX_RANK = 8  # of lists in lists; a list may contain itself
OTHER_SHAPES = (None,)
RUN_CODES: set[CodeType] = set()  # of the methods that count runs
MAX_RUN_FRAMES = 8  # from a thread's current frame to the method that counts its run
shape_of = operator.attrgetter("shape")


class SessionRuns:
    """The runs of one session: what they log, and how many there were.

    Args:
        sessions: the sessions of this process.
        number: the number of the session.
        severity: the lowest severity that the session would log without memdiag.
        session: a weak reference to the session.

    Attributes:
        run_options: the options of runs for which the program gives none.
        started: whether the first run in this process has started.
        first_run_lock: lets one thread start the first run.
        counts: see `_new_count`, by `run_key`.
    """

    def __init__(
        self, sessions: HookSessions, number: int, severity: int, session: Callable[[], Any]
    ) -> None:
        self._session = session
        self.number = number
        self.sessions = sessions
        self._severity = severity
        self.run_options = sessions.onnxruntime.RunOptions()
        self.run_options.log_severity_level = severity
        self.started = False
        self.first_run_lock = threading.Lock()
        self.forget_runs()

    def forget_runs(self) -> None:
        """Reset the counts of runs."""
        self._lock = threading.Lock()
        self.counts: dict[Any, list[float]] = {}
        self._by_shapes: dict[Any, list[list[float]]] = {}
        self._check_s = self._send_s = 0.0
        self._first_runs = 0
        self._run_threads = 1

    def quiet(self, options: Any) -> Any:
        """Return RunOptions with which a run logs what it would log without memdiag.

        Runs inherit the severity of their session, which was created at a severity that logs its
        phases.
        """
        if options is None:
            return self.run_options
        if options.log_severity_level == -1:
            options.log_severity_level = self._severity
        return options

    def add_run(self, key: Any, began: float, ended: float) -> None:
        """Count a run.

        The program's run has emptied the processor's caches, so each object that is used here takes
        a tenth of a microsecond: add nothing lightly. There is no lock, because each thread has
        counts of its own.

        Args:
            key: the thread, the names of its inputs, and their shapes.
            began: the reading of `time.perf_counter` before the run.
            ended: the reading after the run.
        """
        latency_s = ended - began
        run_counts = self.counts.get(key)
        if run_counts is None:
            run_counts = self._new_count(key, latency_s)
        run_counts[0] += 1
        run_counts[1] += latency_s
        run_counts[4] = ended
        if latency_s < run_counts[2]:
            run_counts[2] = latency_s
        elif latency_s > run_counts[3]:
            run_counts[3] = latency_s
        if ended >= self._check_s:
            self._check_after_run(key, ended, latency_s)

    def _new_count(self, key: Any, latency_s: float) -> list[float]:
        """Return the counts of runs with `key`, which are not stored under this very key.

        They are: the number of runs, the sum of their latencies, the shortest, the longest, the end
        of the last run, and the number of runs that were sent.
        """
        # OrtValue.shape is a method, which would keep the value alive as long as the key.
        shapes = tuple([tuple(shape()) if callable(shape) else shape for shape in key[1:]])
        if len(self._by_shapes) >= self.sessions.max_shapes and shapes not in self._by_shapes:
            shapes = OTHER_SHAPES
        key = (key[0], *shapes)
        run_counts = self.counts.get(key)
        if run_counts is None:
            run_counts = self.counts[key] = [0, 0.0, latency_s, latency_s, 0.0, 0]
            self._by_shapes.setdefault(shapes, []).append(run_counts)
            # New shapes raise the mark, and so may any run that takes long.
            self._check_s = 0.0
        return run_counts

    def _check_after_run(self, key: Any, ended: float, latency_s: float) -> None:
        """Send an event if the high-water mark has risen, and the counts if it is time."""
        sessions = self.sessions
        notable_rss = sessions.max_rss + (MIN_MARK_RISE_BYTES >> 10)
        # `ru_maxrss` is never less than the mark, and takes a tenth of the time to read.
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if rss >= notable_rss:
            rss = high_water_mark()
        # A program may make a few runs, wait, and be killed.
        self._run_threads = max(self._run_threads, threads_in_runs())
        is_first = self._first_runs < FIRST_RUNS
        if is_first:
            self._first_runs += 1
        else:
            duration_s = time.perf_counter() - ended
            self._check_s = ended + max(CHECK_PERIOD_S, duration_s / MAX_CHECK_SHARE)
        if rss >= notable_rss:
            sessions.max_rss = rss
            sessions.channel.send(
                "peak",
                session=self.number,
                shapes=shapes_by_name(key[1:]),
                peak_rss_bytes=rss << 10,
                latency_s=latency_s,
            )
        if is_first or ended >= self._send_s:
            sessions.flush()  # all sessions, since others may not run again

    @property
    def runs(self) -> int:
        """The number of runs until now."""
        return sum(int(run_counts[0]) for run_counts in list(self.counts.values()))

    def send_runs(self) -> None:
        """Send the counts that have changed since the last time."""
        with self._lock:  # counts that are sent later must arrive later
            now_s = time.perf_counter()
            self._send_s = now_s + SEND_PERIOD_S
            counts = list(self.counts.items())
            changed_shapes: dict[Any, None] = {}
            for key, run_counts in counts:
                if run_counts[0] != run_counts[5]:
                    run_counts[5] = run_counts[0]
                    changed_shapes[key[1:]] = None
            if not changed_shapes:
                return
            runs = []
            for shapes in changed_shapes:
                run_numbers, total_times, shortest_times, longest_times, _, _ = zip(
                    *self._by_shapes[shapes]
                )
                runs.append(
                    [
                        shapes_by_name(shapes),
                        sum(run_numbers),
                        sum(total_times),
                        min(shortest_times),
                        max(longest_times),
                    ]
                )
            self.sessions.channel.send(
                "runs",
                session=self.number,
                runs=runs,
                threads=self._run_threads,
                keeps_bytes=getattr(self._session(), "_model_bytes", None) is not None,
                last_run_age_s=now_s - max(run_counts[4] for _, run_counts in counts),
            )


def threads_in_runs() -> int:
    """Return the number of threads that are in a run of any session now, including this one.

    If all threads that ever called a run were counted, threads that follow each other would look
    like many.
    """
    top_frames = sys._current_frames()
    # A variable with a frame of this thread would be a cycle that keeps the session alive.
    del top_frames[threading.get_ident()]
    count = 1
    for top_frame in top_frames.values():
        frame: FrameType | None = top_frame
        for _ in range(MAX_RUN_FRAMES):
            if frame is None:
                break
            if frame.f_code in RUN_CODES:
                count += 1
                break
            frame = frame.f_back
    return count


def run_key(feeds: Any) -> Any:
    """Return this thread, and the names and shapes of `feeds`, as a key."""
    try:
        shapes = tuple(map(shape_of, feeds.values()))
    except AttributeError:
        shapes = tuple(map(_value_shape, feeds.values()))
    return (threading.get_ident(), *feeds, *shapes)


def _value_shape(value: Any) -> Any:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return tuple(shape)
    sizes: list[int] = []
    # As numpy sees it: all elements have the same length.
    while isinstance(value, (list, tuple)) and len(sizes) < MAX_RANK:
        sizes.append(len(value))
        value = value[0] if value else None
    return (*sizes, *getattr(value, "shape", ()))


def shapes_by_name(part: Any) -> dict[str, Any] | None:
    """Return the shapes by input name; None for runs that are not counted by shapes.

    Args:
        part: a key without its thread.
    """
    if part == OTHER_SHAPES:
        return None
    input_count = len(part) // 2
    shapes = {}
    for name, shape in zip(part[:input_count], part[input_count:]):
        with contextlib.suppress(Exception):  # a dimension that is not a number
            shapes[str(name)] = [int(size) for size in (shape() if callable(shape) else shape)]
    return shapes


def wrap_run(
    original: Callable[..., Any], feeds_at: int | None, options_at: int
) -> Callable[..., Any]:
    """Return a method that runs a session as `original` does, and counts the run.

    Args:
        original: the method of the session.
        feeds_at: position of the inputs among its arguments; None for an IOBinding.
        options_at: position of the RunOptions.
    """
    perf_counter = time.perf_counter

    @functools.wraps(original)
    def run(self: Any, *arguments: Any, **keywords: Any) -> Any:
        session_runs = self.__dict__.get("_memdiag_recorded")
        key: Any = None
        if session_runs is not None:
            try:
                if len(arguments) > options_at:
                    options = session_runs.quiet(arguments[options_at])
                    arguments = (*arguments[:options_at], options, *arguments[options_at + 1 :])
                else:
                    keywords["run_options"] = session_runs.quiet(keywords.get("run_options"))
                if feeds_at is None:
                    key = run_key({})
                else:
                    key = run_key(
                        arguments[feeds_at] if len(arguments) > feeds_at else _feeds_of(keywords)
                    )
            except Exception as error:
                session_runs.sessions.channel.report(error)
        try:
            if key is None:
                return original(self, *arguments, **keywords)
            if not session_runs.started:
                run = functools.partial(original, self)
                return _first_run(session_runs, run, key, arguments, keywords)
            began = perf_counter()
            result = original(self, *arguments, **keywords)
        except BaseException as error:
            hide_frames(error)
            raise
        try:
            session_runs.add_run(key, began, perf_counter())
        except Exception as error:
            session_runs.sessions.channel.report(error)
        return result

    RUN_CODES.add(run.__code__)  # type: ignore[attr-defined] # of functools.wraps
    return run


def wrap_plain_run(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `InferenceSession.run` with counting, as `wrap_run` does, for the most usual calls."""
    counted_run = wrap_run(original, feeds_at=1, options_at=2)
    perf_counter, get_ident, get_shape = time.perf_counter, threading.get_ident, shape_of

    @functools.wraps(original)
    def run(
        self: Any, output_names: Any, input_feed: Any, run_options: Any = None, **keywords: Any
    ) -> Any:
        try:
            session_runs = self._memdiag_recorded
            options = session_runs.run_options if session_runs.started else None
            key = (get_ident(), *input_feed, *map(get_shape, input_feed.values()))
        except Exception:  # not recorded; a list of texts; no dictionary
            options = None
        try:
            if options is None or run_options is not None or keywords:
                return counted_run(self, output_names, input_feed, run_options, **keywords)
            began = perf_counter()
            result = original(self, output_names, input_feed, options)
        except BaseException as error:
            hide_frames(error)
            raise
        try:
            session_runs.add_run(key, began, perf_counter())
        except Exception as error:
            session_runs.sessions.channel.report(error)
        return result

    RUN_CODES.add(run.__code__)  # type: ignore[attr-defined] # of functools.wraps
    return run


def _feeds_of(keywords: dict[str, Any]) -> Any:
    for name in ("input_feed", "input_dict_ort_values"):
        if name in keywords:
            return keywords[name]
    return {}


def _first_run(
    session_runs: Any, run: Callable[..., Any], key: Any, arguments: Any, keywords: dict[str, Any]
) -> Any:
    """Run for the first time, with the memory read before and after."""
    channel = session_runs.sessions.channel
    with session_runs.first_run_lock:
        is_first, session_runs.started = not session_runs.started, True
    if is_first:
        with contextlib.suppress(Exception):
            session_runs.sessions.expect_exit_of_worker()
        channel.ask("first_run", session=session_runs.number)
    began = time.perf_counter()
    try:
        return run(*arguments, **keywords)
    finally:
        latency_s = time.perf_counter() - began
        with contextlib.suppress(Exception):
            if is_first:
                answer = channel.ask("first_run_done", session=session_runs.number)
                if answer:
                    session_runs.sessions.max_rss = max(
                        session_runs.sessions.max_rss, answer["peak_rss_bytes"] >> 10
                    )
            session_runs.add_run(key, began, began + latency_s)
            session_runs.send_runs()


WRAPPED_RUNS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "run": wrap_plain_run,
    "run_with_ort_values": functools.partial(wrap_run, feeds_at=1, options_at=2),
    "run_with_iobinding": functools.partial(wrap_run, feeds_at=None, options_at=1),
    "run_async": functools.partial(wrap_run, feeds_at=1, options_at=4),
}
