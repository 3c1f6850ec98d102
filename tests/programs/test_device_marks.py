"""The hook's readings of a GPU, with libraries in place of CUDA's and CUPTI's."""

import mmap
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memdiag.defaults import NVIDIA_PROVIDERS
from memdiag.programs.hook import creation, device_marks
from memdiag.programs.hook.creation import recorded_init
from memdiag.programs.hook.device_marks import DeviceMarks, is_cuda_loaded
from memdiag.programs.hook.runs import wrap_plain_run
from memdiag.programs.hook.sessions import HookSessions
from memdiag.runner.scripts import device
from tests.runner.test_device_script import ALLOCATE, Cudart, Cupti, Loader, activity

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


class FakeChannel:
    """Records all events; nobody answers."""

    connected = True

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, event: str, **fields: Any) -> None:
        self.sent.append((event, fields))

    def ask(self, event: str, **fields: Any) -> None:
        self.sent.append((event, {}))

    def report(self, error: Exception) -> None:
        raise error

    @property
    def steps(self) -> list[str]:
        """The events, and the names of marks."""
        return [
            f"{fields['name']} {fields['session'] or ''}".strip()
            if event == "device_mark"
            else event
            for event, fields in self.sent
            if event not in ("runs", "peak", "device_allocations")
        ]

    def fields_of(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.sent if name == event]


class Options:
    log_severity_level, logid = -1, ""
    intra_op_num_threads = inter_op_num_threads = 0


class Session:
    """A session that has the providers it is asked for, and runs nothing."""

    has_asked_providers = True

    def __init__(self, path: str, sess_options: Any = None, providers: Any = None) -> None:
        self._sess_options, self._sess = sess_options, SimpleNamespace()
        names = [name if isinstance(name, str) else name[0] for name in providers]
        self._providers = names if self.has_asked_providers else [CPU]

    def get_providers(self) -> list[str]:
        return self._providers

    def plain_run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> str:
        return "outputs"

    run = wrap_plain_run(plain_run)


