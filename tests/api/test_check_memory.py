"""What examining a model takes, in processes of their own: it must not grow with the weights."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import memdiag
from benchmarks.check import CHECK, MEASURE, STRUCTURE, many_nodes
from sample_models import load_recipes

MB = 1e6


def peak(code: str, model: Path) -> tuple[float, float]:
    """Return the peak resident set of running `code` on `model`, and that above the imports'."""
    done = subprocess.run(
        [sys.executable, "-c", code + MEASURE, str(model)],
        capture_output=True,
        text=True,
        check=True,
        timeout=110,
        env={**os.environ, "PYTHONPATH": str(Path(memdiag.__file__).parents[1])},
    )
    _, total, above = json.loads(done.stdout.splitlines()[-1])
    return total, above


def test_a_check_of_many_nodes_and_weights_stays_within_250_mb(tmp_path: Path) -> None:
    many_nodes(tmp_path / "many.onnx", 20_000, 5_000)
    total, _ = peak(CHECK, tmp_path / "many.onnx")
    assert total < 250 * MB


def test_the_memory_of_a_check_does_not_grow_with_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "tied.onnx"
    load_recipes()["tied_if"].build(200, path, False)
    total, _ = peak(CHECK, path)
    assert total < 150 * MB


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two weights of 2 Mi numbers in typed fields, whose content is the same.

    Parsed into Python's own objects they would take above 100 MB.
    """
    path = tmp_path_factory.mktemp("typed") / "typed.onnx"
    values = np.random.default_rng().integers(0, 1 << 15, (1024, 2048)).astype(np.uint16)
    tensors = [helper.make_tensor(n, TensorProto.BFLOAT16, [1024, 2048], values) for n in "vw"]
    nodes = [helper.make_node("MatMul", ["x", name], [f"y{name}"]) for name in "vw"]
    x, *ys = (
        helper.make_tensor_value_info(name, TensorProto.BFLOAT16, ["n", 2048])
        for name in ("x", "yv", "yw")
    )
    graph = helper.make_graph(nodes, "typed", [x], ys, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_numbers_in_typed_fields_are_not_held(typed: Path) -> None:
    _, above = peak(STRUCTURE, typed)
    assert above < 30 * MB
    total, _ = peak(CHECK, typed)
    assert total < 150 * MB
