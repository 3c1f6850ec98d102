from typing import Any

from memdiag.records.run import InheritedSession, ProgramProcess, ProgramRun
from tests.programs.rules.cases import Case, assert_findings
from tests.programs.rules.records import process, program, session

RULE = "fork-after-session"


def fork(pid: int = 11, *, run_count: int = 0, is_running: bool = False) -> ProgramProcess:
    inherited = InheritedSession(session=1, run_count=run_count, is_running=is_running)
    return process(pid, parent=10, forked_from=10, inherited=(inherited,))


def forked(*forks: ProgramProcess) -> ProgramRun:
    return program(session(), processes=(process(), *forks))


def without_threads(run_count: int = 5, **parent: Any) -> ProgramRun:
    """Return a fork of a process whose session has no threads."""
    processes = (process(**parent), fork(run_count=run_count))
    return program(session(started_threads=0), processes=processes)


def with_session_of_child(child: ProgramProcess) -> ProgramRun:
    return program(session(), session(2, pid=11), processes=(process(), child))


CASES = {
    "runs an inherited session": Case(forked(fork(run_count=5)), (1,), says="at least 5 runs"),
    "hangs in an inherited session": Case(
        forked(fork(is_running=True)), (1,), says="1 run there started and did not end"
    ),
    "creates sessions of its own": Case(
        with_session_of_child(fork()), (1,), says="crashes or hangs when the session is destroyed"
    ),
    "telemetry has a thread": Case(
        without_threads(onnxruntime="1.29.0", telemetry=True), (1,), says="ORT_DISABLE_TELEMETRY=1"
    ),
    "telemetry may have a thread": Case(
        without_threads(onnxruntime="1.29.0", telemetry=None),
        (1,),
        says="unless ORT_DISABLE_TELEMETRY=1 was set",
    ),
    "two workers": Case(
        forked(fork(11, run_count=2), fork(12, run_count=2)), (1,), says="at least 4 runs"
    ),
    "does not use onnxruntime": Case(forked(fork())),
    "no threads, and telemetry is off": Case(without_threads(telemetry=False)),
    "no threads, and the release has no telemetry": Case(without_threads(onnxruntime="1.28.1")),
    "no threads, and the release is not known": Case(without_threads(onnxruntime=None)),
    "telemetry is on, but the fork does not use onnxruntime": Case(without_threads(run_count=0)),
    "spawned": Case(with_session_of_child(process(11, parent=10))),
    "forked before the session was created": Case(
        with_session_of_child(process(11, forked_from=10))
    ),
}


def test_findings() -> None:
    assert_findings(RULE, CASES)
