"""The larger recipes compute what they say, on every runtime, and show the waste they are for."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

import memdiag
from benchmarks.environments import ProvisionError
from benchmarks.runtimes import VERSIONS, runtime

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


def run(path: Path, given: dict[str, NDArray[np.generic]]) -> NDArray[np.float32]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    result: NDArray[np.float32] = session.run(None, given)[0]
    return result


def inputs(path: Path) -> dict[str, NDArray[np.generic]]:
    """Random inputs of five tokens in one example, indices below 20."""
    random = np.random.default_rng(0)
    made: dict[str, NDArray[np.generic]] = {}
    for value in onnx.load_model(path, load_external_data=False).graph.input:
        tensor = value.type.tensor_type
        shape = [
            axis.dim_value or (1 if axis.dim_param == "batch" else 5) for axis in tensor.shape.dim
        ]
        if tensor.elem_type == onnx.TensorProto.INT64:
            made[value.name] = random.integers(0, 20, shape)
        else:
            made[value.name] = random.standard_normal(shape, np.float32)
    return made


@pytest.mark.parametrize("external", [False, True])
def test_the_twins_give_the_very_same(sample_model: Callable[..., Path], external: bool) -> None:
    qdq, nbits = (sample_model(name, 2, external) for name in ("qdq_matmul", "matmul_nbits"))
    given = inputs(qdq)
    result = run(qdq, given)
    assert result.std() == pytest.approx(1, abs=0.3)
    np.testing.assert_array_equal(result, run(nbits, given))


@pytest.mark.parametrize("name", ["phi_like", "crnn", "denormal_conv"])
@pytest.mark.parametrize("megabytes", [0.5, 2, 8])
def test_the_size_is_about_what_was_asked(
    sample_model: Callable[..., Path], name: str, megabytes: float
) -> None:
    # A graph of many nodes takes its own tens of kilobytes, widths come in steps.
    size = sample_model(name, megabytes).stat().st_size
    assert size == pytest.approx(megabytes * 1e6, rel=0.08, abs=60_000)


@pytest.mark.parametrize("name", ["phi_like", "crnn"])
def test_examples_of_a_batch_do_not_mix(sample_model: Callable[..., Path], name: str) -> None:
    path = sample_model(name, 2)
    given = inputs(path)
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
    ids = np.array([[3, 1, 4, 1, 5]])
    changed = np.array([[3, 1, 9, 1, 5]])
    before, after = run(path, {"ids": ids})[0], run(path, {"ids": changed})[0]
    differences = np.abs(before - after).max(axis=-1) / np.abs(before).max()
    assert differences[:2].max() == 0
    assert differences[2:].min() > 1e-3


def test_norms_keep_the_size_of_activations(sample_model: Callable[..., Path]) -> None:
    path = sample_model("phi_like", 2)
    (table,) = (
        onnx.numpy_helper.to_array(tensor)
        for tensor in onnx.load_model(path).graph.initializer
        if tensor.name == "model.embedding.weight"
    )
    logits = run(path, {"ids": np.array([[1, 2, 3]])})
    # A normed vector times rows of standard normal numbers: the root of the width.
    assert logits.std() == pytest.approx(table.shape[1] ** 0.5, rel=0.1)


def test_probabilities_sum_to_one(sample_model: Callable[..., Path]) -> None:
    path = sample_model("crnn", 2)
    sums = np.exp(run(path, inputs(path))).sum(axis=-1)
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
    result = np.abs(run(path, inputs(path)))
    assert 0.1 < result.std() < 10
    assert not ((result > 0) & (result < tiny)).any()


WASTE = {
    "phi_like": {"shared-weight-transposed"},
    "denormal_conv": {"denormal-weights"},
}


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
    given = inputs(path)
    np.savez(tmp_path / "given.npz", **given)  # type: ignore[arg-type] # names are free
    files = [str(path), str(tmp_path / "given.npz"), str(tmp_path / "result.npy")]
    subprocess.run([python, "-c", LOAD_AND_RUN, *files], check=True, capture_output=True)
    expected = run(path, given)
    result = np.load(tmp_path / "result.npy")
    # Products in 8 bits round whatever differs before them.
    np.testing.assert_allclose(result, expected, atol=2e-2 * np.abs(expected).max())
