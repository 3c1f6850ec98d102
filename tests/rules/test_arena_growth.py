from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.model_text import text_model, with_weights
from tests.rules.building import MIB, with_large_weight
from tests.rules.examining import findings, found

RULE = "arena-growth"
TWO_SIZES = """g (float[height, width] x) => (float[height, width] y) {
    a = Erf (x) y = Relu (a) }"""


def attention(batch: int | str = "batch", length: int | str = "length") -> onnx.ModelProto:
    """Return attention of one head of 64 on [batch, length, 64], with Erf for the softmax."""
    text = f"""g (float[{batch}, {length}, 64] x) => (float[{batch}, {length}, 64] y) {{
        keys = MatMul (x, w)
        turned = Transpose <perm = [0, 2, 1]> (keys)
        scores = MatMul (x, turned)
        soft = Erf (scores)
        y = MatMul (soft, x) }}"""
    return with_weights(text, w=np.ones((64, 64), np.float32))


def test_activations_at_given_sizes_are_reported_with_their_growth(tmp_path: Path) -> None:
    sizes = {"batch": 8, "length": 1024}
    # The scores and what Erf makes of them.
    fields = {"rule": "MD601", "bytes": 2 * 32 * MIB, "peak_bytes": 0, "nodes": ("Erf_3",)}
    finding = found(RULE, attention(), tmp_path, sizes=sizes, **fields)
    assert "take about 64 MiB at batch=8, length=1024" in finding.message
    assert "; 128 MiB at batch=16; 256 MiB at length=2048" in finding.message


def test_equal_growth_is_reported_once(tmp_path: Path) -> None:
    sizes = {"height": 4096, "width": 4096}
    finding = found(RULE, text_model(TWO_SIZES), tmp_path, sizes=sizes)
    assert finding.message.endswith("width=4096; 256 MiB at height=8192 or width=8192")


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        (attention(), {"batch": 7, "length": 1024}),
        (attention(), None),
        (attention(8, 1024), None),
        (attention(), {"nobody": 3}),
        (attention(), {"batch": -1}),
    ],
    ids=["less than 64 MiB", "assumed sizes", "no free sizes", "of another model", "negative"],
)
def test_near_misses(tmp_path: Path, model: onnx.ModelProto, sizes: dict[str, int] | None) -> None:
    assert findings(RULE, model, tmp_path, sizes=sizes) == []


def test_sizes_that_nobody_gave_are_said_to_be_assumed_and_claim_no_bytes(tmp_path: Path) -> None:
    finding = found(RULE, attention(), tmp_path, sizes={"batch": 1024}, bytes=0)
    assert "take about 128 MiB at batch=1024, length=128, assumed sizes" in finding.message


def test_at_assumed_sizes_large_weights_make_it_immaterial(tmp_path: Path) -> None:
    model = with_large_weight(attention(), tmp_path, 600 * MIB)
    assert findings(RULE, model, tmp_path, sizes={"batch": 1024}) == []
    assert len(findings(RULE, model, tmp_path, sizes={"batch": 1024, "length": 128})) == 1
