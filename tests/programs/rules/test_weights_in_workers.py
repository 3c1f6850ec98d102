from typing import Any

import pytest

from memdiag.records.run import ProgramSession
from tests.programs.rules.records import (
    MIB,
    WEIGHTS,
    creation_phases,
    findings,
    memory,
    model,
    program,
    session,
)

RULE = "weights-in-workers"


def workers(count: int = 3, **changes: Any) -> list[ProgramSession]:
    return [session(i, pid=i, created_at="app.py:7", **changes) for i in range(1, count + 1)]


def test_all_copies_but_one_could_be_shared() -> None:
    (found,) = findings(RULE, program(*workers()))
    assert found.sessions == (1, 2, 3)
    assert found.bytes == 2 * WEIGHTS
    assert "m.onnx is loaded by 3 processes at the same time (processes 1, 2, 3)" in found.message
    assert "150 MiB of its weights in private memory" in found.message
    assert "memdiag explain weights-in-workers" in found.remedy


def test_without_an_xray_the_growth_of_private_memory_counts() -> None:
    (found,) = findings(RULE, program(*workers(memory=None, phases=creation_phases(45 * MIB))))
    assert found.bytes == 90 * MIB


def test_a_model_from_bytes_must_be_loaded_by_path() -> None:
    (found,) = findings(RULE, program(*workers(model=model(None, digest="abc"))))
    assert found.remedy.startswith("Load the model by its path")


@pytest.mark.parametrize(
    "sessions",
    [
        pytest.param(workers(memory=memory(mapped=WEIGHTS)), id="mapped weights"),
        pytest.param(workers(1), id="one process"),
        pytest.param(workers(memory=None, phases=creation_phases(MIB)), id="mapped, no X-ray"),
        pytest.param(workers(memory=None), id="nothing is known"),
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
