"""What CONTRIBUTING.md says is true: its example of a rule works, and what it names exists."""

import re
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from memdiag.model.model_file import open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.runtime import Runtime
from memdiag.records.finding import Finding

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


@pytest.fixture(scope="module")
def example() -> ModuleType:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    module = ModuleType("double_weights")
    exec(compile(code, "double_weights.py", "exec"), module.__dict__)
    return module


def found_by(example: ModuleType, weight: np.ndarray, folder: Path) -> list[Finding]:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) { y = Abs(x) }'
    )
    model.graph.initializer.append(numpy_helper.from_array(weight, "weight"))
    onnx.save(model, folder / "model.onnx")
    with open_model(folder / "model.onnx") as opened:
        return list(example.detect(AnalysisContext(opened, Runtime.parse("1.31.1"))))


def test_the_rule_of_the_example_finds_its_waste(example: ModuleType, tmp_path: Path) -> None:
    (finding,) = found_by(example, np.zeros(1 << 18), tmp_path)
    assert finding.message == "1 weight (weight) of 2.0 MiB in float64"
    assert (finding.bytes, finding.weights) == (1 << 20, ("weight",))


@pytest.mark.parametrize(
    "weight", [np.zeros(1 << 19, np.float32), np.zeros(1000)], ids=["float32", "small"]
)
def test_the_rule_of_the_example_finds_no_other(
    example: ModuleType, tmp_path: Path, weight: np.ndarray
) -> None:
    assert found_by(example, weight, tmp_path) == []


def test_the_example_is_documented_as_rules_are(example: ModuleType) -> None:
    assert example.__doc__ is not None
    assert example.__doc__.partition("\n")[0] == f"{example.RULE.summary}."
    assert "## Why it costs" in example.__doc__
    assert "## What to do" in example.__doc__


def test_files_and_commands_that_it_names_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (ROOT / target).is_file(), target
    for path in re.findall(r"`((?:memdiag|tests)/(?!a/)[\w/.]+)`", TEXT):  # a/b: any of them
        assert (ROOT / path).exists(), path
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make ([a-z-]+)", TEXT):
        if target != "and":
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for module in re.findall(r"-m (benchmarks\.\w+|memdiag\.[\w.]+)", TEXT):
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), module
