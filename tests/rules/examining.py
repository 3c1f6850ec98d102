"""A model written as text or proto, examined by one rule."""

from collections.abc import Mapping
from pathlib import Path

import onnx

from memdiag.model.model_file import open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.runtime import Runtime
from memdiag.records.finding import Finding
from memdiag.rules import find_detector


def findings(
    rule: str,
    model: onnx.ModelProto | Path,
    folder: Path,
    *,
    runtime: str = "1.31.1",
    sizes: Mapping[str, int] | None = None,
) -> list[Finding]:
    """Return what `rule` finds in `model`, which is saved in `folder` if it is no path."""
    if isinstance(model, Path):
        path = model
    else:
        path = folder / "model.onnx"
        onnx.save(model, path)
    with open_model(path) as opened:
        ctx = AnalysisContext(opened, Runtime.parse(runtime), sizes=sizes)
        return list(find_detector(rule).detect(ctx))
