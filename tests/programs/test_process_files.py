"""Which of the models that were searched for a process uses."""

import msgspec
import pytest

from memdiag.programs.process_files import with_guess_note
from memdiag.records.attribution import SearchedModel
from tests.programs.rules.records import copy, xray

A, BOTH = ["a.onnx"], ["a.onnx", "b.onnx"]
USED = "the process uses"
# The models that have each of the weights that were found, whether each model is open, and what of
# the models is kept.
MODELS = {
    "b has weights of a only": ([(0,), (0, 1)], [False, False], A, USED),
    "b has weights of its own": ([(0,), (1,), (0, 1)], [False, False], BOTH, USED),
    "b is open": ([(0,)], [False, True], BOTH, USED),
    "a is open and has the weights of b": ([(0, 1)], [True, False], A, USED),
    "a and b have the same weights": ([(0, 1)], [False, False], BOTH, "it may use"),
}


@pytest.mark.parametrize(("users", "are_used", "kept", "note"), MODELS.values(), ids=MODELS)
def test_models_that_are_only_named_in_memory(
    users: list[tuple[int, ...]], are_used: list[bool], kept: list[str], note: str
) -> None:
    copies = [copy("w", 1 << 20 + index, models=indices) for index, indices in enumerate(users)]
    models = tuple(SearchedModel(name=name, weight_bytes=1) for name in ("a.onnx", "b.onnx"))
    attribution = xray(1).attribution
    searched = msgspec.structs.replace(attribution, models=models, copies=tuple(copies))
    named = with_guess_note(searched, are_used)
    assert [model.name for model in named.models] == kept
    text = f"models were searched for, as none was named: {note} {', '.join(kept)}"
    by = ", by files or paths in its memory, not by weights"
    assert named.notes == (text if note == USED else text + by,)
    expected = users if len(kept) == 2 else [()] * len(users)
    assert [copy.models for copy in named.copies] == expected
