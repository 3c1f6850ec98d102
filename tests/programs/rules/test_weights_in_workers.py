from typing import Any

import msgspec

from memdiag.records.run import ProgramRun, ProgramSession
from tests.programs.rules.cases import Case, assert_findings
from tests.programs.rules.records import (
    MIB,
    WEIGHTS,
    copy,
    creation_phases,
    memory,
    model,
    process,
    program,
    session,
    xray,
)

RULE = "weights-in-workers"
EXTERNAL = msgspec.structs.replace(model("/m.onnx"), bytes=1000)
"""A model whose weights are in another file."""


def workers(count: int = 3, **changes: Any) -> ProgramRun:
    sessions = [session(i, pid=i, created_at="app.py:7", **changes) for i in range(1, count + 1)]
    return program(*sessions)


def grown(mib: int, **changes: Any) -> ProgramRun:
    """Return workers without X-rays whose creation added private memory."""
    return workers(memory=None, phases=creation_phases(mib * MIB), **changes)


def watched(*private_mib: int) -> ProgramRun:
    """Return the record of processes with a copy of 40 MiB each, of which so much is private."""
    xrays = [
        xray(pid, copy("w", 7, size=40 * MIB, private_bytes=size * MIB))
        for pid, size in enumerate(private_mib, 1)
    ]
    return program(processes=tuple(process(xray.pid) for xray in xrays), xrays=tuple(xrays))


def after_the_end_of_one(run: ProgramRun) -> ProgramRun:
    first, *others = run.processes
    ended = msgspec.structs.replace(first, ended_s=50.0)
    return msgspec.structs.replace(run, processes=(ended, *others))


def one_after_the_other() -> list[ProgramSession]:
    return [session(1, pid=1, released_s=20.0), session(2, pid=2, created_s=30.0)]


CASES = {
    "all copies but one could be shared": Case(workers(), (1, 2, 3), 2 * WEIGHTS),
    "the growth of private memory without an X-ray": Case(
        grown(45, model=EXTERNAL), (1, 2, 3), 90 * MIB, "save up to 90 MiB"
    ),
    "more growth than weights in the file": Case(
        grown(160), (1, 2, 3), 320 * MIB, "saves at least 100 MiB (weights in the file)."
    ),
    "a creation that used freed memory": Case(grown(1), (1, 2, 3), 2 * WEIGHTS),
    "neither an X-ray nor growth": Case(workers(memory=None, phases=()), (1, 2, 3), 2 * WEIGHTS),
    "a model from bytes": Case(
        workers(model=model(None, digest="abc")),
        (1, 2, 3),
        2 * WEIGHTS,
        "Load the model by its path",
    ),
    "equal weights of processes that are watched": Case(watched(40, 40, 40), (), 80 * MIB),
    "pages that forks share in part": Case(watched(30, 30), (), 30 * MIB),  # 10 MiB are shared
    "pages that forks share": Case(watched(0, 0)),
    "a parent of others, and a process of its own": Case(watched(0, 40)),
    "a process that ended before": Case(after_the_end_of_one(watched(40, 40))),
    "mapped weights": Case(workers(memory=memory(mapped=WEIGHTS))),
    "one process": Case(workers(1)),
    "mapped weights without an X-ray": Case(grown(1, model=EXTERNAL)),
    "nothing is known": Case(workers(memory=None, model=EXTERNAL)),
    "small": Case(workers(2, memory=memory(10 * MIB))),
    "one after the other": Case(program(*one_after_the_other())),
    "in the same process": Case(program(session(1), session(2))),
}


def test_findings() -> None:
    assert_findings(RULE, CASES)
