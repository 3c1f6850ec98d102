"""Messages of onnxruntime in one line."""

import pytest

from memdiag.runner.failure_text import CUSTOM_OPS_OPTION, RUN_PROGRAM_COMMAND, failure_text


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            "[ONNXRuntimeError] : 1 : FAIL : Load model from m.onnx failed:\n  no such file",
            "Load model from m.onnx failed: no such file",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Fatal error: com.microsoft:Nope(-1) is not a"
            " registered function/op",
            "Fatal error: com.microsoft:Nope(-1) is not a registered function/op",
        ),
    ],
)
def test_other_errors_stay_as_they_are(message: str, text: str) -> None:
    assert failure_text(message) == text


@pytest.mark.parametrize("domain", ["ai.onnx.contrib", "my.domain", "test"])
def test_a_custom_operator_needs_its_library(domain: str) -> None:
    text = failure_text(
        "[ONNXRuntimeError] : 1 : FAIL : Load model from m.onnx failed:Fatal error:"
        f" {domain}:StringEqual(-1) is not a registered function/op"
    )
    assert text.startswith(f"StringEqual of {domain} is a custom operator")
    assert CUSTOM_OPS_OPTION in text
    assert RUN_PROGRAM_COMMAND in text
    assert "\n" not in text
