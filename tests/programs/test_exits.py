"""The ends of recorded processes: workers, and X-rays that take too long."""

import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from memdiag.api.run import run
from memdiag.programs import wait_notice
from memdiag.programs.recorded_process import RecordedProcess
from memdiag.programs.xrays import end_xrays, peak_xrays, xray_task
from memdiag.programs.xrays.xray_task import yield_attributions
from memdiag.records.attribution import Attribution
from memdiag.records.run import ProgramRun

WEIGHT_BYTES = 4 * 512 * 512

POOL = """
import multiprocessing, sys
import numpy as np
import onnxruntime

CREATE = lambda: onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])


def work(runs):
    session = CREATE()
    globals()["kept"] = session
    for _ in range(runs):
        session.run(None, {"x": np.ones((1, 512), np.float32)})


if __name__ == "__main__":
    mine = CREATE()
    for method in ("fork", "spawn"):
        pool = multiprocessing.get_context(method).Pool(1)
        pool.apply(work, (7,))
        pool.close()
        pool.join()
"""

SESSION = """
import sys, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
"""


STOPPED = f"""
{SESSION}
import os, signal, subprocess, time

def stop(*_):
    worker.wait()
    sys.exit(4)

worker = subprocess.Popen([sys.executable, "-c", {SESSION!r}, sys.argv[1]], stdin=subprocess.PIPE)
signal.signal(signal.SIGTERM, stop)
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(30)
"""


def record(
    folder: Path, program: str, model: Path, on_wait: Callable[[str], None] = lambda text: None
) -> ProgramRun:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(program))
    return run([sys.executable, str(path), str(model)], on_wait=on_wait)


def slow_xray(*_: Any) -> Iterator[tuple[list[str], Attribution]]:
    time.sleep(60)
    yield from ()


def first_result(*arguments: Any) -> Iterator[tuple[list[str], Attribution]]:
    """Yield the first result of an X-ray, whose next one takes long."""
    yield next(yield_attributions(*arguments))
    time.sleep(60)


Limits = Callable[..., None]


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Limits:
    """Return a function that replaces X-rays, and the limits of the time that they take.

    X-rays are taken by forks of this process, which have the same stand-in.
    """
    modules = {"PEAK_LASTS_S": peak_xrays, "MAX_XRAY_SHARE": peak_xrays, "NOTICE_S": wait_notice}

    def replace(xray: Callable[..., object] = slow_xray, **seconds: float) -> None:
        monkeypatch.setattr(xray_task, "yield_attributions", xray)
        for name, limit in {"PEAK_LASTS_S": 60.0, **seconds}.items():
            monkeypatch.setattr(modules.get(name, end_xrays), name, limit)

    return replace


def wait_lengths(recording: ProgramRun) -> list[float]:
    lengths = [end_s - start_s for start_s, end_s in recording.end_waits]
    assert sum(lengths) == pytest.approx(recording.end_xrays_s, abs=1e-3)
    return lengths


def test_workers_have_an_xray_of_their_end(tmp_path: Path, linear_model: Path) -> None:
    recording = record(tmp_path, POOL, linear_model)
    assert recording.exit_code == 0
    assert recording.notes == ()
    assert [session.run_count for session in recording.sessions] == [0, 7, 7]
    pids = [session.pid for session in recording.sessions]
    assert len(set(pids)) == 3
    assert sorted(xray.pid for xray in recording.xrays if xray.reason == "end") == sorted(pids)
    assert all(session.memory is not None for session in recording.sessions)


RELEASED = SESSION + "kept = bytearray(64 << 20)\ndel session\n"


def test_released_sessions_are_the_reason_of_no_xray(tmp_path: Path, linear_model: Path) -> None:
    recording = record(tmp_path, RELEASED, linear_model)
    assert recording.xrays == ()
    (note,) = recording.notes
    sizes = re.search(r"was (\d+) MiB before .* created, and (\d+) MiB at its end", note)
    assert sizes is not None
    assert int(sizes[2]) - int(sizes[1]) >= 64


