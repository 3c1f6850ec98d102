from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import memdiag
from benchmarks.environments import ProvisionError
from benchmarks.runtimes import runtime
from tests.rules.examining import findings

MIB = 1024 * 1024
HEADER = '<ir_version: 10, opset_import: ["": 17]>\n'
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
    model = onnx.parser.parse_model(HEADER + body)
    weights = {
        "row": np.linspace(0, 1, 4096, dtype=np.float32)[np.newaxis],
        "factors": np.linspace(1, 2, 4096, dtype=np.float32),
        "sizes": np.array([rows, 4096]),
    }
    for name, values in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


@pytest.mark.parametrize("version", ["1.24.4", "1.32.0"])
def test_the_peak_of_a_chain_is_found(version: str, tmp_path: Path) -> None:
    (found,) = findings("folding-peak", chain(), tmp_path, runtime=version)
    # Three results are held, and one is copied.
    assert found.peak_bytes == pytest.approx(4 * 64 * MIB, rel=0.01)
    assert found.bytes == 0
    assert found.nodes == ("Expand_0", "Mul_1", "Exp_2")
    assert "keeps only 16 KiB of it" in found.message


@pytest.mark.parametrize(
    "model",
    [chain(rows=64), chain(KEPT, rows=512), chain(COMPUTED)],
    ids=["little", "most of it stays", "computed in each run"],
)
def test_what_is_small_or_stays_is_not_reported(model: ModelProto, tmp_path: Path) -> None:
    assert findings("folding-peak", model, tmp_path, runtime="1.32.0") == []


def test_of_many_equal_results_twenty_nodes_are_named(tmp_path: Path) -> None:
    steps = "".join(f"v{index + 1} = Exp (v{index}) " for index in range(29))
    body = (
        f"g (float[N, 4096] x) => (float[N, 4096] y) {{ v0 = Expand (row, sizes) {steps}"
        "small = ReduceMean <axes = [0], keepdims = 0> (v29) y = Add (x, small) }"
    )
    (found,) = findings("folding-peak", chain(body), tmp_path, runtime="1.32.0")
    assert len(found.nodes) == 20


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.24.4", "1.31.1", "1.32.0"])
def test_a_profile_measures_the_peak(version: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(chain(), path)
    try:
        python = runtime(version)
    except ProvisionError as error:
        pytest.skip(str(error))
    profile = memdiag.profile(
        path, python=python, runs=1, session_options={"intra_op_num_threads": "1"}, xray="none"
    )
    (found,) = (one for one in profile.findings if one.name == "folding-peak")
    assert found.evidence == "measured"
    assert found.measured_bytes == pytest.approx(found.peak_bytes, rel=0.05)
