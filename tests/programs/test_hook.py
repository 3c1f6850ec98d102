"""The hook's own functions, without a program."""

import gc
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from memdiag.programs.hook import creation, runs
from memdiag.programs.hook.runs import SessionRuns, run_key, wrap_plain_run
from memdiag.programs.hook.sessions import TELEMETRY_OFF_IF_SET, HookSessions, telemetry_is_on


class RunOptions:
    log_severity_level = -1


class FakeChannel:
    connected = True

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, event: str, **fields: Any) -> None:
        self.sent.append({"event": event, **fields})

    def report(self, error: Exception) -> None:
        pass

    @property
    def runs(self) -> dict[str, int]:
        """The number of runs by shapes: later events replace earlier ones, as in the recorder."""
        events = [event["runs"] for event in self.sent if event["event"] == "runs"]
        return {repr(shapes): runs for event in events for shapes, runs, *_ in event}

    @property
    def threads(self) -> int:
        """The most threads that were in runs at once."""
        return max(int(event["threads"]) for event in self.sent if event["event"] == "runs")


class FakeSession:
    """Runs nothing."""

    def __init__(self, recorded: Any) -> None:
        self._memdiag_recorded = recorded
        self.severities: list[int] = []
        self.during_run: Callable[[], object] = lambda: None

    def plain_run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> str:
        self.severities.append(run_options.log_severity_level)
        self.during_run()
        return "outputs"

    run = wrap_plain_run(plain_run)


class OrtValue:
    """As in onnxruntime, where the shape is a method."""

    def shape(self) -> list[int]:
        return [2, 3]


@pytest.fixture
def channel() -> FakeChannel:
    return FakeChannel()


@pytest.fixture
def session(channel: FakeChannel) -> FakeSession:
    package: Any = SimpleNamespace(RunOptions=RunOptions, __file__="/x/__init__.py")
    process = HookSessions(package, channel)  # type: ignore[arg-type]
    recorded = SessionRuns(process, 1, 3, lambda: None)
    recorded.started = True
    return FakeSession(recorded)


def feed(rows: int = 1) -> dict[str, Any]:
    return {"x": np.ones((rows, 4))}


def counts(session: FakeSession, channel: FakeChannel) -> dict[str, int]:
    session._memdiag_recorded.send_runs()
    return channel.runs


def test_runs_of_several_threads_are_added_up(session: FakeSession, channel: FakeChannel) -> None:
    def work() -> None:
        for rows in (1, 1, 2):
            assert session.run(None, feed(rows)) == "outputs"

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    assert counts(session, channel) == {"{'x': [1, 4]}": 8, "{'x': [2, 4]}": 4}


@pytest.mark.parametrize(("at_once", "threads"), [(True, 4), (False, 1)])
def test_threads_count_that_are_in_runs_at_once(
    session: FakeSession, channel: FakeChannel, at_once: bool, threads: int
) -> None:
    barrier = threading.Barrier(4)
    session.during_run = lambda: barrier.wait(10) if at_once else None
    workers = [threading.Thread(target=session.run, args=(None, feed())) for _ in range(4)]
    for worker in workers:
        worker.start()
        if not at_once:
            worker.join()
    for worker in workers:
        worker.join()
    counts(session, channel)
    assert channel.threads == threads


def test_a_session_is_released_with_its_last_reference(session: FakeSession) -> None:
    # The fixture's value has other references.
    own = FakeSession(session._memdiag_recorded)
    own.run(None, feed())
    released = weakref.ref(own)
    gc.disable()
    try:
        del own
        assert released() is None
    finally:
        gc.enable()


def test_only_what_has_changed_is_sent(session: FakeSession, channel: FakeChannel) -> None:
    for rows in (1, 2):
        session.run(None, feed(rows))
    counts(session, channel)
    channel.sent.clear()
    session.run(None, feed(2))
    assert counts(session, channel) == {"{'x': [2, 4]}": 2}


