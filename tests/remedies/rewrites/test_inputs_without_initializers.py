from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from memdiag.graph.reader import open_model
from memdiag.records.finding import Finding
from memdiag.remedies.draft import Draft
from memdiag.remedies.rewrites.inputs_without_initializers import apply, check
from memdiag.remedies.saving import save
from memdiag.verification.outputs import difference
from tests.reporters.checks.checks import finding


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A product with a transposed weight that is listed as an input."""
    proto = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]>'
        "g (float[n, 4] x) => (float[n, 3] y) { t = Transpose(w) y = MatMul(x, t) }"
    )
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    proto.graph.initializer.append(numpy_helper.from_array(values, "w"))
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3, 4]))
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    return path


def found(*weights: str) -> Finding:
    return finding(rule="MD406", name="overridable-weights", weights=weights, expected=())


def test_the_weight_is_an_input_no_more_and_the_outputs_stay(model: Path, tmp_path: Path) -> None:
    import onnxruntime

    original = model.read_bytes()
    with open_model(model) as file:
        draft = Draft(file)
        assert check(draft, found("w")) is None
        assert apply(draft, found("w"))
        assert not apply(draft, found("w"))
        assert check(draft, found("w")) == "none of the weights is listed as an input"
        (path,) = save(draft, tmp_path / "out.onnx", "embedded")
    assert model.read_bytes() == original
    onnx.checker.check_model(path)
    x = np.random.default_rng(0).standard_normal((5, 4), np.float32)
    results = []
    for each, overridable in ((model, 1), (path, 0)):
        session = onnxruntime.InferenceSession(each, providers=["CPUExecutionProvider"])
        assert [one.name for one in session.get_inputs()] == ["x"]
        assert len(session.get_overridable_initializers()) == overridable
        results.append(session.run(None, {"x": x})[0])
    assert difference("y", *results).relative < 1e-6


@pytest.mark.parametrize("name", ["x", "missing", "t"])
def test_what_is_no_listed_weight_is_refused(model: Path, name: str) -> None:
    with open_model(model) as file:
        draft = Draft(file)
        assert check(draft, found(name)) == "none of the weights is listed as an input"
        assert not apply(draft, found(name))
