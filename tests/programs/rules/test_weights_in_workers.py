from typing import Any

import msgspec
import pytest

from memdiag.records.run import ProgramRun, ProgramSession
from tests.programs.rules.records import (
    MIB,
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

RULE = "weights-in-workers"
EXTERNAL = msgspec.structs.replace(model("/m.onnx"), bytes=1000)
"""A model whose weights are in another file."""


def workers(count: int = 3, **changes: Any) -> list[ProgramSession]:
    return [session(i, pid=i, created_at="app.py:7", **changes) for i in range(1, count + 1)]


def test_all_copies_but_one_could_be_shared() -> None:
    (found,) = findings(RULE, program(*workers()))
    assert found.sessions == (1, 2, 3)
    assert found.bytes == 2 * WEIGHTS
    assert "m.onnx is loaded by 3 processes at the same time (processes 1, 2, 3)" in found.message
    assert "The copies take 150 MiB." in found.message
    assert "memdiag explain weights-in-workers" in found.remedy


def test_without_an_xray_the_growth_of_private_memory_counts() -> None:
    (found,) = findings(
        RULE, program(*workers(memory=None, phases=creation_phases(45 * MIB), model=EXTERNAL))
    )
    assert found.bytes == 90 * MIB
    assert "one shared copy would save up to 90 MiB, which may include freed" in found.message
    (found,) = findings(RULE, program(*workers(memory=None, phases=creation_phases(160 * MIB))))
    assert found.bytes == 320 * MIB
    assert "No X-ray measured the copies" in found.message
    assert "saves at least 100 MiB (weights in the file)." in found.message


def test_weights_in_the_file_count_where_the_creation_used_freed_memory() -> None:
    for phases in (creation_phases(MIB), ()):
        (found,) = findings(RULE, program(*workers(memory=None, phases=phases)))
        assert found.bytes == 2 * WEIGHTS


def test_a_model_from_bytes_must_be_loaded_by_path() -> None:
    (found,) = findings(RULE, program(*workers(model=model(None, digest="abc"))))
    assert found.remedy.startswith("Load the model by its path")


@pytest.mark.parametrize(
    "sessions",
    [
        pytest.param(workers(memory=memory(mapped=WEIGHTS)), id="mapped weights"),
        pytest.param(workers(1), id="one process"),
        pytest.param(
            workers(memory=None, phases=creation_phases(MIB), model=EXTERNAL),
            id="mapped, no X-ray",
        ),
        pytest.param(workers(memory=None, model=EXTERNAL), id="nothing is known"),
        pytest.param(workers(2, memory=memory(10 * MIB)), id="small"),
        pytest.param(
            [session(1, pid=1, released_s=20.0), session(2, pid=2, created_s=30.0)],
            id="one after the other",
        ),
        pytest.param([session(1), session(2)], id="in the same process"),
    ],
)
def test_nothing_to_share(sessions: list[ProgramSession]) -> None:
    assert findings(RULE, program(*sessions)) == []


def watched(*private_mib: int) -> ProgramRun:
    """Return the record of processes with a copy of 40 MiB each, of which so much is private."""
    xrays = [
        xray(pid, copy("w", 7, size=40 * MIB, private_bytes=size * MIB))
        for pid, size in enumerate(private_mib, 1)
    ]
    return program(processes=tuple(process(xray.pid) for xray in xrays), xrays=tuple(xrays))


def test_xrays_prove_equal_weights_of_processes_that_are_watched() -> None:
    (found,) = findings(RULE, watched(40, 40, 40))
    assert found.bytes == 80 * MIB
    assert "3 processes have equal weights of m.onnx" in found.message
    assert "120 MiB in private memory: sharing the weights would save 80 MiB." in found.message


def test_pages_that_a_fork_shares_with_its_parent_are_not_counted() -> None:
    assert findings(RULE, watched(0, 0)) == []
    assert findings(RULE, watched(0, 40)) == []  # the parent of others, and a process of its own
    (found,) = findings(RULE, watched(30, 30))  # 10 MiB are shared
    assert found.bytes == 30 * MIB


def test_processes_that_ended_before_count_no_more() -> None:
    run = watched(40, 40)
    first, second = run.processes
    ended = (msgspec.structs.replace(first, ended_s=50.0), second)
    assert findings(RULE, msgspec.structs.replace(run, processes=ended)) == []
