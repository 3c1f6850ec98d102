from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper

from memdiag.model.model_file import open_model
from memdiag.rewrites.catalog import overridable_weight
from memdiag.rewrites.model_editor import ModelEditor
from tests.rewrites.rewriting import (
    finding,
    overridable,
    random,
    refusal,
    saved,
)
from tests.rewrites.tied_models import (
    BODIES,
    COLUMNS,
    ROWS,
    SHARED,
    model,
    rewritten,
    tied,
    tied_feeds,
    weight,
)


@pytest.mark.parametrize("sizes", [(), ("n",), ("b", "s")])
def test_the_weight_becomes_a_default(tmp_path: Path, sizes: tuple[str, ...]) -> None:
    feeds = tied_feeds(*(3 for _ in sizes))
    path = rewritten(overridable_weight, tied(sizes), tmp_path, feeds)
    assert overridable(path) == ["w"]
    assert [value.name for value in onnx.load(path).graph.input] == ["x", "ids", "w"]
    assert refusal(overridable_weight, path, SHARED, tmp_path).endswith("as an input already")


@pytest.mark.parametrize("body", BODIES)
def test_weights_that_bodies_read(tmp_path: Path, body: str) -> None:
    original, runs = BODIES[body]
    rewritten(overridable_weight, original, tmp_path, *runs)


def test_of_several_weights_those_that_can_be_are_listed(tmp_path: Path) -> None:
    original = model(
        f"g (float[n, {COLUMNS}] x) => (float[n, {COLUMNS}] z)"
        " { t = Transpose(w) y = MatMul(x, t) s = Softmax(v) z = MatMul(y, s) }",
        w=weight(),
        v=weight(1),
    )
    path = saved(original, tmp_path)
    with open_model(path) as file:
        editor = ModelEditor(file)
        assert overridable_weight.apply(editor, finding("v", "w")) is True
        assert [value.name for value in editor.model.graph.inputs] == ["x", "w"]


def _third_ir() -> ModelProto:
    old = tied(opset=8)
    old.ir_version = 3
    old.graph.input.append(helper.make_tensor_value_info("w", 1, [ROWS, COLUMNS]))
    return old


def _output() -> ModelProto:
    both = tied()
    both.graph.output.append(helper.make_tensor_value_info("w", 1, [ROWS, COLUMNS]))
    return both


def _in_a_function() -> ModelProto:
    return model(
        f"""g (float[n, {COLUMNS}] x) => (float[n, {ROWS}] y) {{ y = local.F(x, w) }}
        <domain: "local", opset_import: ["" : 17]>
        F (x, w) => (y) {{ t = Transpose(w) y = MatMul(x, t) }}"""
    )


CAST = "c = Cast <to = 1> (w) t = Transpose(c) y = MatMul(x, t)"


@pytest.mark.parametrize(
    ("original", "reason"),
    [
        (_third_ir(), "the model has IR version 3"),
        (_output(), "the weight is an output"),
        (tied(dtype=np.float16), "onnxruntime would convert the weight in every run"),
        (tied(nodes=CAST), "Cast of the weight would be computed in every run"),
        (tied(nodes="t = Transpose(w) y = Relu(t)"), "computed in every run, for Relu"),
        (tied(nodes="y = Transpose(w)"), "the transposed weight is an output"),
        (tied(nodes="s = Softmax(w) y = MatMul(x, s)"), "Softmax of the weight would be computed"),
        (_in_a_function(), "F may require a constant"),
        (
            tied(nodes="i = Identity(w) s = Softmax(i) y = MatMul(x, s)"),
            "Softmax of the weight would be computed",
        ),
    ],
)
def test_near_misses_are_refused(tmp_path: Path, original: ModelProto, reason: str) -> None:
    assert reason in refusal(overridable_weight, original, SHARED, tmp_path)


def test_weights_of_subgraphs_and_constants_are_refused(tmp_path: Path) -> None:
    original = model(
        f"""g (bool c, float[n, {COLUMNS}] x) => (float[n, m] y) {{
            y = If (c) <
                then_branch = a () => (float[n, m] p) {{ p = MatMul(x, w) }},
                else_branch = b () => (float[n, m] q) {{ v = Identity(w) q = MatMul(x, v) }}
            > }}""",
        w=random((COLUMNS, COLUMNS)),
    )
    inner = original.graph.node[0].attribute[0].g
    inner.initializer.add().CopyFrom(original.graph.initializer[0])
    inner.initializer[0].name = inner.node[0].input[1] = "own"
    named = finding("If_0/then_branch/own")
    reason = refusal(overridable_weight, original, named, tmp_path)
    assert reason == "the weight is owned by a subgraph"
    assert refusal(overridable_weight, original, finding("v"), tmp_path).endswith(
        "not an initializer"
    )
    assert refusal(overridable_weight, original, finding(), tmp_path) == "it names no weight"
