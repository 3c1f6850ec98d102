"""X-rays of processes that end while they are read."""

import os
import selectors
from types import SimpleNamespace
from typing import Any, cast

import pytest

from memdiag.programs.recorded_process import RecordedProcess
from memdiag.programs.recorded_program import RecordedProgram
from memdiag.programs.recorded_session import RecordedSession
from memdiag.programs.xrays import xray_task
from memdiag.programs.xrays.process_xrays import ProcessXrays
from memdiag.records.attribution import Attribution
from memdiag.records.run import SessionMemory
from tests.program_records import attribution
from tests.programs.rules.records import MIB, copy, memory


class Task:
    """An X-ray whose result is there at once."""

    found: Attribution
    reading: int

    def __init__(self, pid: int, sessions: list[RecordedSession], *_: object, **__: object) -> None:
        self.pid = pid
        self.sessions = tuple(sessions)
        self.reading, writing = os.pipe()
        os.close(writing)

    has_result = False

    def read(self) -> bool:
        return False

    def interrupt(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        os.close(self.reading)

    def result(self) -> tuple[list[str], Attribution]:
        os.close(self.reading)
        return ["m"], self.found


def xray_at_end(
    monkeypatch: pytest.MonkeyPatch, found: Attribution, before: SessionMemory | None
) -> tuple[RecordedProgram, ProcessXrays, RecordedSession]:
    """Take an X-ray with the result `found` of a process with a session."""
    monkeypatch.setattr(Task, "found", found, raising=False)
    monkeypatch.setattr(xray_task, "ProcessXrayTask", Task)
    program = RecordedProgram()
    process = cast(RecordedProcess, SimpleNamespace(pid=7, unrecorded=False))
    session: Any = SimpleNamespace(
        number=1, model_key="m", kept_bytes=range(0), memory=before, process=process
    )
    process.__dict__.update(live_sessions=[session], inherited_sessions=[])
    program.processes.append(process)
    with selectors.DefaultSelector() as selector:
        xrays = ProcessXrays(program, selector)
        done: list[int] = []
        xrays.start(process, "end", lambda: done.append(1))
        for key, _ in selector.select(0):
            key.data(key.fileobj)
        assert done == [1]
        xrays.close()
    return program, xrays, session


def test_the_xray_of_a_process_that_ended_meanwhile_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would state that the sessions have no weights."""
    before = memory(86 * MIB)
    for earlier in (None, before):
        found = attribution(7, (), (), resident_bytes=0, partial=True)
        program, xrays, session = xray_at_end(monkeypatch, found, earlier)
        assert program.xrays == []
        assert session.memory == earlier
        assert xrays.incomplete == {7}
        assert program.notes == [
            "process 7: no X-ray of its end: the process ended while its memory was read"
        ]


def test_the_xray_of_a_process_that_waited_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    found = attribution(7, (), (), resident_bytes=0, copies=(copy("w", 1 << 30),))
    program, xrays, session = xray_at_end(monkeypatch, found, None)
    assert [xray.reason for xray in program.xrays] == ["end"]
    assert session.memory is not None
    assert session.memory.weight_bytes == 10 * MIB
    assert not xrays.incomplete
    assert not program.notes


@pytest.mark.parametrize("has_result", [True, False])
def test_the_xray_of_a_process_that_ended_is_ended_if_it_has_a_result(
    monkeypatch: pytest.MonkeyPatch, has_result: bool
) -> None:
    monkeypatch.setattr(Task, "has_result", has_result)
    monkeypatch.setattr(xray_task, "ProcessXrayTask", Task)
    process: Any = SimpleNamespace(pid=7, live_sessions=[], inherited_sessions=[])
    ended: list[Any] = []
    with selectors.DefaultSelector() as selector:
        xrays = ProcessXrays(RecordedProgram(), selector)
        monkeypatch.setattr(xrays, "interrupt", ended.append)
        task = xrays.start(process, "peak", lambda: None)
        xrays.process_ended(process)
        xrays.close()
    assert ended == ([task] if has_result else [])
