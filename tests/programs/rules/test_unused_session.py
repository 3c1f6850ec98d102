from memdiag.records.run import InheritedSession
from tests.programs.rules.cases import Case, assert_findings
from tests.programs.rules.records import MIB, WEIGHTS, model, never_run, process, program, session

RULE = "unused-session"
OTHER = session(2, model=model("/models/other.onnx"))
WORKERS = [never_run(pid, pid=pid, created_at="app.py:1") for pid in (3, 4)]
FORK = process(
    11,
    forked_from=10,
    inherited=(InheritedSession(session=1, run_count=3, is_running=False),),
)

CASES = {
    "never ran next to one that did": Case(
        program(never_run(created_s=95.0), OTHER), (1,), WEIGHTS + MIB, "never ran in the 4.5 s"
    ),
    "nothing ran for a minute": Case(program(never_run(created_s=30.0)), (1,), WEIGHTS + MIB),
    "workers have one finding": Case(
        program(*WORKERS, OTHER), (3, 4), 2 * (WEIGHTS + MIB), "2 sessions of m.onnx"
    ),
    "it ran": Case(program(session(), OTHER)),
    "created just before the end": Case(program(never_run(created_s=98.0), OTHER)),
    "nothing ran for less than a minute": Case(program(never_run(created_s=60.0))),
    "released": Case(program(never_run(released_s=50.0), OTHER)),
    "failed": Case(program(never_run(providers=(), error="bad"), OTHER)),
    "it ran in a fork": Case(program(never_run(), OTHER, processes=(process(), FORK))),
}


def test_findings() -> None:
    assert_findings(RULE, CASES)
