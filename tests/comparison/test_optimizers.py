import ast
import sys

import pytest

from memdiag.comparison.optimizers import adapters, chosen
from memdiag.errors import UsageError

NAMES = [
    "onnxruntime-basic",
    "onnxruntime-extended",
    "onnxruntime-all",
    "onnxoptimizer",
    "onnxsim",
    "onnxslim",
    "onnxscript",
    "memdiag-fix",
]


def test_all_are_every_one_in_their_order() -> None:
    assert [one.name for one in adapters()] == NAMES
    assert [one.name for one in chosen(["all"])] == NAMES


def test_some_are_those_named_once_and_the_original_is_always_there() -> None:
    found = chosen(["onnxslim", "original", "memdiag-fix", "onnxslim"])
    assert [one.name for one in found] == ["onnxslim", "memdiag-fix"]
    assert chosen([]) == ()


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"unknown optimizer 'onnxmin'\. Choose from onnxruntime-basic"
    ):
        chosen(["onnxsim", "onnxmin"])


@pytest.mark.parametrize("path", sorted({one.path for one in adapters()}), ids=lambda at: at.stem)
def test_an_interpreter_without_memdiag_can_run_them(path: object) -> None:
    from pathlib import Path

    assert isinstance(path, Path)
    imported = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    assert imported <= sys.stdlib_module_names
