"""The forms of dequantized products that become a MatMulNBits, and the releases that take it."""

from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto

from memdiag.records.finding import Finding
from memdiag.rewrites.catalog import dequantize_to_matmulnbits
from memdiag.verify.outputs import Bound, output_difference
from tests.model_text import random
from tests.rewrites.quantized_models import ALL_KINDS, FUSED, IN_EACH_RUN, level, model
from tests.rewrites.rewriting import (
    difference_on,
    largest_difference,
    operators,
    rewrite,
    run,
    runs_on,
)

FORMS: dict[str, dict[str, Any]] = {
    "blocks": {},
    "one scale a column": {"block": None},
    "one scale": {"block": None, "scales": "all"},
    "Gemm": {"gemm": {}},
    "Gemm and a bias": {"gemm": {}, "bias": (48,), "block": None},
    "Gemm and rows to add": {"gemm": {"alpha": 1.0, "beta": 1.0}, "bias": (1, 48)},
    "by columns": {"gemm": {"transB": 1}},
    "by columns, not full": {"gemm": {"transB": 1}, "depth": 116, "bias": ()},
    "by columns, one scale a column": {"gemm": {"transB": 1}, "block": None},
    "by columns, one scale": {"gemm": {"transB": 1}, "block": None, "scales": "all"},
    "few rows": {"block": None, "depth": 10},
    "many rows": {"block": None, "depth": 600},
}


@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_every_form(tmp_path: Path, form: str, kind: str, zeros: bool) -> None:
    """In fp32 it is what the two nodes compute where nothing fuses them, but for the order."""
    original = model(ALL_KINDS[kind], zeros=zeros, **FORMS[form])
    fixed = rewrite(dequantize_to_matmulnbits, original, IN_EACH_RUN, tmp_path)
    added = ["Add"] if FORMS[form].get("bias") is not None else []
    assert operators(fixed) == [*added, "MatMulNBits"]
    depth = FORMS[form].get("depth", 64)
    for rows in (1, 5):
        feeds = {"x": random((rows, depth), 3)}
        before = run(tmp_path / "original.onnx", feeds, "ORT_DISABLE_ALL")["y"]
        after = run(fixed, feeds)["y"]
        assert output_difference("y", before, after).relative <= Bound.reordered(depth).relative


@pytest.mark.parametrize("form", ["blocks", "one scale a column", "one scale", "Gemm"])
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_what_the_runtime_fuses_is_computed_the_same(tmp_path: Path, form: str, kind: str) -> None:
    original = model(ALL_KINDS[kind], **FORMS[form])
    fixed = rewrite(dequantize_to_matmulnbits, original, FUSED, tmp_path)
    assert level(fixed) == 4
    feeds = {"x": random((3, 64), 3)}
    assert largest_difference(tmp_path / "original.onnx", fixed, feeds, tmp_path) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "of", "runs"),
    [
        ("1.20.1", FUSED, False),
        ("1.22.1", FUSED, True),
        ("1.22.1", IN_EACH_RUN, False),
        ("1.23.2", IN_EACH_RUN, True),
    ],
)
def test_which_releases_take_eight_bits(
    tmp_path: Path, version: str, of: Finding, runs: bool
) -> None:
    original = model(TensorProto.UINT8, gemm={"transB": 1}, bias=(48,))
    assert runs_on(version, rewrite(dequantize_to_matmulnbits, original, of, tmp_path)) is runs


@pytest.mark.slow
@pytest.mark.parametrize("form", ["one scale a column", "by columns", "Gemm and a bias"])
@pytest.mark.parametrize(("kind", "version"), [("int4", "1.22.1"), ("int8", "1.24.4")])
def test_other_releases_compute_the_same(
    tmp_path: Path, form: str, kind: str, version: str
) -> None:
    original = model(ALL_KINDS[kind], **FORMS[form])
    fixed = rewrite(dequantize_to_matmulnbits, original, IN_EACH_RUN, tmp_path)
    feeds = {"x": random((3, 64), 3)}
    found = difference_on(version, tmp_path / "original.onnx", fixed, feeds)
    assert found <= Bound.reordered(64).relative
