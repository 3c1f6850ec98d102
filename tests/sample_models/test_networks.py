"""The larger recipes compute what they say, on every runtime, and show the waste they are for."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import memdiag
from benchmarks.environments import ProvisionError
from benchmarks.runtimes import VERSIONS, runtime
from tests.sample_models.running import inputs, run, session

NETWORKS = ["qdq_matmul", "matmul_nbits", "phi_like", "denormal_conv", "crnn"]

LOAD_AND_RUN = """
import sys
import numpy as np
import onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = 1
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
np.save(sys.argv[3], session.run(None, dict(np.load(sys.argv[2])))[0])
"""


@pytest.mark.parametrize("external", [False, True])
def test_the_twins_give_the_very_same(sample_model: Callable[..., Path], external: bool) -> None:
    qdq, nbits = (sample_model(name, 2, external) for name in ("qdq_matmul", "matmul_nbits"))
    result = run(qdq)
    assert result.std() == pytest.approx(1, abs=0.3)
    np.testing.assert_array_equal(result, run(nbits))


@pytest.mark.parametrize("name", ["phi_like", "crnn"])
def test_examples_of_a_batch_do_not_mix(sample_model: Callable[..., Path], name: str) -> None:
    path = sample_model(name, 2)
    given = inputs(session(path))
    (key,) = given
    other = given[key][..., ::-1].copy()
    both = run(path, {key: np.concatenate([given[key], other])})
    axis = 0 if name == "phi_like" else 1
    alone = [run(path, {key: one}) for one in (given[key], other)]
    expected = np.concatenate(alone, axis=axis)
    assert np.abs(alone[0] - alone[1]).max() > 0.1
    np.testing.assert_allclose(both, expected, atol=2e-2 * np.abs(expected).max())


def test_attention_looks_back_and_not_ahead(sample_model: Callable[..., Path]) -> None:
    path = sample_model("phi_like", 2)
    before, after = (run(path, {"ids": np.array([[3, 1, token, 1, 5]])})[0] for token in (4, 9))
    differences = np.abs(before - after).max(axis=-1) / np.abs(before).max()
    assert differences[:2].max() == 0
    assert differences[2:].min() > 1e-3


def test_norms_keep_the_size_of_activations(sample_model: Callable[..., Path]) -> None:
    path = sample_model("phi_like", 2)
    weights = {tensor.name: tensor.dims for tensor in onnx.load_model(path).graph.initializer}
    width = weights["model.embedding.weight"][1]
    logits = run(path, {"ids": np.array([[1, 2, 3]])})
    # A normed vector times rows of standard normal numbers: the root of the width.
    assert logits.std() == pytest.approx(width**0.5, rel=0.1)


def test_probabilities_sum_to_one(sample_model: Callable[..., Path]) -> None:
    path = sample_model("crnn", 2)
    sums = np.exp(run(path)).sum(axis=-1)
    np.testing.assert_allclose(sums, 1, atol=1e-5)


def test_half_of_the_weights_are_denormal_and_no_activation(
    sample_model: Callable[..., Path],
) -> None:
    path = sample_model("denormal_conv", 2)
    tiny = np.finfo(np.float32).tiny
    model = onnx.load_model(path)
    for tensor in model.graph.initializer:
        values = np.abs(onnx.numpy_helper.to_array(tensor))
        assert np.mean((values > 0) & (values < tiny)) == pytest.approx(0.5, abs=0.01)
    result = np.abs(run(path))
    assert 0.1 < result.std() < 10
    assert not ((result > 0) & (result < tiny)).any()


WASTE = {"phi_like": {"shared-weight-transposed"}, "denormal_conv": {"denormal-weights"}}


@pytest.mark.parametrize("name", NETWORKS)
def test_check_finds_the_waste_of_each_and_no_other(
    sample_model: Callable[..., Path], name: str
) -> None:
    # What a run takes is no defect.
    found = memdiag.check(sample_model(name, 8), for_onnxruntime="1.24.4", ignore=["arena-growth"])
    assert {finding.name for finding in found} == WASTE.get(name, set())


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NETWORKS)
def test_they_run_on_every_runtime(
    sample_model: Callable[..., Path], tmp_path: Path, name: str, version: str
) -> None:
    try:
        python = runtime(version)
    except ProvisionError as error:
        pytest.skip(str(error))
    path = sample_model(name, 2)
    given = inputs(session(path))
    np.savez(tmp_path / "given.npz", **given)  # type: ignore[arg-type] # names are free
    files = [str(path), str(tmp_path / "given.npz"), str(tmp_path / "result.npy")]
    subprocess.run([python, "-c", LOAD_AND_RUN, *files], check=True, capture_output=True)
    expected = run(path, given)
    result = np.load(tmp_path / "result.npy")
    # Products in 8 bits round whatever differs before them.
    np.testing.assert_allclose(result, expected, atol=2e-2 * np.abs(expected).max())
