from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from memdiag.model.model_file import open_model
from memdiag.rewrites.catalog import overridable_weight
from memdiag.rewrites.model_editor import ModelEditor
from tests.rewrites.rewriting import finding, overridable, refusal, saved
from tests.rewrites.tied_models import (
    BODIES,
    COLUMNS,
    ROWS,
    SHARED,
    in_subgraph,
    model,
    rewritten,
    tied,
    tied_feeds,
    weight,
    with_list,
)

FUNCTION = f"""g (float[n, {COLUMNS}] x) => (float[n, {ROWS}] y) {{ y = local.F(x, w) }}
    <domain: "local", opset_import: ["" : 17]>
    F (x, w) => (y) {{ t = Transpose(w) y = MatMul(x, t) }}"""


@pytest.mark.parametrize("sizes", [(), ("n",), ("b", "s")])
def test_the_weight_becomes_a_default(tmp_path: Path, sizes: tuple[str, ...]) -> None:
    feeds = tied_feeds(*(3 for _ in sizes))
    path = rewritten(overridable_weight, tied(sizes), tmp_path, feeds)
    assert overridable(path) == ["w"]
    assert [value.name for value in onnx.load(path).graph.input] == ["x", "ids", "w"]
    assert refusal(overridable_weight, path, SHARED, tmp_path).endswith("as an input already")


@pytest.mark.parametrize("body", BODIES)
def test_weights_that_bodies_read(tmp_path: Path, body: str) -> None:
    rewritten(overridable_weight, BODIES[body], tmp_path)


def test_of_several_weights_those_that_can_be_are_listed(tmp_path: Path) -> None:
    original = model(
        f"g (float[n, {COLUMNS}] x) => (float[n, {COLUMNS}] z)"
        " { t = Transpose(w) y = MatMul(x, t) s = Softmax(v) z = MatMul(y, s) }",
        w=weight(),
        v=weight(1),
    )
    with open_model(saved(original, tmp_path)) as file:
        editor = ModelEditor(file)
        assert overridable_weight.apply(editor, finding("v", "w")) is True
        assert [value.name for value in editor.model.graph.inputs] == ["x", "w"]


def old() -> ModelProto:
    model = with_list("input", opset=8)
    model.ir_version = 3
    return model


CAST = "c = Cast <to = 1> (w) t = Transpose(c) y = MatMul(x, t)"
IN_EVERY_RUN = "Softmax of the weight would be computed"


@pytest.mark.parametrize(
    ("original", "names", "reason"),
    [
        (old(), "w", "the model has IR version 3"),
        (with_list("output"), "w", "the weight is an output"),
        (tied(dtype=np.float16), "w", "onnxruntime would convert the weight in every run"),
        (tied(nodes=CAST), "w", "Cast of the weight would be computed in every run"),
        (tied(nodes="t = Transpose(w) y = Relu(t)"), "w", "computed in every run, for Relu"),
        (tied(nodes="y = Transpose(w)"), "w", "the transposed weight is an output"),
        (tied(nodes="s = Softmax(w) y = MatMul(x, s)"), "w", IN_EVERY_RUN),
        (tied(nodes="i = Identity(w) s = Softmax(i) y = MatMul(x, s)"), "w", IN_EVERY_RUN),
        (model(FUNCTION), "w", "F may require a constant"),
        (in_subgraph(), "If_0/then_branch/v", "the weight is owned by a subgraph"),
        (tied(nodes="v = Identity(w) y = MatMul(x, v)"), "v", "not an initializer"),
        (tied(), "", "it names no weight"),
    ],
)
def test_near_misses_are_refused(
    tmp_path: Path, original: ModelProto, names: str, reason: str
) -> None:
    assert reason in refusal(overridable_weight, original, names, tmp_path)
