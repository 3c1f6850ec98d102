import pytest

from memdiag.records.run import InheritedSession, ProgramRun
from tests.programs.rules.records import (
    MIB,
    WEIGHTS,
    findings,
    model,
    never_run,
    process,
    program,
    session,
)

RULE = "unused-session"
OTHER = session(2, model=model("/models/other.onnx"))


def test_a_session_that_never_ran_beside_one_that_did() -> None:
    (found,) = findings(RULE, program(never_run(created_s=95.0), OTHER))
    assert found.sessions == (1,)
    assert found.bytes == WEIGHTS + MIB
    assert "m.onnx, created at app.py:1 in process 10, never ran in the 4.5 s" in found.message


def test_nothing_ran_for_a_minute() -> None:
    (found,) = findings(RULE, program(never_run(created_s=30.0)))
    assert found.sessions == (1,)


def test_sessions_of_all_workers_have_one_finding() -> None:
    workers = [never_run(i, pid=i, created_at="app.py:1") for i in (3, 4)]
    (found,) = findings(RULE, program(*workers, OTHER))
    assert found.sessions == (3, 4)
    assert "2 sessions of m.onnx, created at app.py:1 in processes 3, 4" in found.message


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(program(session(), OTHER), id="it ran"),
        pytest.param(program(never_run(created_s=98.0), OTHER), id="created just before the end"),
        pytest.param(program(never_run(created_s=60.0)), id="nothing ran for less than a minute"),
        pytest.param(program(never_run(released_s=50.0), OTHER), id="released"),
        pytest.param(program(never_run(providers=(), error="bad"), OTHER), id="failed"),
        pytest.param(
            program(
                never_run(),
                OTHER,
                processes=(
                    process(),
                    process(
                        11,
                        forked_from=10,
                        inherited=(InheritedSession(session=1, run_count=3, is_running=False),),
                    ),
                ),
            ),
            id="it ran in a fork",
        ),
    ],
)
def test_no_unused_session(run: ProgramRun) -> None:
    assert findings(RULE, run) == []
