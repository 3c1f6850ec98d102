from memdiag.records.run import ProgramFinding, ProgramRun
from tests.programs.rules import records
from tests.programs.rules.records import MIB, PID, process, program, session, xray


def findings(run: ProgramRun) -> list[ProgramFinding]:
    return records.findings("malloc-retained", run)


def test_the_retained_memory_of_all_processes() -> None:
    sessions = [session(1), session(2, pid=11, options={"enable_cpu_mem_arena": "False"})]
    both = (xray(PID, retained=30 * MIB), xray(11, retained=40 * MIB))
    (found,) = findings(program(*sessions, xrays=both))
    assert found.bytes == 70 * MIB
    assert found.sessions == (2,)  # malloc serves its runs
    assert "70 MiB in processes 10, 11 were freed" in found.message  # nothing is shared
    assert "Some sessions there have no arena" in found.message
    assert "The next run may use part of them again." in found.message
    assert "MALLOC_MMAP_THRESHOLD_=131072" in found.remedy
    assert "Call malloc_trim(0) once after all sessions have run" in found.remedy


def test_only_the_last_xray_of_a_process_counts() -> None:
    early = xray(PID, retained=90 * MIB, t_s=1.0)
    run = program(processes=(process(),), xrays=(xray(PID, retained=15 * MIB), early))
    assert findings(run) == []


def test_pages_that_forks_share_count_once() -> None:
    def size(*parents: int, parent_xray: bool = False) -> int | None:
        pids = range(11, 11 + len(parents))
        xrays = [xray(pid, retained=30 * MIB, shared=25 * MIB) for pid in pids]
        if parent_xray:  # taken when the workers had ended: nothing is shared any more
            xrays.append(xray(PID, retained=28 * MIB, shared=0))
        workers = (process(pid=pid, parent=p) for pid, p in zip(pids, parents, strict=True))
        run = program(processes=(process(), *workers), xrays=tuple(xrays))
        (found,) = findings(run)
        assert "(pages that these processes share are counted once)" in found.message
        return found.bytes

    assert size(PID, PID) == 2 * 5 * MIB + 25 * MIB
    assert size(PID, PID, parent_xray=True) == 2 * 5 * MIB + 28 * MIB
    assert size(PID, 11) == 2 * 5 * MIB + 25 * MIB  # a fork of a fork
    assert size(PID, 1) == 2 * 30 * MIB  # of another program
