from typing import Any

from memdiag.records.run import ProgramRun, ProgramSession
from tests.programs.rules.cases import Case, assert_findings
from tests.programs.rules.records import model, process, program, session

RULE = "threads-beyond-cpus"
OPENVINO = ("OpenVINOExecutionProvider", "CPUExecutionProvider")
EIGHT = tuple(range(1, 9))


def on_cpus(allowed: float | None, *sessions: ProgramSession, **changes: Any) -> ProgramRun:
    pids = dict.fromkeys(each.pid for each in sessions)
    processes = tuple(process(pid, cpus_allowed=allowed, **changes) for pid in pids)
    return program(*sessions, processes=processes)


def models(count: int, **changes: Any) -> list[ProgramSession]:
    return [session(i, model=model(f"/m/{i}.onnx"), **changes) for i in range(1, count + 1)]


def called(count: int, callers: int, **changes: Any) -> Case:
    """Return sessions on 2 CPUs that `callers` threads call."""
    sessions = models(count, run_threads=callers, **changes)
    return Case(on_cpus(2.0, *sessions), tuple(range(1, count + 1)))


def following(*threads: int) -> list[ProgramSession]:
    """Return sessions that follow each other with `threads` each."""
    return [
        session(
            number,
            model=model(f"/m/{number}.onnx"),
            created_s=10.0 * number,
            last_run_s=10.0 * number + 4,
            released_s=10.0 * number + 5,
            intra_op_threads=count,
            started_threads=count - 1,
        )
        for number, count in enumerate(threads, 1)
    ]


CASES = {
    "the default on a machine with more cores": Case(
        on_cpus(2.0, *models(3, started_threads=15)),
        (1, 2, 3),
        says="work with 46 threads (45 of their own, 1 calls run()), of which up to 16",
    ),
    "a session that was released as soon as it had run": Case(
        on_cpus(2.0, session(created_s=1.0, creation_s=0.2, released_s=1.2, started_threads=15)),
        (1,),
        says="1 session (m.onnx) works with 16 threads",
    ),
    "an older release, which does not read the variable": Case(
        on_cpus(0.5, session(), onnxruntime="1.24.4"), (1,), says="use onnxruntime 1.31 or newer"
    ),
    "threads that the program chose": Case(
        on_cpus(4.0, session(intra_op_threads=8, started_threads=7)), (1,)
    ),
    "callers of all sessions count once": Case(
        on_cpus(1.0, *models(3, intra_op_threads=4, started_threads=None, run_threads=2)),
        (1, 2, 3),
        says="work with 11 threads (9 of their own, 2 call run()), of which up to 4",
    ),
    "threads that were counted, not those that were expected": Case(
        on_cpus(1.0, *models(3, intra_op_threads=4, started_threads=0)),
        (1, 2, 3),
        says="work with 1 thread (0 of their own",
    ),
    "many small pools": Case(
        on_cpus(2.0, *models(8)), EIGHT, says="set_global_thread_pool_sizes(2, 1)"
    ),
    "many small pools of an old release": Case(
        on_cpus(2.0, *models(8), onnxruntime="1.22.1"), EIGHT, says="create fewer sessions"
    ),
    "many callers of a session without a pool": called(
        1, 16, intra_op_threads=1, started_threads=0
    ),
    "many callers of a session with a pool": called(1, 16, intra_op_threads=2),
    "one caller of many pools": called(8, 1, intra_op_threads=2),
    "many callers of many pools": called(8, 8, intra_op_threads=2),
    "many callers of a large pool": called(1, 8, intra_op_threads=8, started_threads=7),
    "sessions of other times with as many threads": Case(
        on_cpus(2.0, *following(8, 6, 1)), (1,), says="At other times it is the same with 2.onnx."
    ),
    "workers have one finding": Case(
        on_cpus(1.0, *[session(pid, pid=pid) for pid in (1, 2, 3, 4)]), (1, 2, 3, 4)
    ),
    "sessions that take turns": Case(on_cpus(2.0, *models(7))),
    "a pool of two callers for each CPU": Case(on_cpus(2.0, session(run_threads=4))),
    "a fraction is rounded up": Case(on_cpus(1.5, session())),
    "the limit is unknown": Case(on_cpus(None, session(started_threads=63))),
    "the threads are unknown": Case(on_cpus(2.0, session(started_threads=None))),
    "threads of a provider": Case(on_cpus(2.0, session(started_threads=30, providers=OPENVINO))),
    "sessions that follow each other": Case(on_cpus(2.0, *following(*[2] * 8))),
}


def test_findings() -> None:
    assert_findings(RULE, CASES)
