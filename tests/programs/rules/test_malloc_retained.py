from memdiag.records.run import ProcessXray, ProgramRun
from tests.programs.rules.cases import Case, assert_findings
from tests.programs.rules.records import MIB, PID, process, program, session, xray

RULE = "malloc-retained"


def forks(*parents: int, others: tuple[ProcessXray, ...] = ()) -> ProgramRun:
    """Return processes with 30 MiB each, of which they share 25 MiB with relatives."""
    workers = [process(pid, parent=parent) for pid, parent in enumerate(parents, 11)]
    xrays = [xray(worker.pid, retained=30 * MIB, shared=25 * MIB) for worker in workers]
    return program(processes=(process(), *workers), xrays=(*xrays, *others))


CASES = {
    "two processes, of which one has no arena": Case(
        program(
            session(1),
            session(2, pid=11, options={"enable_cpu_mem_arena": "False"}),
            xrays=(xray(PID, retained=30 * MIB), xray(11, retained=40 * MIB)),
        ),
        (2,),  # malloc serves its runs
        70 * MIB,
        "Some sessions there have no arena",
    ),
    "two forks of a process": Case(forks(PID, PID), (), (2 * 5 + 25) * MIB, "are counted once"),
    "two forks, whose parent was read when they had ended": Case(
        forks(PID, PID, others=(xray(PID, retained=28 * MIB),)), (), (2 * 5 + 28) * MIB
    ),
    "a fork of a fork": Case(forks(PID, 11), (), (2 * 5 + 25) * MIB),
    "a fork and a process of another program": Case(forks(PID, 1), (), 2 * 30 * MIB),
    "much, but not in the last X-ray": Case(
        program(
            processes=(process(),),
            xrays=(xray(PID, retained=15 * MIB), xray(PID, retained=90 * MIB, t_s=1.0)),
        )
    ),
}


def test_findings() -> None:
    assert_findings(RULE, CASES)
