"""No finding of a profile costs more than the process had above its baseline."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import memdiag
from memdiag.records.profile import Profile
from sample_models import load_recipes

MIB = 1024 * 1024
TOLERANCE = 2 * MIB
"""Pages of libraries that are read for the first time count to the model, some MiB either way."""

HEADER = '<ir_version: 10, opset_import: ["": 17]>\n'
PRODUCTS = "a = MatMul (x, w0) b = MatMul (a, w1) y = MatMul (b, w2)"
LOOKUPS = "a = Gather (w0, i) b = Gather (w1, i) c = Gather (w2, i) y = Sum (a, b, c)"
CASTS = (
    "c0 = Cast <to = 1> (w0) c1 = Cast <to = 1> (w1) c2 = Cast <to = 1> (w2) "
    "a = MatMul (x, c0) b = MatMul (a, c1) y = MatMul (b, c2)"
)
BOTH = "a = Gather (w0, i) b = MatMul (a, w0) c = Gather (w1, i) d = MatMul (c, w1) y = Sum (b, d)"


def alike(body: str, dtype: type[np.generic]) -> ModelProto:
    """Return a model of three weights of 1536 × 1536 with the same content."""
    reads_rows = "Gather" in body
    fed = "int64[N] i" if reads_rows else "float[N, 1536] x"
    model = onnx.parser.parse_model(f"{HEADER} g ({fed}) => (float[N, 1536] y) {{ {body} }}")
    values = np.random.default_rng(0).standard_normal((1536, 1536)).astype(dtype)
    for name in ("w0", "w1", "w2"):
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


def profiled(path: Path) -> Profile:
    found = memdiag.profile(path, runs=1, threads=1)
    assert found.outcome.status == "completed", found.outcome.message
    return found


def hold(profile: Profile) -> None:
    assert profile.steady_rss_bytes is not None
    assert profile.attribution is not None
    steady = profile.steady_rss_bytes - profile.baseline_rss_bytes + TOLERANCE
    peak = profile.peak_rss_bytes - profile.baseline_rss_bytes + TOLERANCE
    # What is mapped and was not read could be resident as well.
    unread = sum(
        copy.bytes - copy.resident_bytes
        for copy in profile.attribution.copies
        if copy.backing.kind == "file"
    )
    for one in profile.findings:
        said = (one.name, one.evidence, one.bytes, one.measured_bytes)
        if one.evidence == "measured" and not one.run_bytes:
            assert one.measured_bytes is not None
            assert one.measured_bytes <= steady, said
        if one.evidence != "refuted":
            assert one.bytes <= steady + unread, said
            assert one.peak_bytes <= peak, said


@pytest.mark.parametrize("external", [False, True], ids=["embedded", "external"])
@pytest.mark.parametrize("name", sorted(load_recipes()))
def test_of_sample_models(sample_model: Callable[..., Path], name: str, external: bool) -> None:
    hold(profiled(sample_model(name, 12.0, external)))


@pytest.mark.parametrize("external", [False, True], ids=["embedded", "external"])
@pytest.mark.parametrize(
    ("body", "dtype"),
    [(PRODUCTS, np.float32), (LOOKUPS, np.float32), (CASTS, np.float16), (BOTH, np.float32)],
    ids=["packed", "looked up", "cast", "both"],
)
def test_of_weights_that_are_alike(
    body: str, dtype: type[np.generic], external: bool, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(alike(body, dtype), path, save_as_external_data=external, location="data")
    hold(profiled(path))