@pytest.mark.parametrize(
    ("feeds", "runs"),
    [
        # Shapes beyond the limit are counted together.
        (
            [feed(rows) for rows in (1, 2, 3, 4, 3, 1)],
            {"{'x': [1, 4]}": 2, "{'x': [2, 4]}": 1, "None": 3},
        ),
        # A value with a method for its shape.
        ([{"x": OrtValue()}] * 3, {"{'x': [2, 3]}": 3}),
        ([{"texts": ["a", "b"], **feed()}], {"{'texts': [2], 'x': [1, 4]}": 1}),
    ],
)
def test_runs_are_counted_by_shape(
    session: FakeSession, channel: FakeChannel, feeds: list[Any], runs: dict[str, int]
) -> None:
    session._memdiag_recorded.sessions.max_shapes = 2
    for values in feeds:
        session.run(None, values)
    assert counts(session, channel) == runs
    assert len(session._memdiag_recorded.counts) == len(runs)


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        ([[1, 2, 3], [4, 5, 6]], (2, 3)),
        (["a", "b"], (2,)),
        ([np.zeros((2, 5)), np.zeros((2, 5))], (2, 2, 5)),
        ([], (0,)),
        (7, ()),
    ],
)
def test_lists_have_the_shape_that_numpy_gives_them(value: Any, shape: tuple[int, ...]) -> None:
    assert run_key({"x": value})[2] == shape


def test_a_list_that_contains_itself_has_an_end() -> None:
    value: list[Any] = []
    value.append(value)
    assert set(run_key({"x": value})[2]) == {1}


def test_a_run_is_as_loud_as_the_program_has_set(session: FakeSession) -> None:
    loud = RunOptions()
    loud.log_severity_level = 0
    session.run(None, feed())
    session.run(None, feed(), RunOptions())
    session.run(None, feed(), loud)
    assert session.severities == [3, 3, 0]


def test_wrong_arguments_raise_what_they_raise_without_the_hook(session: FakeSession) -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'input_feed'"):
        session.run(None)
    assert session.run(None, None) == "outputs"


def test_counts_of_all_sessions_are_sent_together(
    session: FakeSession, channel: FakeChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "FIRST_RUNS", 0)
    recorded = session._memdiag_recorded
    sessions = recorded.sessions
    other = SessionRuns(sessions, 2, 3, lambda: None)
    sessions.recorded.update({recorded, other})
    monkeypatch.setattr(recorded, "_send_s", np.inf)
    session.run(None, feed())
    assert not channel.sent
    other.add_run(run_key({}), 1.0, 2.0)  # the first of these shapes is checked
    assert {event["session"] for event in channel.sent if event["event"] == "runs"} == {1, 2}


def test_the_first_runs_are_sent_at_once(
    session: FakeSession, channel: FakeChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "FIRST_RUNS", 3)
    monkeypatch.setattr(runs, "SEND_PERIOD_S", 60)
    session._memdiag_recorded.sessions.recorded.add(session._memdiag_recorded)
    for _ in range(8):
        session.run(None, feed())
    # The fourth is the first whose time to be sent has not come.
    assert channel.runs == {"{'x': [1, 4]}": 3}
    assert counts(session, channel) == {"{'x': [1, 4]}": 8}


@pytest.mark.parametrize("hidden", [creation.__file__, runs.__file__, "/onnxruntime/session.py"])
def test_files_of_the_hook_and_of_onnxruntime_are_no_callers(hidden: str) -> None:
    names: dict[str, Any] = {"callers": creation.outside_callers}
    exec(compile("found = callers('/onnxruntime/')", hidden, "exec"), names)
    file, _, function = names["found"][0]
    assert file == __file__
    assert function == "test_files_of_the_hook_and_of_onnxruntime_are_no_callers"
    exec(compile("found = callers('/onnxruntime/')", "/srv/hook/runs.py", "exec"), names)
    assert names["found"][0] == ["/srv/hook/runs.py", 1, "<module>"]


@pytest.mark.parametrize(
    ("environment", "is_on"),
    [
        ({}, True),
        ({"ORT_DISABLE_TELEMETRY": "0"}, True),  # tried with 1.32.0, like the others
        ({"ORT_DISABLE_TELEMETRY": ""}, True),
        ({"ORT_DISABLE_TELEMETRY": "1"}, False),
        ({"ORT_DISABLE_TELEMETRY": "true"}, False),
        ({"CI": "true"}, False),
    ],
)
def test_the_environment_turns_telemetry_off(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], is_on: bool
) -> None:
    for name in ("ORT_DISABLE_TELEMETRY", *TELEMETRY_OFF_IF_SET):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert telemetry_is_on() == is_on
