from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import ModelProto, helper

from memdiag.remedies.draft import Draft
from memdiag.remedies.rewrites import inputs_without_initializers
from memdiag.verify.outputs import Bound
from tests.remedies.rewrites.rewriting import (
    finding,
    judged,
    largest_difference,
    overridable,
    random,
    refusal,
    rewrite,
    saved,
    text_model,
)

FEEDS = {"x": random((5, 4))}


def model(*listed: str) -> ModelProto:
    """Return a product with a transposed weight w, and a bias; those `listed` are inputs too."""
    made = text_model(
        "g (float[n, 4] x) => (float[n, 3] y) <float[3, 4] w, float[3] bias>"
        " { t = Transpose(w) m = MatMul(x, t) y = Add(m, bias) }",
        w=random((3, 4), 1),
        bias=random((3,), 2),
    )
    shapes = {"w": [3, 4], "bias": [3]}
    for name in listed:
        made.graph.input.append(helper.make_tensor_value_info(name, 1, shapes[name]))
    return made


def test_the_weight_is_an_input_no_more_and_the_outputs_stay(tmp_path: Path) -> None:
    original = model("w", "bias")
    path = rewrite(inputs_without_initializers, original, finding("w"), tmp_path, overridable=True)
    assert overridable(saved(original, tmp_path)) == ["w", "bias"]
    assert overridable(path) == ["bias"]
    assert [one.name for one in onnx.load(path).graph.input] == ["x", "bias"]
    difference = largest_difference(tmp_path / "original.onnx", path, FEEDS, tmp_path)
    assert difference <= Bound.reordered(4).relative


@pytest.mark.parametrize("name", ["x", "missing", "t", "bias"])
def test_what_is_no_listed_weight_is_refused(tmp_path: Path, name: str) -> None:
    reason = refusal(inputs_without_initializers, model("w"), finding(name), tmp_path)
    assert reason == "none of the weights is listed as an input"


def test_a_wrong_rewrite_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(model("w"), tmp_path)
    assert judged(inputs_without_initializers, path, finding("w"), FEEDS) is None
    real = Draft.value

    def changed(draft: Draft, name: str) -> ir.Value | None:
        value = real(draft, name)
        assert value is not None
        value.const_value = ir.tensor(random((3, 4), 9), name=name)
        return value

    monkeypatch.setattr(Draft, "value", changed)
    problem = judged(inputs_without_initializers, path, finding("w"), FEEDS)
    assert problem is not None
    assert "output y differs" in problem


def test_a_rewrite_that_takes_another_input_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(model("w"), tmp_path)
    monkeypatch.setattr(inputs_without_initializers, "_is_listed", lambda draft, name: True)
    monkeypatch.setattr(Draft, "value", lambda draft, name: draft.model.graph.inputs[0])
    problem = judged(inputs_without_initializers, path, finding("w"), FEEDS)
    assert problem is not None
    assert "it does not run" in problem
