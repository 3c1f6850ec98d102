"""What the hook does between two runs: it asks memdiag to read, and follows values."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from memdiag.programs.hook import between_runs
from memdiag.programs.hook.between_runs import PauseBetweenRuns, RunsInFlight
from tests.waiting import wait_until


class Session:
    """Stands for a session whose output is its input."""

    def get_outputs(self) -> list[Any]:
        return [type("Output", (), {"name": "y"})]

    def run(self, output_names: Any, input_feed: dict[str, Any], options: Any = None) -> list[Any]:
        return [np.copy(input_feed["x"])]

    def run_with_iobinding(self, binding: Any) -> None:
        """Return nothing."""


def callers_here() -> list[list[Any]]:
    return [["app.py", 7, "serve"]]


Fields = list[dict[str, Any]]


@pytest.fixture
def asked() -> Fields:
    """The fields of each request to read the memory."""
    return []


def pause_of(asked: Fields, period_s: float = 0.0) -> PauseBetweenRuns:
    return PauseBetweenRuns(lambda event, **fields: asked.append(fields), period_s, callers_here)


@pytest.fixture
def session(asked: Fields) -> Session:
    pause = pause_of(asked)
    body = {
        name: pause.pausing_method(vars(Session)[name]) for name in ("run", "run_with_iobinding")
    }
    watched: Session = type("Watched", (Session,), body)()
    return watched


def ones(length: int = 100) -> dict[str, Any]:
    return {"x": np.ones(length)}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((None, ones()), {}),
        ((["y"],), {"input_feed": ones()}),
        ((), {"output_names": [], "input_feed": ones()}),
    ],
)
def test_values_are_followed_by_name(
    session: Session, asked: Fields, arguments: Any, named: Any
) -> None:
    kept = [session.run(*arguments, **named) for _ in range(30)]
    assert [fields["runs"] for fields in asked] == list(range(1, 31))
    # The newest 20 may be alive in any program; the last run is counted before it is returned.
    assert asked[-1]["alive"]["output 'y'"] == [len(kept) - 20] * 2
    # Those of the run before the last.
    start = np.ones(100).tobytes()[:64].hex()
    assert asked[-1]["starts"] == {"input 'x'": (start, 800), "output 'y'": (start, 800)}


def test_values_have_their_mean_size_and_the_largest_inputs_are_added_up(
    session: Session, asked: Fields
) -> None:
    for length in (10, 30, 20):
        session.run(None, {"x": np.ones(length), "text": ["no array"]})
    assert asked[-1]["sizes"] == {"input 'x'": 160, "output 'y'": 160}
    assert [fields["largest_input"]["bytes"] for fields in asked] == [80, 240, 240]
    assert asked[-1]["largest_input"]["run"] == 2
    assert asked[-1]["largest_input"]["shapes"] == {"x": (30,)}


def test_of_many_values_the_largest_are_followed(session: Session, asked: Fields) -> None:
    sizes = range(1, 100)
    for _ in range(2):
        session.run(None, {**ones(1), **{f"x{size}": np.ones(size) for size in sizes}})
    followed = {f"input 'x{size}'" for size in sizes[-between_runs.MAX_FOLLOWED_NAMES :]}
    assert asked[-1]["alive"].keys() == asked[-1]["starts"].keys() == followed


def test_dropped_values_are_not_alive(session: Session, asked: Fields) -> None:
    for _ in range(30):
        session.run(None, ones())
    assert asked[-1]["alive"]["output 'y'"] == [0, 10]
    assert asked[-1]["kept_from"] == {}


def test_a_kept_value_has_the_callers_of_its_run(session: Session, asked: Fields) -> None:
    kept = [session.run(None, ones()) for _ in range(30)]
    assert asked[19]["kept_from"] == {}  # the newest values may be alive in any program
    assert asked[-1]["kept_from"] == {"output 'y'": [["app.py", 7, "serve"]]}
    assert kept


def test_memory_is_also_read_after_runs_whose_values_are_not_followed(
    session: Session, asked: Fields
) -> None:
    session.run_with_iobinding(None)
    nothing: Any = {name: {} for name in ("alive", "kept_from", "starts", "sizes")}
    read = {"runs": 1, "largest_input": None, "runs_in_flight": 0, "at_exit": False}
    assert asked == [read | nothing]


def test_an_array_that_is_fed_again_is_one_value(session: Session, asked: Fields) -> None:
    fed = [np.ones(100) for _ in range(3)]
    for run in range(90):
        session.run(None, {"x": fed[run % 3]})
    assert asked[-1]["alive"]["input 'x'"] == [0, 0]  # each of them may be fed next
    kept = [np.ones(100) for _ in range(90)]
    for array in kept:
        session.run(None, {"x": array})
    assert asked[-1]["alive"]["input 'x'"] == [19, 19]


class BusySession(Session):
    """Counts the runs under way in all threads."""

    lock = threading.Lock()

    def __init__(self, duration_s: float = 0.002) -> None:
        self.duration_s = duration_s
        self.running = 0

    def run(self, output_names: Any, input_feed: dict[str, Any], options: Any = None) -> list[Any]:
        with self.lock:
            self.running += 1
        time.sleep(self.duration_s)
        with self.lock:
            self.running -= 1
        return []


class HangingSession(Session):
    """A run of an output begins and goes on until it is let go; others are over at once."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def run(self, output_names: Any, *_: Any) -> list[Any]:
        if output_names:
            self.begun.set()
            self.go_on.wait(30)
        return []


