"""onnx_ir is imported without sympy, and has it where it is used."""

import subprocess
import sys

PROGRAM = """
import sys
import memdiag.fixing.applicable
assert "sympy.core" not in sys.modules
import onnx_ir
assert (onnx_ir.SymbolicDim("tokens") + 1).value == "tokens + 1"
import sympy
assert sympy.Symbol("x") + 0 == sympy.Symbol("x")
assert "_LazyFinder" not in str(sys.meta_path)
"""


def test_sympy_is_imported_where_it_is_used() -> None:
    # In another process: here it may have been imported before.
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
