import ast
import sys
from pathlib import Path

import pytest

from memdiag.comparison import optimizers
from memdiag.comparison.run_optimizer import choose_optimizers
from memdiag.errors import UsageError

NAMES = ("onnxoptimizer", "onnxsim", "onnxslim", "onnxscript", "memdiag-fix")
RUNTIME = ("onnxruntime-basic", "onnxruntime-extended", "onnxruntime-all")


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        (["all"], (*RUNTIME, *NAMES)),  # every optimizer that keeps values, in order
        (["quantize-int8"], ("quantize-int8",)),
        # Repeated names and the original are skipped.
        (["onnxslim", "original", "memdiag-fix", "onnxslim"], ("onnxslim", "memdiag-fix")),
        ([], ()),
    ],
)
def test_optimizers_are_chosen_by_name(given: list[str], chosen: tuple[str, ...]) -> None:
    assert choose_optimizers(given) == chosen


def test_an_unknown_optimizer_is_refused() -> None:
    message = r"unknown optimizer 'onnxmin'\. Choose from onnxruntime-basic"
    with pytest.raises(UsageError, match=message):
        choose_optimizers(["onnxsim", "onnxmin"])


def test_an_interpreter_without_memdiag_can_import_the_table() -> None:
    imported = set()
    for node in ast.parse(Path(optimizers.__file__).read_text()).body:
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names
