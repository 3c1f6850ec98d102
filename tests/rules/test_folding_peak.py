from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from tests.model_text import with_weights
from tests.rules.building import MIB
from tests.rules.examining import findings, found
from tests.rules.measuring import profile

RULE = "folding-peak"
REDUCED = """g (float[N, 4096] x) => (float[N, 4096] y) {
    big = Expand (row, sizes) scaled = Mul (big, factors) curved = Exp (scaled)
    small = ReduceMean <axes = [0], keepdims = 0> (curved) y = Add (x, small)
}"""
KEPT = """g (float[N, 4096] x) => (float[N, 4096] y) {
    big = Expand (row, sizes) y = MatMul (x, big)
}"""
COMPUTED = """g (float[1024, 4096] x) => (float[1, 4096] y) {
    scaled = Mul (x, factors) curved = Exp (scaled) small = ReduceMean <axes = [0]> (curved)
    y = Add (small, row)
}"""


def chain(body: str = REDUCED, rows: int = 4096) -> ModelProto:
    """Return a model of 48 KiB of weights; each large value has 16 KiB for each of `rows`."""
    return with_weights(
        body,
        row=np.linspace(0, 1, 4096, dtype=np.float32)[np.newaxis],
        factors=np.linspace(1, 2, 4096, dtype=np.float32),
        sizes=np.array([rows, 4096]),
    )


@pytest.mark.parametrize("version", ["1.24.4", "1.32.0"])
def test_the_peak_of_a_chain_is_found(version: str, tmp_path: Path) -> None:
    nodes = ("Expand_0", "Mul_1", "Exp_2")
    finding = found(RULE, chain(), tmp_path, runtime=version, bytes=0, nodes=nodes)
    # Three results are held, and one is copied.
    assert finding.peak_bytes == pytest.approx(4 * 64 * MIB, rel=0.01)
    assert "keeps only 16 KiB of it" in finding.message


@pytest.mark.parametrize(
    "model",
    [chain(rows=64), chain(KEPT, rows=512), chain(COMPUTED)],
    ids=["little", "most of it stays", "computed in each run"],
)
def test_what_is_small_or_stays_is_not_reported(model: ModelProto, tmp_path: Path) -> None:
    assert findings(RULE, model, tmp_path, runtime="1.32.0") == []


def test_of_many_equal_results_twenty_nodes_are_named(tmp_path: Path) -> None:
    steps = "".join(f"v{index + 1} = Exp (v{index}) " for index in range(29))
    body = (
        f"g (float[N, 4096] x) => (float[N, 4096] y) {{ v0 = Expand (row, sizes) {steps}"
        "small = ReduceMean <axes = [0], keepdims = 0> (v29) y = Add (x, small) }"
    )
    assert len(found(RULE, chain(body), tmp_path, runtime="1.32.0").nodes) == 20


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.24.4", "1.31.1", "1.32.0"])
def test_a_profile_measures_the_peak(version: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(chain(), path)
    measured = profile(path, version, xray="none")
    (finding,) = (one for one in measured.findings if one.name == RULE)
    assert finding.evidence == "measured"
    assert finding.measured_bytes == pytest.approx(finding.peak_bytes, rel=0.05)