class Process:
    """A process with the hook.

    Attributes:
        cupti, loader: the libraries of the process.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cupti = Cupti()
        self.loader = Loader(libcupti=self.cupti, libcudart=Cudart())
        script = SimpleNamespace(
            DeviceRecorder=partial(device.DeviceRecorder, load=self.loader, folders=("/nvidia",))
        )
        monkeypatch.setattr(device_marks, "_device_script", lambda: script)
        monkeypatch.setattr(device_marks, "is_cuda_loaded", lambda: False)
        self.channel = FakeChannel()
        self.package: Any = SimpleNamespace(
            RunOptions=Options,
            SessionOptions=Options,
            __file__="/x/__init__.py",
            __version__="1",
            cuda_version="12.8",
        )
        self.sessions = HookSessions(self.package, self.channel)  # type: ignore[arg-type] # as a channel
        self.session_class: Any = type(
            "RecordedSession",
            (Session,),
            {"__init__": recorded_init(Session.__init__, self.sessions)},
        )

    def session(self, *providers: Any) -> Any:
        return self.session_class("m.onnx", None, providers)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(monkeypatch)


def test_a_session_on_a_gpu_is_read_at_each_step(process: Process) -> None:
    session = process.session(CUDA, CPU)
    session.run(None, {})
    session.run(None, {})
    marks = process.sessions.device
    assert marks is not None
    marks._due_s = 0.0
    session.run(None, {})
    process.sessions.finish()
    assert process.channel.steps == [
        "start",
        "create",
        "session 1",
        "created",
        "between 1",
        "first_run",
        "first run 1",
        "first_run_done",
        "run 1",
        "end",
        "exit",
    ]
    start, created, *others, end = process.channel.fields_of("device_mark")
    assert (start["used_bytes"], start["is_alive"]) == (None, False)
    assert (created["used_bytes"], created["is_alive"]) == (700, True)
    assert {mark["used_bytes"] for mark in others} == {700}
    assert end["is_alive"]
    assert process.cupti.disabled == [device.MEMORY_ACTIVITY]
    assert process.loader.opened[0][0] == "/nvidia/libcupti.so.12"


def test_cupti_starts_before_the_session_and_once(process: Process) -> None:
    sessions = [process.session((CUDA, {"device_id": "0"}), CPU), process.session(CUDA)]
    assert process.cupti.enabled == [device.MEMORY_ACTIVITY]
    first = ["start", "create", "session 1", "created"]
    assert process.channel.steps == [*first, "between", "create", "session 2", "created"]
    assert len(sessions) == 2


def test_a_session_on_the_cpu_loads_and_reads_nothing(process: Process) -> None:
    process.session(CPU).run(None, {})
    process.sessions.finish()
    assert process.sessions.device is None
    assert process.loader.opened == []
    assert not [event for event, _ in process.channel.sent if event.startswith("device")]


def test_a_session_that_fell_back_to_the_cpu_has_no_mark_of_its_own(process: Process) -> None:
    process.session_class.has_asked_providers = False
    process.session(CUDA, CPU).run(None, {})
    assert process.channel.steps == [
        "start",
        "create",
        "created",
        "first_run",
        "first_run_done",
        "released",
    ]


def test_a_session_with_a_provider_that_was_not_named_is_read_late(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As by add_provider_for_devices: it has called CUDA before its providers are known.
    monkeypatch.setattr(device_marks, "is_cuda_loaded", lambda: True)
    monkeypatch.setattr(process.session_class, "get_providers", lambda self: [CUDA])
    process.session()
    steps = process.channel.steps
    assert steps == ["create", "device_missing", "session 1", "created", "released"]


def test_after_a_call_of_cuda_only_its_figure_is_read(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_marks, "is_cuda_loaded", lambda: True)
    process.session(CUDA)
    process.session(CUDA)
    reason = "CUDA was in use before the first session on the GPU"
    assert process.channel.fields_of("device_missing") == [{"source": "CUPTI", "reason": reason}]
    assert not any("cupti" in name for name, _ in process.loader.opened)
    # A first mark before the session would tell nothing of the memory of others.
    assert process.channel.steps[:3] == ["device_missing", "create", "session 1"]
    assert "between" in process.channel.steps


def test_without_xrays_allocations_are_not_recorded(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(device_marks.WITHOUT_CUPTI, "1")
    process.session(CUDA)
    (missing,) = process.channel.fields_of("device_missing")
    assert "no X-rays" in missing["reason"]
    assert process.cupti.enabled == []


def test_for_leak_nothing_is_read(process: Process) -> None:
    process.sessions.records_device = False
    process.session(CUDA).run(None, {})
    assert process.sessions.device is None
    assert process.loader.opened == []


def test_a_fork_does_not_use_the_device_of_its_parent(process: Process) -> None:
    session = process.session(CUDA)
    process.channel.connected = False
    process.sessions.after_fork()
    assert process.sessions.device is None
    count = len(process.channel.fields_of("device_mark"))
    session.run(None, {})
    assert len(process.channel.fields_of("device_mark")) == count


def test_a_session_is_released_before_the_last_mark(process: Process) -> None:
    process.session(CUDA)  # no reference to it remains
    process.sessions.finish()
    assert [mark["is_alive"] for mark in process.channel.fields_of("device_mark")] == [
        False,
        True,
        False,
    ]


def test_a_script_that_fails_is_said_once_and_never_raised(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("no script")

    monkeypatch.setattr(device_marks, "_device_script", fail)
    process.session(CUDA).run(None, {})
    process.session(CUDA)
    (missing,) = process.channel.fields_of("device_missing")
    assert missing == {
        "source": "cudaMemGetInfo",
        "reason": "its reading failed (OSError: no script)",
    }


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def perf_counter(self) -> float:
        return self.now_s


class Marks:
    """Readings that take `cost_s` seconds each, on a clock of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.cost_s, self.allocations = Clock(), 0.0, 0
        self.sent: list[str] = []
        self.stopped: list[str] = []
        monkeypatch.setattr(device_marks, "time", self.clock)
        monkeypatch.setattr(device_marks, "is_cuda_loaded", lambda: False)
        monkeypatch.setattr(
            device_marks, "_device_script", lambda: SimpleNamespace(DeviceRecorder=self.recorder)
        )
        self.marks = DeviceMarks(self.send, "", lambda: True)

    def recorder(self, send: Callable[..., None], version: str, **options: Any) -> Any:
        def mark(name: str, is_alive: bool) -> None:
            self.clock.now_s += self.cost_s
            send("device_allocations", rows=[[0]] * self.allocations)
            send("device_mark", name=name)

        return SimpleNamespace(mark=mark, stop_allocations=self.stopped.append)

    def send(self, event: str, **fields: Any) -> None:
        if event == "device_mark":
            self.sent.append(fields["name"])

    def count(self, seconds: float, period_s: float) -> int:
        """Return the readings in so many seconds with a run each `period_s` seconds."""
        before, end_s = len(self.sent), self.clock.now_s + seconds
        while self.clock.now_s < end_s:
            self.clock.now_s += period_s
            self.marks.mark_later_run(1, self.clock.now_s)
        return len(self.sent) - before


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> Marks:
    return Marks(monkeypatch)


