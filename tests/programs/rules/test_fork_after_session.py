import pytest

from memdiag.records.run import InheritedSession, ProgramProcess, ProgramRun
from tests.programs.rules.records import findings, process, program, session

RULE = "fork-after-session"


def fork(pid: int = 11, *, run_count: int = 0, is_running: bool = False) -> ProgramProcess:
    inherited = InheritedSession(session=1, run_count=run_count, is_running=is_running)
    return process(pid, parent=10, forked_from=10, inherited=(inherited,))


@pytest.mark.parametrize(
    ("run", "message"),
    [
        pytest.param(
            program(session(), processes=(process(), fork(run_count=5))),
            "at least 5 runs there had one thread each",
            id="runs an inherited session",
        ),
        pytest.param(
            program(session(), processes=(process(), fork(is_running=True))),
            "1 run there started and did not end",
            id="hangs in an inherited session",
        ),
        pytest.param(
            program(session(), session(2, pid=11), processes=(process(), fork())),
            "it crashes or hangs when the session is destroyed",
            id="creates sessions of its own",
        ),
    ],
)
def test_a_fork_that_uses_onnxruntime(run: ProgramRun, message: str) -> None:
    (found,) = findings(RULE, run)
    assert found.sessions == (1,)
    assert found.bytes is None
    assert "process 11 is a fork of process 10" in found.message
    assert message in found.message
    assert "gunicorn without --preload" in found.remedy


@pytest.mark.parametrize(
    ("telemetry", "message"),
    [
        (True, "which does not exist in a fork: a fork that ends"),
        (None, "does not exist in a fork, unless ORT_DISABLE_TELEMETRY=1 was set: a fork"),
    ],
)
def test_telemetry_has_a_thread_even_if_sessions_have_none(
    telemetry: bool | None, message: str
) -> None:
    parent = process(onnxruntime="1.29.0", telemetry=telemetry)
    (found,) = findings(
        RULE, program(session(started_threads=0), processes=(parent, fork(run_count=5)))
    )
    assert found.sessions == (1,)
    assert message in found.message
    assert found.remedy.endswith(
        "or set both ORT_DISABLE_TELEMETRY=1 and intra_op_num_threads = 1."
    )


def test_workers_have_one_finding() -> None:
    forks = [fork(pid, run_count=2) for pid in (11, 12)]
    (found,) = findings(RULE, program(session(), processes=(process(), *forks)))
    assert "processes 11, 12 are forks of process 10" in found.message
    assert "at least 4 runs" in found.message


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(
            program(session(), processes=(process(), fork())), id="does not use onnxruntime"
        ),
        pytest.param(
            program(
                session(started_threads=0),
                processes=(process(telemetry=False), fork(run_count=5)),
            ),
            id="the session has no threads, and telemetry is off",
        ),
        pytest.param(
            program(
                session(started_threads=0),
                processes=(process(onnxruntime="1.28.1"), fork(run_count=5)),
            ),
            id="the session has no threads, and the release no telemetry",
        ),
        pytest.param(
            program(
                session(started_threads=0), processes=(process(onnxruntime=None), fork(run_count=5))
            ),
            id="the session has no threads, and the release is not known",
        ),
        pytest.param(
            program(session(started_threads=0), processes=(process(), fork())),
            id="telemetry is on, but the fork does not use onnxruntime",
        ),
        pytest.param(
            program(session(), session(2, pid=11), processes=(process(), process(11, parent=10))),
            id="spawned",
        ),
        pytest.param(
            program(
                session(), session(2, pid=11), processes=(process(), process(11, forked_from=10))
            ),
            id="forked before the session was created",
        ),
    ],
)
def test_a_safe_process(run: ProgramRun) -> None:
    assert findings(RULE, run) == []
