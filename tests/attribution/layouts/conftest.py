"""Sessions for the tests of layouts: one process a model, under each runtime."""

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from tests.attribution.layouts.sessions import (
    RUNTIMES,
    ProcessMemory,
    SessionMemory,
    SessionStarter,
)
from tests.builders import saved


@pytest.fixture(scope="session", params=RUNTIMES, ids=lambda path: Path(path).parent.parent.name)
def session_starter(request: pytest.FixtureRequest) -> Iterator[SessionStarter]:
    """What makes sessions under a runtime."""
    starter = SessionStarter(request.param)
    yield starter
    starter.close()


@pytest.fixture
def session_memory(session_starter: SessionStarter, tmp_path: Path) -> SessionMemory:
    """A function: a model and session config entries to the memory of a process that loaded it."""

    def memory(of: onnx.ModelProto, *config: str) -> ProcessMemory:
        return session_starter.load(saved(of, tmp_path), config)

    return memory
