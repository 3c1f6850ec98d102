from typing import Any

from memdiag.records.run import HighWaterRun, ProgramRun, ProgramSession
from tests.programs.rules.cases import Case, assert_findings
from tests.programs.rules.records import MIB, PID, memory, process, program, runs, session, xray

RULE = "arena-slack"
RARE = session(shapes=[runs(99), runs(1, (999, 8))], memory=memory(slack=80 * MIB))
PEAK = HighWaterRun(
    session=1, t_s=9.0, peak_rss_bytes=900 * MIB, shapes={"x": (999, 8)}, latency_s=0.01
)
WORKERS = (process(), process(11, parent=PID), process(12, parent=PID))
SHARED = "onnxruntime.create_and_register_allocator("


def slack(*mebibytes: int, **changes: Any) -> list[ProgramSession]:
    """Return a session of each size of slack."""
    return [
        session(number, memory=memory(slack=size * MIB), **changes)
        for number, size in enumerate(mebibytes, 1)
    ]


def examined(*sessions: ProgramSession, mib: int, **changes: Any) -> ProgramRun:
    """Return a recording whose process has `mib` MiB of slack in an X-ray."""
    return program(*sessions, xrays=(xray(PID, slack=mib * MIB),), **changes)


CASES = {
    "reserved addresses that are not resident": Case(
        program(
            *slack(30),
            session(2, memory=memory(slack=50 * MIB, reserved=70 * MIB)),
            xrays=(xray(PID, slack=80 * MIB, reserved=100 * MIB),),
        ),
        (1, 2),
        80 * MIB,
        "80 MiB (of 100 MiB reserved addresses) in process 10",
    ),
    "two sessions of a process": Case(examined(*slack(40, 40), mib=80), (1, 2), 80 * MIB, SHARED),
    "sessions of two processes": Case(
        program(
            session(1, memory=memory(slack=40 * MIB)),
            session(2, pid=11, memory=memory(slack=40 * MIB)),
            xrays=(xray(PID, slack=40 * MIB), xray(11, slack=40 * MIB)),
        ),
        (1, 2),
        80 * MIB,
    ),
    "one session": Case(examined(*slack(40), mib=40), (1,), 40 * MIB),
    "sessions that share an arena already": Case(
        examined(*slack(40, 40, options={"session.use_env_allocators": "1"}), mib=80),
        (1, 2),
        80 * MIB,
    ),
    "one arena would save much": Case(
        examined(*slack(50, 30, 10), mib=90), (1, 2, 3), 90 * MIB, "Let the sessions of a process"
    ),
    "hardly any is in the other arenas": Case(
        examined(*slack(136, 6, 3), mib=145), (1, 2, 3), 145 * MIB, "Let runs"
    ),
    "runs that overlapped": Case(
        examined(*slack(50, 30, 10, run_threads=2), mib=90), (1, 2, 3), 90 * MIB, "Let runs"
    ),
    "a process without recorded sessions": Case(
        examined(mib=80, processes=(process(),), is_watched=True), (), 80 * MIB
    ),
    "a session of a calibration and another": Case(
        examined(
            *slack(80, library="onnxruntime"), session(2, memory=memory(slack=80 * MIB)), mib=80
        ),
        (1, 2),
        80 * MIB,
    ),
    "forks that share a part": Case(
        program(
            processes=WORKERS,
            xrays=tuple(xray(pid, slack=30 * MIB, shared=20 * MIB) for pid in (11, 12)),
        ),
        (),
        40 * MIB,
    ),
    "a calibration, whose options cannot be set": Case(
        examined(*slack(80, library="onnxruntime"), mib=80)
    ),
    "little slack": Case(examined(session(), mib=15)),
    "no X-ray": Case(program(session())),
    "slack of a rare large input": Case(examined(RARE, mib=80, peaks=(PEAK,))),
}


def test_findings() -> None:
    assert_findings(RULE, CASES)
