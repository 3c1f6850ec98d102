from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, helper

from memdiag.rewrites import inputs_without_initializers
from memdiag.verify.outputs import Bound
from tests.rewrites.rewriting import (
    finding,
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
