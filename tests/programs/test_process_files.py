"""Which of the models that were searched for a process uses."""

import msgspec
import pytest

from memdiag.programs.process_files import with_guess_note
from memdiag.records.attribution import SearchedModel
from tests.programs.rules.records import copy, xray


@pytest.mark.parametrize(
    ("users", "are_used", "kept", "note"),
    [
        pytest.param(
            [(0,), (0, 1)],
            [False, False],
            ["a.onnx"],
            "the process uses a.onnx",
            id="b has weights of a only",
        ),
        pytest.param(
            [(0,), (1,), (0, 1)],
            [False, False],
            ["a.onnx", "b.onnx"],
            "the process uses a.onnx, b.onnx",
            id="b has weights of its own",
        ),
        pytest.param(
            [(0,)],
            [False, True],
            ["a.onnx", "b.onnx"],
            "the process uses a.onnx, b.onnx",
            id="b is open",
        ),
        pytest.param(
            [(0, 1)],
            [False, False],
            ["a.onnx", "b.onnx"],
            "it may use a.onnx, b.onnx, by files or paths in its memory, not by weights",
            id="a and b have the same weights",
        ),
        pytest.param(
            [(0, 1)],
            [True, False],
            ["a.onnx"],
            "the process uses a.onnx",
            id="a is open and has the weights of b",
        ),
    ],
)
def test_models_that_are_only_named_in_memory(
    users: list[tuple[int, ...]], are_used: list[bool], kept: list[str], note: str
) -> None:
    copies = [copy("w", 1 << 20 + index, models=()) for index, _ in enumerate(users)]
    models = tuple(SearchedModel(name=name, weight_bytes=1) for name in ("a.onnx", "b.onnx"))
    found = msgspec.structs.replace(
        xray(1).attribution,
        models=models,
        copies=tuple(
            msgspec.structs.replace(each, models=indices)
            for each, indices in zip(copies, users, strict=True)
        ),
    )
    named = with_guess_note(found, are_used)
    assert [model.name for model in named.models] == kept
    assert named.notes == (f"models were searched for, as none was named: {note}",)
    expected = users if len(kept) == 2 else [()] * len(users)
    assert [each.models for each in named.copies] == expected
