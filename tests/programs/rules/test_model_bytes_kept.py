from typing import Any

import msgspec

from memdiag.records.run import SessionModel
from tests.programs.rules.cases import Case, assert_findings
from tests.programs.rules.records import MIB, WEIGHTS, model, program, session

RULE = "model-bytes-kept"
SIZE = WEIGHTS + 1000


def from_bytes(
    digest: str = "a", *, is_kept: bool = True, size: int = SIZE, address: int = 1
) -> SessionModel:
    made = model(None, digest=digest, bytes=size, weight_bytes=None, is_kept=is_kept)
    return msgspec.structs.replace(made, address=address)


def nothing(**changes: Any) -> Case:
    """Return a session from bytes that cannot be dropped because of `changes`."""
    return Case(program(session(**{"model": from_bytes(), **changes})))


SHARING = [session(number, model=from_bytes(), pid=3) for number in (1, 2)]
OTHERS = [
    session(3, model=from_bytes(), pid=4),
    session(4, model=from_bytes("b", address=2), pid=4),
]
READ_AGAIN = [session(number, model=from_bytes(address=number)) for number in (1, 2, 3)]

CASES = {
    "one session": Case(program(session(model=from_bytes())), (1,), SIZE),
    "two sessions of the same bytes": Case(program(*SHARING), (1, 2), SIZE),
    "sessions of two processes and of two models": Case(
        program(*SHARING, *OTHERS), (1, 2, 3, 4), 3 * SIZE, "the bytes of 2 models in 3 copies"
    ),
    "bytes that are read for each session": Case(
        program(*READ_AGAIN), (1, 2, 3), 3 * SIZE, "the bytes of the model in 3 copies"
    ),
    "from a path": nothing(model=model()),
    "dropped": nothing(model=from_bytes(is_kept=False)),
    "released": nothing(released_s=50.0),
    "small": nothing(model=from_bytes(size=15 * MIB)),
    "failed": nothing(providers=(), error="bad"),
    "used in place": nothing(options={"session.use_ort_model_bytes_directly": "1"}),
}


def test_findings() -> None:
    assert_findings(RULE, CASES)
