import pytest

from memdiag.records.run import ProgramSession
from tests.programs.rules.records import (
    MIB,
    WEIGHTS,
    findings,
    memory,
    never_run,
    program,
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
