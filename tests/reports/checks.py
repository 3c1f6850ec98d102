"""Checks as tests of the reporters want them: known findings, and names that mean harm."""

from memdiag.records.finding import CHECK_SCHEMA, Check, CheckedModel, ExpectedCopies, Finding

MIB = 1 << 20


def finding(**changes: object) -> Finding:
    """Return a finding of a tied weight, with `changes`."""
    fields: dict[str, object] = {
        "model": "models/tied.onnx",
        "rule": "MD103",
        "name": "shared-weight-transposed",
        "message": "shared.weight is read as it is by embed/Gather and transposed by lm/MatMul.",
        "detail": "Folding copies it once.",
        "weights": ("shared.weight",),
        "nodes": ("embed/Gather", "lm/MatMul"),
        "graph": "",
        "bytes": 64 * MIB,
        "peak_bytes": 128 * MIB,
        "phase": "constant_fold",
        "evidence": "predicted",
        "measured_bytes": None,
        "expected": (
            ExpectedCopies(weights=("shared.weight",), kind="transposed", count=1, bytes=64 * MIB),
        ),
        "remedies": ("gemm-transposed", "overridable-weight"),
    }
    return Finding(**(fields | changes))  # type: ignore[arg-type] # the fields are a record's own


def check(*findings: Finding, models: tuple[CheckedModel, ...] | None = None) -> Check:
    """Return a check with `findings`, of the models that they are in unless `models` says."""
    paths = dict.fromkeys(finding.model for finding in findings) or {"models/tied.onnx": None}
    checked = tuple(
        CheckedModel(path=path, file_bytes=MIB, external_bytes=0, weight_bytes=MIB, node_count=4)
        for path in paths
    )
    return Check(
        schema=CHECK_SCHEMA,
        onnxruntime="1.31.1",
        models=checked if models is None else models,
        findings=findings,
        duration_s=0.31,
    )
