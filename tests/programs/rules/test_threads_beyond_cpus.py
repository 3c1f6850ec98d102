from typing import Any

import pytest

from memdiag.records.run import ProgramFinding, ProgramSession
from tests.programs.rules.records import findings, model, process, program, session

RULE = "threads-beyond-cpus"
OPENVINO = ("OpenVINOExecutionProvider", "CPUExecutionProvider")


def on_cpus(
    allowed: float | None, *sessions: ProgramSession, **changes: Any
) -> list[ProgramFinding]:
    pids = dict.fromkeys(each.pid for each in sessions)
    processes = tuple(process(pid, cpus_allowed=allowed, **changes) for pid in pids)
    return findings(RULE, program(*sessions, processes=processes))


def models(count: int, **changes: Any) -> list[ProgramSession]:
    return [session(i, model=model(f"/m/{i}.onnx"), **changes) for i in range(1, count + 1)]


def test_the_default_on_a_machine_with_more_cores() -> None:
    (found,) = on_cpus(2.0, *models(3, started_threads=15))
    assert found.sessions == (1, 2, 3)
    assert found.bytes is None
    assert "process 10 may use 2 CPUs, and 3 sessions (1.onnx, 2.onnx, 3.onnx)" in found.message
    assert (
        "work with 46 threads (45 of their own, 1 calls run()), of which up to 16 work on one run."
        in found.message
    )
    assert "intra_op_num_threads to 2" in found.remedy
    assert "set ORT_INTRA_OP_NUM_THREADS=2" in found.remedy


def test_a_session_that_was_released_as_soon_as_it_had_run() -> None:
    (found,) = on_cpus(
        2.0, session(created_s=1.0, creation_s=0.2, released_s=1.2, started_threads=15)
    )
    assert "1 session (m.onnx) works with 16 threads" in found.message


def test_older_releases_do_not_read_the_variable() -> None:
    (found,) = on_cpus(0.5, session(), onnxruntime="1.24.4")
    assert (
        "may use 0.5 CPUs, and 1 session (m.onnx) works with 2 threads (1 of its own,"
        in found.message
    )
    assert "use onnxruntime 1.31 or newer (this is 1.24.4)" in found.remedy


def test_threads_that_the_program_chose() -> None:
    (found,) = on_cpus(4.0, session(intra_op_threads=8, started_threads=7))
    assert "By default" not in found.message
    assert "ORT_INTRA_OP_NUM_THREADS" not in found.remedy


def test_callers_count_once_for_all_sessions() -> None:
    (found,) = on_cpus(1.0, *models(3, intra_op_threads=4, started_threads=None, run_threads=2))
    assert "work with 11 threads (9 of their own, 2 call run()), of which up to 4" in found.message


def test_threads_that_were_counted_replace_those_that_were_expected() -> None:
    (found,) = on_cpus(1.0, *models(3, intra_op_threads=4, started_threads=0))
    assert "work with 1 thread (0 of their own" in found.message


def test_many_small_pools() -> None:
    (found,) = on_cpus(2.0, *models(8))
    assert "8 sessions" in found.message
    assert "work with 9 threads (8 of their own, 1 calls run()), of which up to 2" in found.message
    assert "onnxruntime.set_global_thread_pool_sizes(2, 1)" in found.remedy
    (found,) = on_cpus(2.0, *models(8), onnxruntime="1.22.1")
    assert "create fewer sessions" in found.remedy


@pytest.mark.parametrize(
    ("session_changes", "callers", "advised"),
    [
        # A session with one thread has no pool to share.
        ({"intra_op_threads": 1, "started_threads": 0}, 16, ["from a pool of 2 threads"]),
        ({"intra_op_threads": 2}, 16, ["from a pool of 2 threads"]),
        ({"intra_op_threads": 2}, 1, ["set_global_thread_pool_sizes(2, 1)"]),
        (
            {"intra_op_threads": 2},
            8,
            ["from a pool of 2 threads", "set_global_thread_pool_sizes(2, 1)"],
        ),
    ],
)
def test_advice_lowers_what_is_many(
    session_changes: dict[str, Any], callers: int, advised: list[str]
) -> None:
    count = 1 if callers == 16 else 8
    (found,) = on_cpus(2.0, *models(count, run_threads=callers, **session_changes))
    every = {"from a pool of 2 threads", "set_global_thread_pool_sizes(2, 1)"}
    assert [text in found.remedy for text in sorted(every)] == [
        text in advised for text in sorted(every)
    ]


@pytest.mark.parametrize("threads", [1, 8])
def test_many_callers_are_told_first_whatever_the_threads_of_a_run(threads: int) -> None:
    pool = session(intra_op_threads=threads, started_threads=threads - 1, run_threads=8)
    (found,) = on_cpus(2.0, pool)
    assert found.remedy.startswith("Call run() from a pool of 2 threads")
    assert ("hardly less memory" in found.remedy) == (threads > 2)


def test_sessions_of_other_times_are_named_if_they_have_as_many_threads() -> None:
    first, second, third = (
        session(
            number,
            model=model(f"/m/{number}.onnx"),
            created_s=10.0 * number,
            last_run_s=10.0 * number + 4,
            released_s=10.0 * number + 5,
            intra_op_threads=threads,
            started_threads=threads - 1,
        )
        for number, threads in ((1, 8), (2, 6), (3, 1))
    )
    (found,) = on_cpus(2.0, first, second, third)
    assert "1 session (1.onnx) works with 8 threads" in found.message
    assert found.message.endswith("At other times it is the same with 2.onnx.")


def test_workers_have_one_finding() -> None:
    (found,) = on_cpus(1.0, *[session(i, pid=i) for i in (1, 2, 3, 4)])
    assert found.message.startswith("processes 1, 2, 3 and 1 more may use 1 CPU,")


@pytest.mark.parametrize(
    ("allowed", "sessions"),
    [
        pytest.param(2.0, models(7), id="sessions that take turns"),
        pytest.param(2.0, [session(run_threads=4)], id="a pool of two callers for each CPU"),
        pytest.param(1.5, [session()], id="a fraction is rounded up"),
        pytest.param(None, [session(started_threads=63)], id="the limit is unknown"),
        pytest.param(2.0, [session(started_threads=None)], id="the threads are unknown"),
        pytest.param(
            2.0, [session(started_threads=30, providers=OPENVINO)], id="threads of a provider"
        ),
        pytest.param(
            2.0,
            [
                session(i, created_s=10.0 * i, last_run_s=10.0 * i, released_s=10.0 * i + 5)
                for i in range(1, 9)
            ],
            id="sessions that follow each other",
        ),
    ],
)
def test_enough_cpus(allowed: float | None, sessions: list[ProgramSession]) -> None:
    assert on_cpus(allowed, *sessions) == []
