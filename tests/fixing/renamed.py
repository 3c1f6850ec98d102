"""What tests of fixing share: a model with one weight, findings in it, and rewrites of its name."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

from memdiag.records.finding import Finding
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Arithmetic, Rewrite, Rewriter

ROWS, COLUMNS = 512, 256
PRODUCT = f"g (float[n, {ROWS}] x) => (float[n, {COLUMNS}] y) {{ y = MatMul(x, w) }}"


def write(path: Path, *, external: bool = False) -> Path:
    """Write a product by the weight w of 512 KiB, page-aligned where it is external."""
    proto = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {PRODUCT}')
    values = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(values, "w"))
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(
        proto, path, save_as_external_data=external, location=f"{path.name}.bin", size_threshold=0
    )
    return path


def finding(name: str = "rule", *weights: str, remedies: tuple[str, ...] = ()) -> Finding:
    """Return a finding of the rule called `name`."""
    return Finding(
        model="m.onnx",
        rule="MD999",
        name=name,
        message="",
        detail="",
        weights=weights or ("w",),
        nodes=(),
        graph="",
        bytes=1,
        peak_bytes=1,
        phase=None,
        evidence="predicted",
        measured_bytes=None,
        expected=(),
        remedies=remedies,
    )


def renaming(
    name: str,
    to: str,
    *,
    refuse: Callable[[Finding], str | None] = lambda finding: None,
    arithmetic: Arithmetic = "reordered",
    safe: bool = True,
) -> Rewriter:
    """Return a rewriter called `name`, whose work is to have the graph's name end in `to`."""

    def check(editor: ModelEditor, finding: Finding) -> str | None:
        return refuse(finding)

    def apply(editor: ModelEditor, finding: Finding) -> bool:
        before = editor.model.graph.name or ""
        if refuse(finding) is not None or before.endswith(to):
            return False
        editor.model.graph.name = before + to
        return True

    rewrite = Rewrite(name=name, summary=name, rules=("rule",), arithmetic=arithmetic, safe=safe)
    return Rewriter(rewrite, check, apply)
