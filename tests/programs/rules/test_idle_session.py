from typing import Any

from memdiag.records.run import ProgramRun
from tests.programs.rules.cases import Case, assert_findings
from tests.programs.rules.records import (
    MIB,
    WEIGHTS,
    memory,
    model,
    never_run,
    program,
    runs,
    session,
)

RULE = "idle-session"
SMALL = memory(10 * MIB)


def ended_runs(last_run_s: float) -> ProgramRun:
    """Return a program of 1000 s whose session ran until `last_run_s`."""
    return program(session(last_run_s=last_run_s), duration_s=1000.0, processes=())


def rarely_run(runs_beside: int, *, run_count: int = 3, **changes: Any) -> ProgramRun:
    """A program of 20 minutes whose first session ran rarely, until shortly before its end."""
    rare = session(shapes=(runs(run_count),), last_run_s=1190.0, **changes)
    busy = session(2, model=model("/m/busy.onnx"), shapes=(runs(runs_beside),), last_run_s=1199.0)
    return program(rare, busy, duration_s=1200.0, processes=())


CASES = {
    "stays after its last run": Case(
        program(session(last_run_s=10.0)), (1,), WEIGHTS + MIB, "stayed for 90 s after the last"
    ),
    "idle for longer than the work": Case(
        ended_runs(400.0), (1,), WEIGHTS + MIB, "stayed for 10 min 00 s"
    ),
    "a pause shorter than the work is no end": Case(ended_runs(600.0)),
    "idle for less than a minute": Case(program(session(last_run_s=45.0))),
    "released": Case(program(session(last_run_s=10.0, released_s=20.0))),
    "never ran": Case(program(never_run())),
    "small": Case(program(session(last_run_s=10.0, memory=SMALL))),
    "few requests need it": Case(
        rarely_run(1000), (1,), WEIGHTS + MIB, "in memory for 19 min 58 s for 3 runs"
    ),
    "the other session did not run ten times as often": Case(rarely_run(29)),
    "it ran once a minute": Case(rarely_run(1000, run_count=20)),
    "few requests need a small one": Case(rarely_run(1000, memory=SMALL)),
    "the other session is in another process": Case(rarely_run(1000, pid=11)),
}


def test_findings() -> None:
    assert_findings(RULE, CASES)
