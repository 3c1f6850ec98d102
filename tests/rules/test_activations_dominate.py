from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.rules.examining import findings

MIB = 1024 * 1024


def with_large_weight(model: onnx.ModelProto, folder: Path, size: int) -> onnx.ModelProto:
    """Add a weight of `size` bytes, all of it a hole in an external file."""
    with open(folder / "large.bin", "wb") as file:
        file.truncate(size)
    tensor = model.graph.initializer.add(name="large", data_type=onnx.TensorProto.FLOAT)
    tensor.dims.append(size // 4)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="large.bin")
    return model


def scores(rows: int | str, columns: int = 4096, weight: int = 4) -> onnx.ModelProto:
    """Return Erf(MatMul(x, Transpose(x))) of `rows`, with a weight of so many KiB."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 17]>
        g (float[{rows}, 256] x, float[{columns}, 256] keys) => (float[{rows}, 256] y) {{
            turned = Transpose <perm = [1, 0]> (keys)
            dots = MatMul (x, turned)
            soft = Erf (dots)
            mixed = MatMul (soft, keys)
            y = Mul (mixed, w)
        }}"""
    )
    values = np.ones((weight, 1, 256), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(values, "w"))
    return model


def test_values_larger_than_the_weights_are_reported(tmp_path: Path) -> None:
    (found,) = findings("activations-dominate", scores(4096), tmp_path)
    assert found.rule == "MD602"
    assert found.bytes == 2 * 64 * MIB
    assert found.peak_bytes == 0
    assert "take about 128 MiB at once at Erf_2" in found.message
    assert "'dots' with 64 MiB" in found.message


def test_free_sizes_must_be_given(tmp_path: Path) -> None:
    model = scores("N")
    assert findings("activations-dominate", model, tmp_path) == []
    assert findings("activations-dominate", model, tmp_path, sizes={"M": 4096}) == []
    (found,) = findings("activations-dominate", model, tmp_path, sizes={"N": 4096})
    assert "take about 128 MiB at once" in found.message
    assert found.bytes == 0  # which arena-growth counts


def test_little_is_not_reported(tmp_path: Path) -> None:
    assert findings("activations-dominate", scores(1024), tmp_path) == []


def test_weights_that_are_larger_still_are_not_dominated(tmp_path: Path) -> None:
    model = with_large_weight(scores(4096), tmp_path, 129 * MIB)
    assert findings("activations-dominate", model, tmp_path) == []


def test_what_is_folded_counts_as_weights(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 17]>
        g (float[1, 4096] x) => (float[1, 8192] y) {
            sizes = Constant <value = int64[2] {4096, 8192}> ()
            table = ConstantOfShape (sizes)
            y = MatMul (x, table)
        }"""
    )
    assert findings("activations-dominate", model, tmp_path) == []


@pytest.mark.parametrize(("reader", "is_fused"), [("MatMul", True), ("Sub", False)])
def test_dequantized_weights_that_the_runtime_fuses_away_are_not_activations(
    tmp_path: Path, reader: str, is_fused: bool
) -> None:
    """A product becomes MatMulNBits; a difference is computed in floating point."""
    size = 4096 + 256
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[1, {size}] x) => (float y) {{
            d = DequantizeLinear <axis = 0, block_size = 32> (w, s)
            p = {reader} (x, d)
            y = ReduceSum <keepdims = 0> (p)
        }}"""
    )
    weight = onnx.helper.make_tensor(
        "w", onnx.TensorProto.UINT4, [size, size], bytes(size * size // 2), raw=True
    )
    scales = np.ones((size // 32, size), np.float32)
    model.graph.initializer.append(weight)
    model.graph.initializer.append(onnx.numpy_helper.from_array(scales, "s"))
    found = findings("activations-dominate", model, tmp_path)
    assert (found == []) == is_fused
