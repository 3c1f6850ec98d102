from pathlib import Path

import onnx

from memdiag.rewrites.catalog import fused_matmul_transposed
from tests.rewrites.rewriting import finding
from tests.rewrites.tied_models import in_function, rewritten


def test_a_function_imports_the_domain_itself(tmp_path: Path) -> None:
    path = rewritten(fused_matmul_transposed, in_function(), tmp_path, of=finding("local::F/c"))
    assert "com.microsoft" in [one.domain for one in onnx.load(path).functions[0].opset_import]
