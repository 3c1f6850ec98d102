"""Sessions for the tests of layouts: one process a model, under each runtime."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests.attribution.layouts.sessions import RUNTIMES, ProcessMemory, loaded


@pytest.fixture(params=RUNTIMES, ids=lambda path: Path(path).parent.parent.name)
def session_memory(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., ProcessMemory]:
    """A function: a model and session config entries to the memory of a process that loaded it."""
    python: str = request.param

    def memory(of: onnx.ModelProto, *config: str) -> ProcessMemory:
        return loaded(python, tmp_path, of, config)

    return memory
