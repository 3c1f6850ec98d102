"""What findings say, one for each rule whose sentences have several parts."""

from pathlib import Path
from typing import Any

import pytest

from tests.rules import (
    test_conv_cache,
    test_conv_scratch,
    test_dequantized_matmul,
    test_folding_grows,
    test_half_precision_cast,
    test_original_kept,
    test_packed_mapped_weights,
    test_shared_weight_transposed,
)
from tests.rules.examining import findings
from tests.snapshots import assert_approved

APPROVED = Path(__file__).with_name("approved") / "sentences.txt"
MODELS: dict[str, list[Any]] = {
    "shared-weight-transposed": [
        test_shared_weight_transposed.model(test_shared_weight_transposed.PLAIN),
        test_shared_weight_transposed.model(test_shared_weight_transposed.BRANCHES),
        test_shared_weight_transposed.two(0),
    ],
    "original-kept": [
        test_original_kept.model(test_original_kept.TIED),
        test_original_kept.model("y = MatMul(x, w) z = Gemm <transB = 1> (u, w)"),
        test_original_kept.two(test_original_kept.SAME),
    ],
    "half-precision-cast": [
        test_half_precision_cast.halves(layers=3),
        test_half_precision_cast.network(test_half_precision_cast.RECTIFIED),
    ],
    "dequantized-matmul": [test_dequantized_matmul.quantized(axis=1, layers=3)],
    "folding-grows": [
        test_folding_grows.CASES["Expand"][0],
        test_folding_grows.products(8),
    ],
    "conv-scratch": [test_conv_scratch.BATCH_3D],
    "conv-cache": [test_conv_cache.IMAGES],
}


def test_what_findings_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memdiag.rules.catalog.conv_cache.has_sme", lambda: True)
    models = MODELS | {"packed-mapped-weights": [test_packed_mapped_weights.layers(tmp_path)]}
    lines = []
    for rule, examined in models.items():
        runtime = "1.26.0" if rule.startswith("conv") else "1.31.1"
        for model in examined:
            (finding,) = findings(rule, model, tmp_path, runtime=runtime)
            lines += [f"{finding.rule} {rule}", finding.message, finding.detail, ""]
    assert_approved("\n".join(lines), APPROVED)
