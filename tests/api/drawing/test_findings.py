"""Drawings of findings in sample models."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from memdiag.api.check import Selection, examine
from memdiag.api.drawing import findings as room
from memdiag.api.drawing.findings import with_drawings
from memdiag.model.model_file import open_model
from memdiag.ort.runtime import Runtime
from memdiag.records.drawing import Drawing, DrawnNode
from memdiag.records.finding import Finding
from memdiag.rewrites.model_editor import ModelEditor
from sample_models import load_recipes

RUNTIME = Runtime.parse("1.31.1")


@pytest.fixture
def sample(tmp_path: Path) -> Callable[[str], Path]:
    def build(name: str) -> Path:
        path = tmp_path / f"{name}.onnx"
        load_recipes()[name].build(1, path, False)
        return path

    return build


def found_in(path: Path) -> tuple[Finding, ...]:
    with open_model(path) as file:
        found, _ = examine(file, RUNTIME, Selection())
        drawn, notes = with_drawings(found, file)
    assert notes == ()
    return drawn


def box(drawing: Drawing, title: str) -> DrawnNode:
    return next(node for node in drawing.nodes if node.title == title)


def leads(drawing: Drawing, source: str, target: str) -> bool:
    return any(
        (edge.source, edge.target) == (box(drawing, source).id, box(drawing, target).id)
        for edge in drawing.edges
    )


def test_a_shared_weight_is_drawn_with_its_readers_in_both_branches(
    sample: Callable[[str], Path],
) -> None:
    (finding,) = found_in(sample("tied_if"))
    drawing = finding.drawing
    assert drawing is not None
    weight = box(drawing, "model.shared.weight")
    assert weight.kind == "weight"
    assert weight.detail == "float [244, 1024]"
    assert weight.size_bytes == 244 * 1024 * 4
    assert leads(drawing, "model.shared.weight", "Gather")
    assert leads(drawing, "model.shared.weight", "Transpose")
    assert leads(drawing, "Transpose", "MatMul")
    assert leads(drawing, "hidden", "MatMul")
    assert box(drawing, "Gather").detail == "If/then_branch/embed/Gather"
    emphasised = {node.title for node in drawing.nodes if node.emphasis}
    assert emphasised == {"model.shared.weight", "Transpose"}
    assert drawing.omitted == 0


def test_weights_of_branches_are_drawn_with_their_readers(sample: Callable[[str], Path]) -> None:
    (finding,) = found_in(sample("subgraph_weights"))
    assert finding.drawing is not None
    assert len([node for node in finding.drawing.nodes if node.kind == "weight"]) == 2
    readers = [node.detail for node in finding.drawing.nodes if node.kind == "operator"]
    assert readers == ["If/else_branch/second/MatMul", "If/then_branch/first/MatMul"]


def test_of_many_weights_the_first_are_drawn(sample: Callable[[str], Path]) -> None:
    (finding,) = found_in(sample("denormal_conv"))
    drawing = finding.drawing
    assert drawing is not None
    drawn = [node.title for node in drawing.nodes if node.kind == "weight"]
    assert drawn == [*finding.weights[: len(drawn)]]
    convolutions = [node for node in drawing.nodes if node.kind == "operator"]
    concerned = len(finding.weights) + len(finding.nodes)
    assert drawing.omitted == concerned - len(drawn) - len(convolutions) > 0
    assert len(drawing.nodes) <= 14


def test_a_drawing_that_fails_leaves_the_finding_and_says_so(
    sample: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(draft: ModelEditor, finding: Finding) -> None:
        raise ZeroDivisionError(finding.name)

    path = sample("tied_if")
    monkeypatch.setattr(room, "around", broken)
    with open_model(path) as file:
        found, _ = examine(file, RUNTIME, Selection())
        drawn, notes = with_drawings(found, file)
    assert drawn == found
    assert len(notes) == 1
    assert "ZeroDivisionError: shared-weight-transposed" in notes[0]


def test_a_finding_that_names_nothing_there_is_not_drawn(sample: Callable[[str], Path]) -> None:
    path = sample("tied_if")
    with open_model(path) as file:
        found, _ = examine(file, RUNTIME, Selection())
        gone = msgspec.structs.replace(found[0], weights=("gone",), nodes=("gone/MatMul",))
        assert with_drawings((gone,), file) == ((gone,), ())


def test_only_the_first_findings_are_drawn(
    sample: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sample("tied_if")
    monkeypatch.setattr(room, "MOST_DRAWN", 1)
    with open_model(path) as file:
        found, _ = examine(file, RUNTIME, Selection())
        first, second = with_drawings(found * 2, file)[0]
    assert first.drawing is not None
    assert second == found[0]


def test_a_model_of_too_many_nodes_is_not_drawn(
    sample: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sample("tied_if")
    monkeypatch.setattr(room, "_MOST_NODES", 2)
    with open_model(path) as file:
        found, _ = examine(file, RUNTIME, Selection())
        assert with_drawings(found, file) == (found, ())
