"""Notes at the end of a recording."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from memdiag.programs.end_notes import fallback_notes
from memdiag.programs.recorded_program import RecordedProgram

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


def session(number: int, requested: tuple[str, ...], providers: tuple[str, ...]) -> Any:
    description = SimpleNamespace(providers=requested)
    return SimpleNamespace(number=number, description=description, providers=providers)


@pytest.mark.parametrize(
    ("sessions", "note"),
    [
        ([session(1, (CUDA, CPU), (CPU,))], "session 1: onnxruntime created the session without"),
        (
            [session(number, (CUDA, CPU), (CPU,)) for number in (1, 2)],
            "sessions 1, 2: onnxruntime created the session without CUDAExecutionProvider: it"
            " runs on CPUExecutionProvider; memdiag explain provider-fallback has the causes",
        ),
        ([session(1, (CUDA, CPU), (CUDA, CPU))], ""),
        ([session(1, (CPU,), (CPU,))], ""),
        ([session(1, (), (CPU,))], ""),
        ([session(1, (CUDA, CPU), ())], ""),  # its creation failed
        ([session(1, ("DmlExecutionProvider", CPU), (CPU,))], ""),
    ],
)
def test_a_session_without_its_gpu_is_noted(sessions: list[Any], note: str) -> None:
    program = cast("RecordedProgram", SimpleNamespace(sessions=sessions))
    notes = list(fallback_notes(program))
    assert len(notes) == bool(note)
    assert all(note in text for text in notes)
