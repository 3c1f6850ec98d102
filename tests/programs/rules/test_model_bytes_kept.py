import msgspec
import pytest

from memdiag.records.run import ProgramRun, ProgramSession, SessionModel
from tests.programs.rules.records import MIB, WEIGHTS, findings, model, program, session

RULE = "model-bytes-kept"
SIZE = WEIGHTS + 1000


def from_bytes(
    digest: str = "a", *, is_kept: bool = True, size: int = SIZE, address: int = 1
) -> SessionModel:
    made = model(None, digest=digest, bytes=size, weight_bytes=None, is_kept=is_kept)
    return msgspec.structs.replace(made, address=address)


def test_a_session_that_keeps_its_bytes() -> None:
    (found,) = findings(RULE, program(session(model=from_bytes())))
    assert (found.sessions, found.bytes) == ((1,), SIZE)
    assert found.message == (
        "1 session in process 10, created at app.py:1, keeps the bytes of the model from which it"
        " was created, 50 MiB. They are not read again."
    )
    assert "from the path" in found.remedy
    assert "session._model_bytes = None" in found.remedy


def test_sessions_of_one_process_may_share_the_bytes() -> None:
    sessions = [session(number, model=from_bytes(), pid=pid) for number, pid in ((1, 3), (2, 3))]
    (found,) = findings(RULE, program(*sessions))
    assert (found.sessions, found.bytes) == ((1, 2), SIZE)
    others = [
        session(3, model=from_bytes(), pid=4),
        session(4, model=from_bytes("b", address=2), pid=4),
    ]
    (found,) = findings(RULE, program(*sessions, *others))
    assert (found.sessions, found.bytes) == ((1, 2, 3, 4), 3 * SIZE)
    assert "keep the bytes of 2 models in 3 copies from which they were created" in found.message


def test_bytes_that_are_read_for_each_session_are_copies_of_the_model() -> None:
    sessions = [session(number, model=from_bytes(address=number)) for number in (1, 2, 3)]
    (found,) = findings(RULE, program(*sessions))
    assert found.bytes == 3 * SIZE
    assert "keep the bytes of the model in 3 copies from which they were created, 150 MiB" in (
        found.message
    )


def without(**changes: object) -> ProgramSession:
    return session(**{"model": from_bytes(), **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(program(session()), id="from a path"),
        pytest.param(program(without(model=from_bytes(is_kept=False))), id="dropped"),
        pytest.param(program(without(released_s=50.0)), id="released"),
        pytest.param(program(without(model=from_bytes(size=15 * MIB))), id="small"),
        pytest.param(program(without(providers=(), error="bad")), id="failed"),
        pytest.param(
            program(without(options={"session.use_ort_model_bytes_directly": "1"})),
            id="used in place",
        ),
    ],
)
def test_no_bytes_that_could_be_dropped(run: ProgramRun) -> None:
    assert findings(RULE, run) == []
