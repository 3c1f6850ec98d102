import pytest

from memdiag.records.run import HighWaterRun, ProgramFinding, ProgramRun
from tests.programs.rules import records
from tests.programs.rules.records import MIB, PID, memory, process, program, runs, session, xray


def findings(run: ProgramRun) -> list[ProgramFinding]:
    return records.findings("arena-slack", run)


def test_the_slack_of_all_arenas() -> None:
    sessions = [
        session(1, memory=memory(slack=30 * MIB)),
        session(2, memory=memory(slack=50 * MIB, reserved=70 * MIB)),
    ]
    run = program(*sessions, xrays=(xray(PID, slack=80 * MIB, reserved=100 * MIB),))
    (found,) = findings(run)
    assert found.bytes == 80 * MIB
    assert found.sessions == (1, 2)
    assert "80 MiB (of 100 MiB reserved addresses) in process 10 are free space in" in found.message
    assert "session 2 (m.onnx) 50 MiB, session 1 (m.onnx) 30 MiB" in found.message
    assert 'add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")' in found.remedy


@pytest.mark.parametrize(
    ("pids", "options", "is_advised"),
    [
        ((PID, PID), {}, True),
        ((PID, PID + 1), {}, False),  # in two processes
        ((PID,), {}, False),
        ((PID, PID), {"session.use_env_allocators": "1"}, False),
    ],
)
def test_sessions_of_a_process_can_share_one_arena(
    pids: tuple[int, ...], options: dict[str, str], is_advised: bool
) -> None:
    sessions = [
        session(number, pid=pid, memory=memory(slack=40 * MIB), options=options)
        for number, pid in enumerate(pids, 1)
    ]
    xrays = tuple(xray(pid, slack=40 * MIB * pids.count(pid)) for pid in dict.fromkeys(pids))
    processes = tuple(process(pid) for pid in dict.fromkeys(pids))
    (found,) = findings(program(*sessions, processes=processes, xrays=xrays))
    assert ("onnxruntime.create_and_register_allocator(" in found.remedy) == is_advised
    assert "enable_cpu_mem_arena=False" in found.remedy


@pytest.mark.parametrize(
    ("slack", "run_threads", "is_advised"),
    [
        ((50, 30, 10), 1, True),
        ((136, 6, 3), 1, False),  # hardly any is in the other arenas
        ((50, 30, 10), 2, False),  # their runs overlapped
    ],
)
def test_one_arena_is_advised_if_it_saves_much(
    slack: tuple[int, ...], run_threads: int, *, is_advised: bool
) -> None:
    sessions = [
        session(number, memory=memory(slack=size * MIB), run_threads=run_threads)
        for number, size in enumerate(slack, 1)
    ]
    (found,) = findings(program(*sessions, xrays=(xray(PID, slack=sum(slack) * MIB),)))
    assert found.remedy.startswith("Let the sessions of a process share" * is_advised or "Let runs")


def test_a_process_without_recorded_sessions_has_arenas_too() -> None:
    run = program(processes=(process(),), xrays=(xray(PID, slack=80 * MIB),), is_watched=True)
    (found,) = findings(run)
    assert found.sessions == ()
    assert "reserved" not in found.message


def test_little_slack_and_slack_of_a_rare_large_input_are_left_out() -> None:
    assert findings(program(session(), xrays=(xray(PID, slack=15 * MIB),))) == []
    assert findings(program(session())) == []
    rare = session(shapes=[runs(99), runs(1, (999, 8))], memory=memory(slack=80 * MIB))
    peak = HighWaterRun(
        session=1, t_s=9.0, peak_rss_bytes=900 * MIB, shapes={"x": (999, 8)}, latency_s=0.01
    )
    assert findings(program(rare, peaks=(peak,), xrays=(xray(PID, slack=80 * MIB),))) == []


def test_options_of_a_calibration_cannot_be_set() -> None:
    of_tool = session(1, memory=memory(slack=80 * MIB), library="onnxruntime")
    own = session(2, memory=memory(slack=80 * MIB))
    xrays = (xray(PID, slack=80 * MIB),)
    assert findings(program(of_tool, xrays=xrays)) == []
    assert len(findings(program(of_tool, own, xrays=xrays))) == 1


def test_slack_that_forks_share_counts_once() -> None:
    workers = [process(pid=pid, parent=PID) for pid in (11, 12)]
    xrays = tuple(xray(pid, slack=30 * MIB, shared=20 * MIB) for pid in (11, 12))
    (found,) = findings(program(processes=(process(), *workers), xrays=xrays))
    assert found.bytes == 40 * MIB