def test_another_session_is_the_reason_of_an_xray(tmp_path: Path, linear_model: Path) -> None:
    texts: list[str] = []
    program = RELEASED + SESSION.replace("session =", "another =")
    recording = record(tmp_path, program, linear_model, on_wait=texts.append)
    assert recording.notes == ()
    assert recording.end_xrays_s > 1 or texts == []
    (end,) = recording.xrays
    assert end.duration_s is not None
    assert 0 < end.duration_s <= recording.end_xrays_s <= recording.duration_s - end.t_s


def test_a_process_waits_for_its_xray_no_longer_than_the_limit(
    tmp_path: Path, linear_model: Path, limits: Limits
) -> None:
    limits(MAX_END_XRAY_S=0.3)
    recording = record(tmp_path, SESSION, linear_model)
    assert recording.exit_code == 0
    assert recording.xrays == ()
    assert recording.duration_s < 30
    assert 0.3 <= recording.end_xrays_s < 30
    (note,) = recording.notes
    assert "no X-ray of its end" in note


def test_a_program_that_was_told_to_stop_waits_less(
    tmp_path: Path, linear_model: Path, limits: Limits
) -> None:
    limits(MAX_STOPPED_XRAY_S=2.0, NOTICE_S=0.1)
    texts: list[str] = []
    recording = record(tmp_path, STOPPED, linear_model, on_wait=texts.append)
    assert recording.exit_code == 4
    limit = "the limit of 2 s for all X-rays since the program was told to stop"
    assert [limit in note for note in recording.notes] == [True, True]
    # One after the other, they waited for the limit in all.
    assert [length >= 2.0 for length in wait_lengths(recording)] == [True, False]
    (text,) = texts
    assert text.startswith("waiting for X-rays at the end of 1 process, 2 s at most")


HANDLES_SIGTERM = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: None)
"""


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_process_that_handles_sigterm_waits_less(
    is_kept: bool,
    tmp_path: Path,
    linear_model: Path,
    limits: Limits,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits(MAX_STOPPED_XRAY_S=0.5)
    seen = tmp_path / "seen"
    read_signals = RecordedProcess.read_signals

    def read_and_tell(process: RecordedProcess) -> None:
        read_signals(process)
        if process.handles_sigterm:
            seen.touch()

    monkeypatch.setattr(RecordedProcess, "read_signals", read_and_tell)
    removed = f"""
while not os.path.exists({str(seen)!r}): time.sleep(0.01)
signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as asyncio does at the end
"""
    program = HANDLES_SIGTERM + SESSION + ("" if is_kept else removed)
    recording = record(tmp_path, program, linear_model)
    (note,) = recording.notes
    assert "the limit of 0 s for X-rays of processes that handle SIGTERM has passed" in note
    assert 0.5 <= recording.end_xrays_s < 15  # without the limit 20


WORKERS = f"""
{SESSION}
import subprocess
for _ in range(2):
    subprocess.run([sys.executable, "-c", {HANDLES_SIGTERM + SESSION!r}, sys.argv[1]])
