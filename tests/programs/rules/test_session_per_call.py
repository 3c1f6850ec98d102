import msgspec
import pytest

from memdiag.records.run import ProgramSession
from tests.programs.rules.records import MIB, WEIGHTS, findings, program, runs, session

RULE = "session-per-call"


def calls(
    count: int = 6, *, kept: bool = False, of_each: int = 1, period_s: float = 10.0
) -> list[ProgramSession]:
    """A session every `period_s`, which runs for a second; released unless it is kept."""
    return [
        session(
            number,
            created_at="app.py:7",
            created_s=period_s * number,
            shapes=[runs(of_each)],
            last_run_s=10.0 * number + 1,
            released_s=None if kept else 10.0 * number + 2,
        )
        for number in range(1, count + 1)
    ]


def test_released_sessions_cost_time() -> None:
    (found,) = findings(RULE, program(*calls()))
    assert found.sessions == (1, 2, 3, 4, 5, 6)
    assert found.bytes is None
    assert "6 sessions of m.onnx were created at app.py:7 in process 10" in found.message
    assert "creating them took 3.0 s, running them 6.0 ms" in found.message
    assert "alive" not in found.message


def test_calls_in_two_threads() -> None:
    second = [
        msgspec.structs.replace(each, number=each.number + 6, created_s=each.created_s + 0.1)
        for each in calls(of_each=10)
    ]
    (found,) = findings(RULE, program(*calls(of_each=10), *second))
    assert len(found.sessions) == 12


def test_kept_sessions_cost_memory() -> None:
    run = program(*calls(kept=True))
    (found,) = findings(RULE, run)
    assert found.bytes == 5 * (WEIGHTS + MIB)
    assert "6 of them were alive at the same time" in found.message
    assert findings("duplicate-session", run) == []


@pytest.mark.parametrize(
    "sessions",
    [
        pytest.param(calls(4), id="few sessions"),
        pytest.param(calls(of_each=11), id="many runs each"),
        pytest.param(calls(kept=True, period_s=0.1), id="a pool, created before its runs"),
        pytest.param(
            [*calls(2), *(session(i, created_at="app.py:7", created_s=90.0) for i in range(3, 7))],
            id="a pool after two calls",
        ),
    ],
)
def test_no_session_per_call(sessions: list[ProgramSession]) -> None:
    assert findings(RULE, program(*sessions)) == []
