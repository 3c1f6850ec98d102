from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from memdiag.model.model_file import open_model
from memdiag.records.finding import Finding
from memdiag.rewrites.catalog import product_by_rows
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.saving import write_rewritten_model
from tests.rewrites.rewriting import finding, largest_difference, operators, refusal, saved
from tests.rewrites.tied_models import (
    BOUND,
    SHARED,
    in_subgraph,
    rewritten,
    tied,
    tied_feeds,
    weight,
)


def test_the_rows_choose_the_form(tmp_path: Path) -> None:
    runs = [tied_feeds(rows) for rows in (0, 1, 2, 16, 127, 128, 129)]
    path = rewritten(product_by_rows, tied(), tmp_path, *runs)
    names = operators(path)
    assert names.count("If") == names.count("Gemm") == names.count("MatMul") == 1
    graph = onnx.load(path).graph
    assert [value.name for value in graph.input] == ["x", "ids", "w"]
    assert onnx.numpy_helper.to_array(graph.initializer[0]).tobytes() == weight().tobytes()


def test_rows_are_those_of_all_axes(tmp_path: Path) -> None:
    runs = [tied_feeds(*shape) for shape in [(1, 1), (1, 5), (3, 2), (0, 2), (2, 0), (2, 64)]]
    rewritten(product_by_rows, tied(("b", "s")), tmp_path, *runs)


CAST = "t = Transpose(w) c = Cast <to = 1> (t) y = MatMul(x, c)"
SOFTMAX = "t = Transpose(w) m = MatMul(x, t) s = Softmax(w) r = ReduceSum(s) y = Add(m, r)"


@pytest.mark.parametrize(
    ("original", "of", "reason"),
    [
        (in_subgraph(), finding("If_0/then_branch/v"), "the weight is owned by a subgraph"),
        (tied(dtype=np.int32), SHARED, "would convert the weight"),
        (tied(opset=10), SHARED, "a Gemm has to have a bias"),
        (tied(("b", "s"), opset=13), SHARED, "cannot be given its axes again"),
        (tied(nodes=CAST), SHARED, "the weight is cast before the product"),
        (tied(nodes=SOFTMAX), SHARED, "Softmax of the weight would be computed in every run"),
    ],
)
def test_near_misses_are_refused(
    tmp_path: Path, original: ModelProto, of: Finding, reason: str
) -> None:
    assert reason in refusal(product_by_rows, original, of, tmp_path)


def test_it_saves_to_all_storages(tmp_path: Path) -> None:
    path = saved(tied(), tmp_path)
    with open_model(path) as file:
        for storage in ("in_place", "external", "embedded"):
            editor = ModelEditor(file)
            assert product_by_rows.apply(editor, SHARED)
            target = tmp_path / f"{storage}.onnx"
            write_rewritten_model(editor, target, storage)
            assert largest_difference(path, target, tied_feeds(2), tmp_path) <= BOUND
