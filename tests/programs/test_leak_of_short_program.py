"""The growth of programs that end too early to be judged."""

import re
import sys
from pathlib import Path

import onnx
import pytest

from memdiag.api.leak_program import leak_program
from memdiag.errors import XrayError
from memdiag.reports.growth.headline import growth_headline

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")

FAILING = """
import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
for _ in range(30):
    session.run(None, {"x": numpy.zeros(4, numpy.float32)})
sys.exit(3)
"""


def test_a_program_that_failed_is_not_judged(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    text = '<ir_version: 8, opset_import: ["": 17]> m (float[4] x) => (float[4] y) { y = Relu(x) }'
    onnx.save(onnx.parser.parse_model(text), model)
    growth, exit_code = leak_program([sys.executable, "-c", FAILING, str(model)])
    assert exit_code == 3
    assert growth.verdict == "undecided"
    assert re.fullmatch(
        r"the program ended with exit code 3 after [\d.]+ m?s, and nothing could be judged",
        growth.sentence,
    )
    assert (growth.runs, growth.is_run_count_exact) == (30, True)
    assert growth.moments[-1].run == 1
    assert "exit code 3" in growth_headline(growth).first


def test_a_program_that_failed_before_its_first_session_is_an_error() -> None:
    with pytest.raises(XrayError, match=r"ended with exit code 4 after .* Mend its error\."):
        leak_program([sys.executable, "-c", "raise SystemExit(4)"])
