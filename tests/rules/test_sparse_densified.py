from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.model_text import random, tensor, text_model
from tests.rules.building import MIB, rows
from tests.rules.examining import findings, found

RULE = "sparse-densified"
ROWS = "g (int64[2] rows) => (float[2, m] y) { y = Gather(s, rows) }"
PRODUCT = "g (float[1, 1024] x) => (float[1, 1024] y) { y = MatMul(x, s) }"


def sparse(
    text: str, shape: tuple[int, int], count: int, *, as_constant: bool = False
) -> onnx.ModelProto:
    """Return the model of `text` with a sparse weight s, perhaps of a Constant."""
    places = np.random.default_rng(0).choice(shape[0] * shape[1], count, replace=False)
    indices = tensor(np.sort(places).astype(np.int64), "")
    weight = helper.make_sparse_tensor(tensor(random((count,)), "s"), indices, list(shape))
    model = text_model(text, 10, 20)
    if as_constant:
        node = helper.make_node("Constant", [], ["s"], sparse_value=weight)
        model.graph.node.insert(0, node)
    else:
        model.graph.sparse_initializer.append(weight)
    return model


@pytest.mark.parametrize("as_constant", [False, True])
@pytest.mark.parametrize(("version", "stored"), [("1.29.0", 0), ("1.30.0", 12), ("1.31.1", 12)])
def test_the_dense_tensor_is_private(
    tmp_path: Path, version: str, stored: int, as_constant: bool
) -> None:
    proto = sparse(ROWS, (64, MIB // 16), 1000, as_constant=as_constant)
    fields = {"weights": ("s",), "bytes": 16 * MIB + 1000 * stored}
    assert "12 KiB become 16 MiB" in found(RULE, proto, tmp_path, runtime=version, **fields).message


def test_a_packed_one_leaves_values_and_indices(tmp_path: Path) -> None:
    proto = sparse(PRODUCT, (1024, 1024), MIB // 4)
    assert not findings(RULE, proto, tmp_path, runtime="1.29.0")
    found(RULE, proto, tmp_path, bytes=3 * MIB)


def test_small_ones_and_dense_ones_are_not_said(tmp_path: Path) -> None:
    assert not findings(RULE, sparse(ROWS, (64, 2048), 100), tmp_path)
    assert not findings(RULE, rows(np.zeros((4, MIB), np.float32)), tmp_path)
