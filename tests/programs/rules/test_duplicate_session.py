from typing import Any

import msgspec

from memdiag.records.attribution import Backing, Copy
from memdiag.records.run import ProgramRun, ProgramSession, SessionMemory, SessionModel
from memdiag.reports.xray import xray_insight
from tests.programs.rules.cases import Case, assert_findings
from tests.programs.rules.records import (
    MIB,
    PID,
    WEIGHTS,
    copy,
    creation_phases,
    findings,
    memory,
    model,
    process,
    program,
    session,
    xray,
)

RULE = "duplicate-session"
BOTH = (1, 2)
SMALL = memory(MIB * 9 // 10, slack=0)
MAPPED = memory(mapped=WEIGHTS, slack=0)
WITHOUT_ARENA = memory(slack=0)
GPU = ("CUDAExecutionProvider", "CPUExecutionProvider")
GROWN = creation_phases(120 * MIB)
BY_PATH = model("/models/m.onnx")
OF_FILE = model(None, digest="abc", same_file="/models/m.onnx")
KEPT = model(None, digest="a", weight_bytes=None, is_kept=True)


def two(first: dict[str, Any], second: dict[str, Any] | None = None) -> ProgramRun:
    """Return two sessions with such changes; the second ones are like the first by default."""
    return program(session(1, **first), session(2, **(first if second is None else second)))


def of_models(*models: SessionModel, memory: SessionMemory | None = WITHOUT_ARENA) -> ProgramRun:
    sessions = [session(number, model=of, memory=memory) for number, of in enumerate(models, 1)]
    return program(*sessions)


def at(address: int, made: SessionModel = KEPT, **changes: Any) -> SessionModel:
    """Return a model from bytes that Python has at `address`."""
    return msgspec.structs.replace(made, address=address, **changes)


def in_workers(*pids: int) -> list[ProgramSession]:
    return [
        session(2 * pid + place, pid=pid, created_at=f"app.py:{place}")
        for pid in pids
        for place in (0, 1)
    ]


def copies(weights: str = "ab", addresses: tuple[int, ...] = (1, 2), **changes: Any) -> list[Copy]:
    return [copy(weight, address, **changes) for weight in weights for address in addresses]


def watched(*copies: Copy, arenas: int = 2) -> ProgramRun:
    return program(processes=(process(),), xrays=(xray(PID, *copies, arenas=arenas),))


def processes_with_copies(*parents: int) -> ProgramRun:
    """Return processes that have 20 MiB of further copies, of which 2 MiB are private."""
    workers = [process(pid=pid, parent=parent) for pid, parent in enumerate(parents, 11)]
    twice = copies(private_bytes=MIB)
    xrays = tuple(xray(worker.pid, *twice, arenas=2) for worker in workers)
    return program(processes=(process(), *workers), xrays=xrays)


PACKED = copies(layout="packed", kind="packed")
ONCE = copies(addresses=(1,))
BIASES = [copy("bias", address, size=1024) for address in (3, 4)]
EQUAL_BIASES = [copy("bias", address, size=1024, weights=("b", "c")) for address in (3, 4)]
IN_FILE = Backing(kind="file", file="m.data", offset=0)

CASES = {
    # Of each case one session and its arena could be saved, if nothing else is stated.
    "the same model twice": Case(two({}), BOTH, WEIGHTS + MIB),
    "a session until it is released": Case(two({"released_s": 4.0}, {}), BOTH, WEIGHTS + MIB),
    "bytes are a model, too": Case(
        two({"model": model(None, digest="abc")}),
        BOTH,
        WEIGHTS + MIB,
        "a model of 50 MiB from bytes is loaded 2 times",
    ),
    "bytes of a file and the file": Case(
        two({"model": OF_FILE}, {"model": BY_PATH}),
        BOTH,
        WEIGHTS + MIB,
        "(1 by path, 1 from bytes of the same content)",
    ),
    "an option differs": Case(
        two({}, {"options": {"intra_op_num_threads": "4"}}),
        BOTH,
        WEIGHTS + MIB,
        "intra_op_num_threads (default; 4)",
    ),
    "providers differ": Case(two({}, {"providers": GPU}), BOTH, None, "keep one for each setting"),
    "sessions of a library": Case(
        two({"library": "ocr"}), BOTH, WEIGHTS + MIB, "one object of ocr"
    ),
    "nothing was measured": Case(two({"memory": None}), BOTH, WEIGHTS, "at least 50 MiB (weights"),
    "the creation kept more than the weights": Case(
        two({"memory": None, "phases": GROWN}),
        BOTH,
        120 * MIB,
        "save about 120 MiB (private memory",
    ),
    "the creation used memory that was there": Case(
        two({"memory": None, "phases": creation_phases(20 * MIB)}), BOTH, WEIGHTS
    ),
    "another session was created in that time": Case(
        two({"memory": None, "phases": GROWN, "shared_with": (3,)}), BOTH, WEIGHTS
    ),
    "what an X-ray measured is no estimate": Case(two({"phases": GROWN}), BOTH, WEIGHTS + MIB),
    "one of two was measured, the smaller one": Case(
        two({"phases": GROWN, "memory": None}, {}), BOTH, WEIGHTS + MIB, "about 51 MiB (no X-ray"
    ),
    "bytes that no session keeps": Case(of_models(*[at(1, is_kept=False)] * 2), BOTH, WEIGHTS),
    "kept bytes of one object": Case(of_models(at(1), at(1)), BOTH, WEIGHTS),
    "kept bytes of two objects": Case(of_models(at(1), at(2)), BOTH, 2 * WEIGHTS + 1000),
    "kept bytes of a file next to the file": Case(
        of_models(model(), at(0, same_file="/models/m.onnx")),
        BOTH,
        2 * WEIGHTS + 1000,
        "Keep one that does not keep the bytes",
    ),
    "kept bytes of one object without an X-ray": Case(
        of_models(*[at(1, weight_bytes=WEIGHTS)] * 2, memory=None), BOTH, WEIGHTS
    ),
    "kept bytes of two objects without an X-ray": Case(
        of_models(at(1, weight_bytes=WEIGHTS), at(2, weight_bytes=WEIGHTS), memory=None),
        BOTH,
        2 * WEIGHTS + 1000,
    ),
    "workers with the same duplicates": Case(
        program(*in_workers(1, 2)), (2, 3, 4, 5), 2 * (WEIGHTS + MIB)
    ),
    "further copies in a process that is watched": Case(watched(*copies()), (), 20 * MIB),
    "further biases, which no kernel packs, and no arena": Case(
        watched(*PACKED, *BIASES, arenas=0), (), 20 * MIB + 1024
    ),
    "further biases, which no kernel packs, and one arena": Case(
        watched(*PACKED, *BIASES, arenas=1), (), 20 * MIB + 1024
    ),
    "forks, which share pages": Case(processes_with_copies(PID, PID), (), 2 * (2 + 9) * MIB),
    "processes that share no pages": Case(processes_with_copies(1, 2), (), 2 * 20 * MIB),
    "another model": Case(two({}, {"model": model("/models/other.onnx")})),
    "other bytes": Case(of_models(model(None, digest="abc"), model(None, digest="def"))),
    "bytes that may be another model than the file": Case(
        of_models(model(None, digest="abc"), BY_PATH)
    ),
    "another process": Case(two({}, {"pid": 11})),
    "one after the other": Case(two({"released_s": 40.0}, {"created_s": 50.0})),
    "one replaces the other": Case(two({"released_s": 3.0}, {"created_s": 1.7})),
    "a failed creation": Case(two({}, {"providers": (), "error": "no such file"})),
    "a small model": Case(two({"memory": SMALL})),
    "mapped weights in both": Case(two({"memory": MAPPED})),
    "copies for two nodes of one session": Case(watched(*PACKED, arenas=1)),
    "copies for two nodes, and one bias": Case(watched(*PACKED, BIASES[0], arenas=1)),
    "copies for two nodes, and equal biases": Case(watched(*PACKED, *EQUAL_BIASES, arenas=0)),
    "further copies that were freed": Case(watched(*ONCE, *copies(addresses=(3,), in_use=False))),
    "further copies in another layout": Case(
        watched(*ONCE, *copies(addresses=(4,), layout="packed", kind="packed"))
    ),
    "further copies in the file": Case(watched(*copies(backing=IN_FILE))),
    "further copies of recorded sessions": Case(
        program(session(), xrays=(xray(PID, *copies(), arenas=2),))
    ),
}


def test_an_xray_of_a_process_has_the_finding_of_watch() -> None:
    run = watched(*copies())
    (finding,) = findings(RULE, run)
    (text,) = xray_insight(run.xrays[0].attribution).advice
    evidence = "further copies of nearly all weights of m.onnx (up to 2 copies in the same layout"
    assert evidence in finding.message
    assert evidence in text
    assert text.endswith(finding.remedy)
    assert xray_insight(watched(*ONCE).xrays[0].attribution).advice == ()


def test_findings() -> None:
    assert_findings(RULE, CASES)
