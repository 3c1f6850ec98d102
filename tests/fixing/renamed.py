"""What tests of fixing share: a model with one weight, findings in it, and rewrites of its name."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import onnx

from memdiag.records.finding import Finding
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Arithmetic, Rewrite, Rewriter
from tests.model_text import random, with_weights
from tests.rewrites.rewriting import finding as finding_about

ROWS, COLUMNS = 512, 256
PRODUCT = f"g (float[n, {ROWS}] x) => (float[n, {COLUMNS}] y) {{ y = MatMul(x, w) }}"


def write(path: Path, *, external: bool = False) -> Path:
    """Write a product by the weight w of 512 KiB, page-aligned where it is external."""
    proto = with_weights(PRODUCT, 9, 17, w=random((ROWS, COLUMNS)))
    path.parent.mkdir(parents=True, exist_ok=True)
    location = f"{path.name}.bin"
    onnx.save(proto, path, save_as_external_data=external, location=location, size_threshold=0)
    return path


def finding(name: str = "rule", *weights: str, remedies: tuple[str, ...] = ()) -> Finding:
    """Return a finding of the rule called `name`."""
    about = finding_about(*weights or ("w",))
    sizes = {"bytes": 1, "peak_bytes": 1}
    return msgspec.structs.replace(about, name=name, rule="MD999", remedies=remedies, **sizes)


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

    rewrite = Rewrite(name=name, summary=name, arithmetic=arithmetic, safe=safe)
    return Rewriter(rewrite, check, apply)
