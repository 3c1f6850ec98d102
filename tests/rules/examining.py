"""A model written as text or proto, examined by one rule."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


def found(
    rule: str,
    model: onnx.ModelProto | Path,
    folder: Path,
    /,
    *,
    runtime: Any = "1.31.1",  # of any type, so that tables of fields can be dicts of objects
    sizes: Any = None,
    **fields: object,
) -> Finding:
    """Return the one finding of `rule` in `model`, whose fields have to be those in `fields`.

    Of what it expects, ``copies`` are kind, count and bytes.
    """
    (finding,) = findings(rule, model, folder, runtime=runtime, sizes=sizes)
    assert {name: _field(finding, name) for name in fields} == fields
    return finding


def _field(finding: Finding, name: str) -> object:
    if name == "copies":
        return [(copies.kind, copies.count, copies.bytes) for copies in finding.expected]
    return getattr(finding, name)


def external(model: onnx.ModelProto, folder: Path) -> Path:
    """Save `model` with its weights in a file of their own, and return its path."""
    path = folder / "external.onnx"
    copy = onnx.ModelProto.FromString(model.SerializeToString())  # saving changes what it saves
    onnx.save(copy, path, save_as_external_data=True, location="data", size_threshold=0)
    return path