@contextmanager
def run_in_flight(session: HangingSession, run: Callable[..., Any]) -> Iterator[None]:
    """Have another thread begin a run of `session`."""
    other = threading.Thread(target=run, args=(session, ["y"], {}))
    other.start()
    assert session.begun.wait(30)
    yield
    session.go_on.set()
    other.join(30)


def in_threads(function: Callable[[], Any], count: int = 4) -> None:
    with ThreadPoolExecutor(count) as pool:
        for future in [pool.submit(function) for _ in range(count)]:
            future.result(timeout=30)


def test_no_thread_is_in_a_run_while_the_memory_is_read() -> None:
    session, seen = BusySession(), []

    def ask(event: str, **fields: Any) -> dict[str, Any]:
        for _ in range(5):
            seen.append((session.running, fields["runs_in_flight"]))
            time.sleep(0.002)
        return {"wait_s": 0.004}

    run = PauseBetweenRuns(ask, 0.0, list).pausing_method(BusySession.run)
    in_threads(lambda: [run(session, None, {}) for _ in range(50)])
    assert len(seen) >= 50
    assert set(seen) == {(0, 0)}


def test_the_answer_has_the_time_until_the_next_reading() -> None:
    asked = []

    def ask(event: str, **fields: Any) -> dict[str, Any]:
        asked.append(fields["runs"])
        return {"wait_s": 60.0}

    run = PauseBetweenRuns(ask, 0.0, list).pausing_method(BusySession.run)
    for _ in range(20):
        run(BusySession(0.0), None, {})
    assert asked == [1]


def test_a_run_that_does_not_end_is_not_waited_for_without_end(
    asked: Fields, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(between_runs, "MIN_WAIT_S", 0.05)
    session = HangingSession()
    run = pause_of(asked, 60.0).pausing_method(HangingSession.run)
    with run_in_flight(session, run):
        run(session, None, {})
    assert [fields["runs_in_flight"] for fields in asked] == [1]


def test_a_run_within_a_run_goes_on_while_others_wait() -> None:
    runs = RunsInFlight()

    def run(depth: int) -> None:
        if depth:
            if depth == 1:
                stopped.append(runs.stop())  # waits in vain for the run that calls it
            counted(depth - 1)

    stopped: list[int] = []
    counted = runs.counting_method(run)
    started_s = time.perf_counter()
    counted(1)
    assert stopped == [1]
    assert time.perf_counter() - started_s < 10.0


@pytest.mark.parametrize("fails", [False, True])
def test_an_asynchronous_run_is_under_way_until_its_callback(fails: bool) -> None:
    class Asynchronous:
        def run_async(
            self, output_names: Any, input_feed: Any, callback: Any, user_data: Any
        ) -> None:
            if fails:
                raise ValueError
            timer = threading.Timer(0.1, callback, ([1.0], user_data, ""))
            timer.start()

    runs, results = RunsInFlight(), []
    run = runs.counting_method(Asynchronous.run_async)
    try:
        run(
            Asynchronous(), None, {}, callback=lambda *values: results.append(values), user_data="u"
        )
    except ValueError:
        assert fails
    assert runs.stop() == 0
    wait_until(lambda: fails or results)
    assert results == ([] if fails else [([1.0], "u", "")])


def test_at_the_exit_new_runs_are_read_once(asked: Fields) -> None:
    pause = pause_of(asked, 60.0)
    run = pause.pausing_method(BusySession.run)
    pause.at_exit()  # no run
    for _ in range(5):
        run(BusySession(0.0), None, {})
    pause.at_exit()
    pause.at_exit()
    assert [(fields["runs"], fields["at_exit"]) for fields in asked] == [(1, False), (5, True)]


def test_a_forked_child_has_no_runs_of_its_parents_threads(asked: Fields) -> None:
    pause, session = pause_of(asked), HangingSession()
    run = pause.pausing_method(HangingSession.run)
    with run_in_flight(session, run):
        pause.after_fork()
        run(session, None, {})
    assert asked[0]["runs_in_flight"] == 0