def test_readings_after_later_runs_are_a_second_apart(marks: Marks) -> None:
    assert 8 <= marks.count(10.0, 0.01) <= 10


def test_readings_take_a_thousandth_of_the_time(marks: Marks) -> None:
    marks.cost_s = 0.01
    assert marks.count(90.0, 0.01) in (9, 10)


def test_readings_become_rarer(marks: Marks) -> None:
    marks.clock.now_s += 100_000.0
    assert marks.count(10_000.0, 1.0) in (9, 10, 11)


def test_cupti_is_stopped_after_many_allocations(
    marks: Marks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_marks, "MAX_ALLOCATIONS", 10)
    marks.allocations = 5
    marks.marks.mark("session", 1)
    marks.marks.mark("run", 1)
    assert marks.stopped == []
    marks.marks.mark("run", 1)
    assert marks.stopped == ["it was stopped after 10 allocations"]


def test_a_reading_inside_another_one_is_left_out(
    marks: Marks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_marks, "MAX_LOCK_WAIT_S", 0.01)
    with marks.marks._lock:
        marks.marks.mark("run", 1)
    assert marks.sent == []
    marks.marks.mark("run", 1)
    assert marks.sent == ["run"]


def test_the_hook_knows_the_providers_of_nvidias_devices() -> None:
    assert creation.DEVICE_PROVIDERS == NVIDIA_PROVIDERS


@pytest.mark.parametrize(
    ("name", "is_driver"),
    [("libcuda.so.1", True), ("libcuda.so.580.65.06", True), ("libcudart.so.13", False)],
)
def test_cuda_is_in_use_once_the_library_of_the_driver_is_loaded(
    tmp_path: Path, name: str, is_driver: bool
) -> None:
    path = tmp_path / name
    path.write_bytes(b"library")
    assert not is_cuda_loaded()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        assert is_cuda_loaded() is is_driver


def test_the_script_is_loaded_by_its_path() -> None:
    assert os.path.samefile(device_marks.DEVICE_SCRIPT, device.__file__)
    script = device_marks._device_script()
    assert script.MEMORY_ACTIVITY == device.MEMORY_ACTIVITY
    assert sys.modules["memdiag.programs.hook.device"] is script is device_marks._device_script()


def test_allocations_arrive_with_the_mark_that_follows(process: Process) -> None:
    process.session(CUDA)
    process.cupti.waiting = [activity(operation=ALLOCATE, bytes=5, memory_kind=3)]
    process.sessions.finish()
    (allocations,) = process.channel.fields_of("device_allocations")
    assert [row[4] for row in allocations["rows"]] == [5]
