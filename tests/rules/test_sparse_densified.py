from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.rules.building import MIB, indices, model, raw, rows, values
from tests.rules.conftest import Agrees
from tests.rules.examining import findings
from tests.rules.measuring import NEWEST, above_baseline, xray

RULE = "sparse-densified"


def sparse(shape: tuple[int, int], count: int, *, name: str = "s") -> onnx.SparseTensorProto:
    places = np.random.default_rng(0).choice(shape[0] * shape[1], count, replace=False)
    return helper.make_sparse_tensor(
        raw(values((count,)), name), raw(np.sort(places).astype(np.int64), ""), list(shape)
    )


def gathering(tensor: onnx.SparseTensorProto, *, as_constant: bool = False) -> onnx.ModelProto:
    """Return a model that gathers rows of a sparse weight."""
    nodes = [helper.make_node("Gather", ["s", "rows"], ["y"], name="gather")]
    if as_constant:
        nodes.insert(0, helper.make_node("Constant", [], ["s"], sparse_value=tensor))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, tensor.dims[1]])
    return model(
        helper.make_graph(
            nodes,
            "main",
            [indices()],
            [output],
            sparse_initializer=[] if as_constant else [tensor],
        )
    )


def multiplying(tensor: onnx.SparseTensorProto) -> onnx.ModelProto:
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size])
        for name, size in zip("xy", tensor.dims, strict=True)
    ]
    node = helper.make_node("MatMul", ["x", "s"], ["y"], name="product")
    graph = helper.make_graph([node], "main", ends[:1], ends[1:], sparse_initializer=[tensor])
    return model(graph)


@pytest.mark.parametrize("as_constant", [False, True])
@pytest.mark.parametrize(("version", "stored"), [("1.29.0", 0), ("1.30.0", 12), ("1.31.1", 12)])
def test_the_dense_tensor_is_private(
    tmp_path: Path, version: str, stored: int, as_constant: bool
) -> None:
    proto = gathering(sparse((64, MIB // 16), 1000), as_constant=as_constant)
    (found,) = findings(RULE, proto, tmp_path, runtime=version)
    assert found.weights == ("s",)
    assert found.bytes == 16 * MIB + 1000 * stored
    assert "12 KiB become 16 MiB" in found.message


def test_a_packed_one_leaves_values_and_indices(tmp_path: Path) -> None:
    proto = multiplying(sparse((1024, 1024), MIB // 4))
    assert not findings(RULE, proto, tmp_path, runtime="1.29.0")
    (found,) = findings(RULE, proto, tmp_path)
    assert found.bytes == 3 * MIB


def test_small_ones_and_dense_ones_are_not_said(tmp_path: Path) -> None:
    assert not findings(RULE, gathering(sparse((64, 2048), 100)), tmp_path)
    assert not findings(RULE, rows(np.zeros((4, MIB), np.float32)), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
def test_dense_external_data_saves_what_was_predicted(
    tmp_path: Path, version: str, agrees: Agrees
) -> None:
    tensor = sparse((256, MIB // 8), 2 * MIB)
    (found,) = findings(RULE, gathering(tensor), tmp_path, runtime=version)
    before = above_baseline(xray(tmp_path / "model.onnx", version, run=False))
    dense = np.zeros((256, MIB // 8), np.float32)
    onnx.save(
        rows(dense, name="s"),
        tmp_path / "dense.onnx",
        save_as_external_data=True,
        location="dense.data",
    )
    after = above_baseline(xray(tmp_path / "dense.onnx", version, run=False))
    agrees(found, before - after, version)
