import ast
import sys
from pathlib import Path

import pytest

from memdiag.comparison import optimizers
from memdiag.comparison.run_optimizer import choose_optimizers
from memdiag.errors import UsageError

NAMES = (
    "onnxruntime-basic",
    "onnxruntime-extended",
    "onnxruntime-all",
    "onnxoptimizer",
    "onnxsim",
    "onnxslim",
    "onnxscript",
    "memdiag-fix",
)


def test_all_are_every_optimizer_that_keeps_values_in_order() -> None:
    assert choose_optimizers(["all"]) == NAMES
    assert choose_optimizers(["quantize-int8"]) == ("quantize-int8",)


def test_repeated_names_and_the_original_are_skipped() -> None:
    found = choose_optimizers(["onnxslim", "original", "memdiag-fix", "onnxslim"])
    assert found == ("onnxslim", "memdiag-fix")
    assert choose_optimizers([]) == ()


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"unknown optimizer 'onnxmin'\. Choose from onnxruntime-basic"
    ):
        choose_optimizers(["onnxsim", "onnxmin"])


def test_an_interpreter_without_memdiag_can_import_the_table() -> None:
    imported = set()
    for node in ast.parse(Path(optimizers.__file__).read_text()).body:
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names
