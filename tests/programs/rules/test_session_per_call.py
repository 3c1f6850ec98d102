import msgspec

from memdiag.records.run import ProgramSession
from tests.programs.rules.cases import Case, assert_findings
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


SECOND_THREAD = [
    msgspec.structs.replace(call, number=call.number + 6, created_s=call.created_s + 0.1)
    for call in calls(of_each=10)
]
POOL = [session(number, created_at="app.py:7", created_s=90.0) for number in range(3, 7)]

CASES = {
    "released sessions cost time": Case(program(*calls()), (1, 2, 3, 4, 5, 6)),
    "kept sessions cost memory": Case(
        program(*calls(kept=True)), (1, 2, 3, 4, 5, 6), 5 * (WEIGHTS + MIB), "6 of them were alive"
    ),
    "calls in two threads, two alive at a time": Case(
        program(*calls(of_each=10), *SECOND_THREAD), tuple(range(1, 13)), WEIGHTS + MIB
    ),
    "few sessions": Case(program(*calls(4))),
    "many runs each": Case(program(*calls(of_each=11))),
    "a pool, created before its runs": Case(program(*calls(kept=True, period_s=0.1))),
    "a pool after two calls": Case(program(*calls(2), *POOL)),
}


def test_kept_sessions_of_calls_are_no_duplicates() -> None:
    assert findings("duplicate-session", program(*calls(kept=True))) == []


def test_findings() -> None:
    assert_findings(RULE, CASES)