"""


@pytest.mark.parametrize(("new_stop_s", "waits"), [(30.0, 1), (0.0, 2)])
def test_workers_that_end_at_one_stop_wait_for_the_limit_in_all(
    new_stop_s: float, waits: int, tmp_path: Path, linear_model: Path, limits: Limits
) -> None:
    limits(NEW_STOP_S=new_stop_s, MAX_STOPPED_XRAY_S=3.0, MAX_END_XRAY_S=0.1)
    lengths = wait_lengths(record(tmp_path, WORKERS, linear_model))
    assert len(lengths) == 3  # the last is of the program itself, which has no handler
    assert [length >= 3.0 for length in lengths[:2]] == [True, waits == 2]


def test_the_first_result_of_an_xray_that_takes_long_is_kept(
    tmp_path: Path, linear_model: Path, limits: Limits
) -> None:
    limits(first_result, MAX_END_XRAY_S=10)
    recording = record(tmp_path, SESSION, linear_model)
    (note,) = recording.notes
    assert "its X-ray was ended after 10 s, before weights were searched for" in note
    assert recording.duration_s < 30
    (memory,) = [session.memory for session in recording.sessions]
    assert memory is not None
    assert memory.weight_bytes == WEIGHT_BYTES


def test_an_xray_at_a_peak_ends_with_its_process(
    tmp_path: Path, linear_model: Path, limits: Limits
) -> None:
    read = tmp_path / "read"

    def tell_after_first_result(*arguments: Any) -> Iterator[tuple[list[str], Attribution]]:
        yield next(yield_attributions(*arguments))
        read.touch()
        time.sleep(60)

    limits(tell_after_first_result, PEAK_LASTS_S=0.2, MAX_XRAY_SHARE=1.0)
    end = f"while not os.path.exists({str(read)!r}): time.sleep(0.05)\nos._exit(0)\n"
    recording = record(tmp_path, f"{SESSION}import os, time\n{end}", linear_model)
    assert recording.duration_s < 40
    assert [xray.reason for xray in recording.xrays] == ["peak"]
    assert recording.sessions[0].memory is not None


def test_an_xray_at_a_peak_gives_way_to_that_of_the_end(
    tmp_path: Path, linear_model: Path, limits: Limits
) -> None:
    started = tmp_path / "started"

    def slow_at_first(*arguments: Any) -> Iterator[tuple[list[str], Attribution]]:
        if not started.exists():
            started.touch()
            time.sleep(60)
        yield from yield_attributions(*arguments)

    limits(slow_at_first, PEAK_LASTS_S=0.2, MAX_XRAY_SHARE=1.0)
    end = f"while not os.path.exists({str(started)!r}): time.sleep(0.05)\n"
    recording = record(tmp_path, f"{SESSION}import os, time\n{end}", linear_model)
    assert recording.duration_s < 40
    assert [xray.reason for xray in recording.xrays] == ["end"]
    assert recording.notes == ()


FORKS = """
import multiprocessing, os, sys
import numpy as np
import onnxruntime


def create():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # a fork has no threads of its parent
    return onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])


def run(session, runs):
    for _ in range(runs):
        session.run(None, {"x": np.ones((1, 512), np.float32)})


def grandchild(own):
    run(inherited, 4)
    run(own, 6)


def child():
    global own  # alive at the end
    run(inherited, 3)
    own = create()
    run(own, 2)
    process = context.Process(target=grandchild, args=(own,))
    process.start()
    process.join()
    run(own, 1)


context = multiprocessing.get_context("fork")
inherited = create()
run(inherited, 1)
process = context.Process(target=child)
process.start()
process.join()
for is_gone in (True, False):
    if not os.fork():
        if is_gone:
            run(inherited, 1)
            os._exit(0)
        sys.exit()  # idle
    os.wait()
run(inherited, 1)
"""


def test_forked_processes_run_the_sessions_that_they_inherit(
    tmp_path: Path, linear_model: Path
) -> None:
    recording = record(tmp_path, FORKS, linear_model)
    assert recording.exit_code == 0
    parent, child, grandchild, gone, idle = recording.processes
    forked_from = [process.forked_from for process in (child, grandchild, gone, idle)]
    assert forked_from == [parent.pid, child.pid, parent.pid, parent.pid]
    counts = [
        {inherited.session: inherited.run_count for inherited in process.inherited}
        for process in recording.processes
    ]
    assert counts == [{}, {1: 3}, {1: 4, 2: 6}, {1: 1}, {1: 0}]
    # Each session is recorded once, where it was created.
    assert [session.pid for session in recording.sessions] == [parent.pid, child.pid]
    assert [session.run_count for session in recording.sessions] == [2, 3]
    assert [session.forked_run_count for session in recording.sessions] == [8, 6]
    for session in recording.sessions:
        assert session.forked_last_run_s is not None
        assert session.latest_run_s == max(session.last_run_s or 0, session.forked_last_run_s)
        # The copy of the inherited session in the child is not counted to the child's own session.
        assert session.memory is not None
        assert session.memory.weight_bytes == WEIGHT_BYTES
    # An idle fork shares all with its parent, so it has no X-ray.
    assert [xray.pid for xray in recording.xrays] == [grandchild.pid, child.pid, parent.pid]
    copies = [copy.resident_bytes for copy in recording.xrays[0].attribution.copies]
    assert sum(copies) >= WEIGHT_BYTES
    (note,) = recording.notes
    assert note.startswith(f"no X-ray at the end of process {gone.pid}: it ended without")
    assert recording.findings == ()
