from typing import Any

import pytest

from memdiag.records.run import ProgramRun, ProgramSession
from tests.programs.rules.records import (
    MIB,
    WEIGHTS,
    findings,
    memory,
    model,
    never_run,
    program,
    runs,
    session,
)

RULE = "idle-session"


def test_a_session_that_stays_after_its_last_run() -> None:
    (found,) = findings(RULE, program(session(last_run_s=10.0)))
    assert found.sessions == (1,)
    assert found.bytes == WEIGHTS + MIB
    assert "stayed for 90 s after the last of 100 runs" in found.message
    assert "del session" in found.remedy


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(session(last_run_s=45.0), id="idle for less than a minute"),
        pytest.param(session(last_run_s=10.0, released_s=20.0), id="released"),
        pytest.param(never_run(), id="never ran"),
        pytest.param(session(last_run_s=10.0, memory=memory(10 * MIB)), id="small"),
    ],
)
def test_no_idle_session(other: ProgramSession) -> None:
    assert findings(RULE, program(other)) == []


def test_a_pause_shorter_than_the_work_is_no_end() -> None:
    worked = session(last_run_s=600.0)
    run = program(worked, duration_s=1000.0, processes=())
    assert findings(RULE, run) == []
    (found,) = findings(RULE, program(session(last_run_s=400.0), duration_s=1000.0, processes=()))
    assert "10 min 00 s" in found.message


def rarely_run(runs_beside: int, *, run_count: int = 3, **changes: Any) -> ProgramRun:
    """A program of 20 minutes whose first session ran rarely, until shortly before its end."""
    rare = session(shapes=(runs(run_count),), last_run_s=1190.0, **changes)
    busy = session(2, model=model("/m/busy.onnx"), shapes=(runs(runs_beside),), last_run_s=1199.0)
    return program(rare, busy, duration_s=1200.0, processes=())


def test_a_session_that_few_requests_need() -> None:
    (found,) = findings(RULE, rarely_run(1000))
    assert found.sessions == (1,)
    assert found.bytes == WEIGHTS + MIB
    assert "was in memory for 19 min 58 s for 3 runs" in found.message
    assert "Its creation took 500 ms" in found.message
    assert "when it is needed" in found.remedy


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(rarely_run(29), id="the other session did not run ten times as often"),
        pytest.param(rarely_run(1000, run_count=20), id="it ran once a minute"),
        pytest.param(rarely_run(1000, memory=memory(10 * MIB)), id="small"),
        pytest.param(rarely_run(1000, pid=11), id="the other session is in another process"),
    ],
)
def test_a_session_that_is_used_like_the_others(run: ProgramRun) -> None:
    assert findings(RULE, run) == []
