"""How often the proportional sets of a program are read, and onnxruntime is searched for."""

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from memdiag.programs import proportional_sets, unhooked_process
from memdiag.programs.process_sampling import ProcessSampling
from memdiag.programs.proportional_sets import ProportionalSets
from memdiag.programs.recorded_process import RecordedProcess
from memdiag.programs.recorded_program import RecordedProgram
from memdiag.programs.unhooked_process import find_runtime_if_grown
from memdiag.runner.observer import MemoryReading
from memdiag.system.loaded_runtime import LoadedRuntime
from memdiag.system.process_tree import ProportionalMemory

MIB = 1 << 20


class Clock(RecordedProgram):
    """A program of one process, whose time and memory the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cpu_s: float, wall_s: float) -> None:
        super().__init__()
        self.time_s = self.cpu_s = 0.0
        process = SimpleNamespace(pid=7, has_hook=True, runtime=None, add_pss=lambda *_: 0)
        self.live[7] = cast(RecordedProcess, process)

        def read(_: int) -> ProportionalMemory:
            self.cpu_s += cpu_s
            self.time_s += wall_s
            return ProportionalMemory(self.rss_bytes, 0)

        monkeypatch.setattr(proportional_sets, "proportional_memory", read)
        monkeypatch.setattr(time, "thread_time", lambda: self.cpu_s)
        sampling = cast(ProcessSampling, SimpleNamespace(sample_if_late=lambda: None))
        self.sets = ProportionalSets(self, sampling, 0.01)

    def now_s(self) -> float:
        return self.time_s

    def grow_to(self, mib: int) -> None:
        self.total_rss.add(self.time_s, MemoryReading(mib * MIB, None, None))

    def pass_time(self, seconds: float) -> None:
        end_s = self.time_s + seconds
        while self.time_s < end_s:
            self.sets.step(self.time_s)
            self.time_s += 0.1


@pytest.mark.parametrize(
    ("cpu_s", "wall_s", "count"),
    [
        pytest.param(0.005, 0.4, range(10, 30), id="waits for a CPU"),
        pytest.param(0.1, 0.1, range(3, 5), id="takes CPU time"),
    ],
)
def test_readings_may_wait_for_a_cpu(
    monkeypatch: pytest.MonkeyPatch, cpu_s: float, wall_s: float, count: range
) -> None:
    """Only CPU time counts: the other programs have the rest."""
    program = Clock(monkeypatch, cpu_s, wall_s)
    program.grow_to(600)
    program.pass_time(30)
    assert len(program.proportional) in count


def test_a_new_peak_is_read_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Clock(monkeypatch, 0.05, 0.05)
    program.grow_to(570)
    program.pass_time(2.5)
    assert [rss >> 20 for _, rss, _ in program.proportional] == [570]
    program.grow_to(610)
    program.pass_time(0.2)
    assert program.proportional[-1][1] >> 20 == 610
    for mib in (500, 610):  # it was as high before
        program.grow_to(mib)
        program.pass_time(2)
        assert len(program.proportional) == 2
    program.pass_time(2)
    assert len(program.proportional) == 3


def test_onnxruntime_is_searched_for_when_the_memory_has_grown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program of less than a second is otherwise missed."""
    searched: list[int] = []
    runtime = LoadedRuntime("1.32.0", "onnxruntime")
    loaded: list[LoadedRuntime | None] = [None, runtime]

    def search(pid: int) -> LoadedRuntime | None:
        searched.append(pid)
        return loaded[len(searched) - 1]

    monkeypatch.setattr(unhooked_process, "loaded_runtime", search)
    process: Any = SimpleNamespace(pid=7, has_hook=False, runtime=None, early_runtime=None)
    process.searched_rss_bytes = 0
    # Python alone; onnxruntime is not loaded; little more; it is loaded; it is known.
    for mib, searches, early in (
        (5, 0, None),
        (20, 1, None),
        (25, 1, None),
        (60, 2, runtime),
        (400, 2, runtime),
    ):
        process.rss_bytes = mib * MIB
        find_runtime_if_grown(process)
        assert (len(searched), process.early_runtime) == (searches, early)
    assert process.runtime is None  # the hook may report it later
