"""What onnx.checker says next to the original, and what asks for something newer."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper, parser

from memdiag.errors import MeasurementError
from memdiag.verify import validity
from memdiag.verify.validity import ValidityChecker, checker_error, newer_declaration


def model(body: str = "y = Relu(x)", imports: str = '"" : 17', ir: int = 9) -> ModelProto:
    text = (
        f"<ir_version: {ir}, opset_import: [{imports}]> g (float[2] x) => (float[2] y) {{ {body} }}"
    )
    return parser.parse_model(text)


def saved(path: Path, proto: ModelProto) -> Path:
    onnx.save(proto, path)
    return path


def shapeless() -> ModelProto:
    proto = model()
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return proto


def test_a_valid_model_has_no_checker_error(tmp_path: Path) -> None:
    assert checker_error(saved(tmp_path / "m.onnx", model())) == ""


def test_operators_of_the_runtime_are_not_checked_but_their_import_is(tmp_path: Path) -> None:
    body = "y = com.microsoft.FusedMatMul(x, x)"
    imported = model(body, '"" : 17, "com.microsoft" : 1')
    assert checker_error(saved(tmp_path / "m.onnx", imported)) == ""
    del imported.opset_import[1]
    assert "com.microsoft" in checker_error(saved(tmp_path / "m.onnx", imported))


def test_external_data_is_looked_for_beside_the_model(tmp_path: Path) -> None:
    proto = model("y = Add(x, w)")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert checker_error(path) == ""
    (tmp_path / "w.bin").unlink()
    found = checker_error(path)
    assert "w.bin" in found
    assert str(tmp_path) not in found


def test_what_the_original_has_as_well_is_not_new(tmp_path: Path) -> None:
    good, bad = saved(tmp_path / "good.onnx", model()), saved(tmp_path / "bad.onnx", shapeless())
    wrong = saved(tmp_path / "wrong.onnx", model("y = Relu(nothing)"))
    of_good, of_bad = ValidityChecker(good), ValidityChecker(bad)
    assert of_good.check(good) == ("", False)
    found = of_good.check(bad)
    assert found.is_new
    assert "shape" in found.error
    assert of_bad.check(bad) == (found.error, False)
    assert of_bad.original_error == found.error
    assert of_bad.check(wrong).is_new
    assert of_bad.check(good) == ("", False)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os; os.abort()", "crashes (signal 6)"),
        ("import time; time.sleep(60)", "does not finish within 0.5 s"),
        ("raise MemoryError('too large')", "MemoryError: too large"),
    ],
)
def test_a_checker_that_fails_is_a_checker_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    monkeypatch.setattr(validity, "_CHECKER_PROGRAM", code)
    timeout_s = 0.5 if "sleep" in code else 60
    assert message in checker_error(tmp_path / "m.onnx", timeout_s)


def test_a_checker_that_cannot_be_started_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "nothing"))
    with pytest.raises(MeasurementError, match="cannot be started to check"):
        checker_error(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (model(), None),
        (model(ir=8), None),
        (model(ir=10), "version 10 of the IR instead of 9"),
        (model(imports='"ai.onnx" : 17'), None),
        (model(imports='"" : 18'), "opset 18 of ai.onnx instead of 17"),
        (model(imports='"" : 17, "com.microsoft" : 1'), "com.microsoft, which no node uses"),
        (model("y = com.microsoft.Gelu(x)", '"" : 17, "com.microsoft" : 1'), None),
    ],
)
def test_nothing_newer_may_be_asked_for(after: ModelProto, message: str | None) -> None:
    found = newer_declaration(model(), after)
    assert (found is None) if message is None else (found is not None and message in found)


def test_a_domain_that_only_a_branch_uses_is_used() -> None:
    branch = "b () => (float[2] {0}) {{ {0} = {1}(x) }}"
    body = (
        "c = Constant <value = bool {1}> () "
        f"y = If (c) <then_branch = {branch.format('t', 'com.microsoft.Gelu')},"
        f" else_branch = {branch.format('e', 'Relu')}>"
    )
    assert newer_declaration(model(), model(body, '"" : 17, "com.microsoft" : 1')) is None
