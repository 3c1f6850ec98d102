"""The memory of sessions in an X-ray of their process."""

from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from memdiag.programs.recorded_session import RecordedSession
from memdiag.programs.xrays.xray_task import session_memories
from tests.programs.rules.records import MIB, copy, xray


@pytest.mark.parametrize(
    ("copies", "recorded", "earlier", "mib", "sharing"),
    [
        pytest.param(3, 1, 2, 22, 3, id="two older sessions of the model"),
        pytest.param(3, 2, 1, 22, 3, id="one older session of the model"),
        pytest.param(1, 1, 2, 22, 1, id="the older sessions have other models"),
        pytest.param(3, 1, 1, 33, 2, id="more copies than sessions"),
        pytest.param(3, 1, 0, 66, 1, id="the session itself has three copies"),
    ],
)
def test_older_sessions_share_the_copies_of_weights(
    copies: int, recorded: int, earlier: int, mib: int, sharing: int
) -> None:
    large = [copy("w", 1 << 30 + index, size=20 * MIB) for index in range(copies)]
    small = [copy("v", 1 << 20 + index, size=2 * MIB) for index in range(copies)]
    freed = [copy("w", 1 << 10 + index, size=20 * MIB, in_use=False) for index in range(9)]
    found = xray(1, *large, *small, *freed).attribution
    sessions = [
        cast(RecordedSession, SimpleNamespace(number=number, model_key="m", kept_bytes=range(0)))
        for number in range(recorded)
    ]
    memories = session_memories(["m"], found, sessions, earlier_sessions=earlier)
    for memory in memories.values():
        assert memory.weight_bytes == mib * MIB
        assert memory.sharing == sharing


def test_a_weight_that_several_nodes_pack_is_no_sign_of_an_older_session() -> None:
    """Half of the bytes must have further copies."""
    packed = [copy("v", 1 << 20 + index, size=2 * MIB) for index in range(3)]
    found = xray(1, copy("w", 1 << 40), *packed).attribution
    made = SimpleNamespace(number=1, model_key="m", kept_bytes=range(0))
    session = cast(RecordedSession, made)
    memory = session_memories(["m"], found, [session], earlier_sessions=2)[1]
    assert memory.weight_bytes == 16 * MIB
    other = msgspec.structs.replace(found, copies=(copy("w", 1), copy("w", 2), *packed))
    memory = session_memories(["m"], other, [session], earlier_sessions=2)[1]
    assert memory.weight_bytes == 13 * MIB


def test_weights_in_bytes_that_python_keeps_are_not_those_of_a_session() -> None:
    found = xray(1, copy("w", 1 << 20), copy("w", 1 << 40)).attribution
    places = (range(1 << 40, (1 << 40) + 100), range(0))
    sessions = [
        cast(RecordedSession, SimpleNamespace(number=number, model_key="m", kept_bytes=place))
        for number, place in enumerate(places)
    ]
    memories = session_memories(["m"], found, sessions)
    assert [memory.weight_bytes for memory in memories.values()] == [5 * MIB, 5 * MIB]
