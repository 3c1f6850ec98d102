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


def attention(batch: int | str = "batch", length: int | str = "length") -> onnx.ModelProto:
    """Return attention of one head of 64 on [batch, length, 64], with Erf for the softmax."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 17]>
        g (float[{batch}, {length}, 64] x) => (float[{batch}, {length}, 64] y) {{
            keys = MatMul (x, w)
            turned = Transpose <perm = [0, 2, 1]> (keys)
            scores = MatMul (x, turned)
            soft = Erf (scores)
            y = MatMul (soft, x)
        }}"""
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "w"))
    return model


def test_activations_at_given_sizes_are_reported_with_their_growth(tmp_path: Path) -> None:
    sizes = {"batch": 8, "length": 1024}
    (found,) = findings("arena-growth", attention(), tmp_path, sizes=sizes)
    assert found.rule == "MD601"
    assert found.bytes == 2 * 32 * MIB  # the scores and what Erf makes of them
    assert found.peak_bytes == 0
    assert found.nodes == ("Erf_3",)
    assert "take about 64 MiB at batch=8, length=1024" in found.message
    assert "; 128 MiB at batch=16; 256 MiB at length=2048" in found.message


def test_equal_growth_is_reported_once(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 17]>
        g (float[height, width] x) => (float[height, width] y) {
            a = Erf (x)
            y = Relu (a)
        }"""
    )
    sizes = {"height": 4096, "width": 4096}
    (found,) = findings("arena-growth", model, tmp_path, sizes=sizes)
    assert found.message.endswith("width=4096; 256 MiB at height=8192 or width=8192")


def test_less_than_64_mib_is_not_reported(tmp_path: Path) -> None:
    sizes = {"batch": 7, "length": 1024}
    assert findings("arena-growth", attention(), tmp_path, sizes=sizes) == []


def test_sizes_that_nobody_gave_are_said_to_be_assumed_and_claim_no_bytes(tmp_path: Path) -> None:
    assert findings("arena-growth", attention(), tmp_path) == []
    (found,) = findings("arena-growth", attention(), tmp_path, sizes={"batch": 1024})
    assert "take about 128 MiB at batch=1024, length=128, assumed sizes" in found.message
    assert found.bytes == 0


def test_at_assumed_sizes_large_weights_make_it_immaterial(tmp_path: Path) -> None:
    model = with_large_weight(attention(), tmp_path, 600 * MIB)
    assert findings("arena-growth", model, tmp_path, sizes={"batch": 1024}) == []
    given = {"batch": 1024, "length": 128}
    assert len(findings("arena-growth", model, tmp_path, sizes=given)) == 1


def test_a_model_without_free_sizes_does_not_grow(tmp_path: Path) -> None:
    assert findings("arena-growth", attention(8, 1024), tmp_path) == []


@pytest.mark.parametrize("sizes", [{"nobody": 3}, {"batch": -1}])
def test_sizes_that_do_not_fit_the_model_are_left_out(
    tmp_path: Path, sizes: dict[str, int]
) -> None:
    assert findings("arena-growth", attention(), tmp_path, sizes=sizes) == []
