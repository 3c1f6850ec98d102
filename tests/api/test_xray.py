"""What real sessions' logs say of who made their copies."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from memdiag.api.profile import profile
from memdiag.records.attribution import Attribution

RANDOM = np.random.default_rng(5)
node = helper.make_node


def noise(*shape: int) -> Any:
    return RANDOM.standard_normal(shape, np.float32)


def seen(folder: Path, nodes: list[onnx.NodeProto], x: list[int], **weights: Any) -> Attribution:
    """Return the X-ray of a session that ran the model."""
    graph = helper.make_graph(
        nodes,
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(values), name) for name, values in weights.items()],
    )
    path = folder / "model.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    found = profile(path, runs=1)
    assert found.attribution is not None, found.notes
    return found.attribution


def makers(attribution: Attribution, name: str) -> dict[str, str | None]:
    """Return the makers of the copies of weight `name` by layout and, where it has one, way."""
    return {
        copy.layout + copy.parameters.get("transB", ""): copy.made_by
        for copy in attribution.copies
        if name in copy.weights
    }


def test_folding_and_packing_are_told_by_what_the_log_has_of_them(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["w"], ["t"], perm=[1, 0], name="turn"),
        node("Add", ["x", "t"], ["a"], name="add"),
        node("MatMul", ["a", "v"], ["b"], name="straight"),
        node("Gemm", ["b", "v"], ["y"], name="turned", transB=1),
    ]
    attribution = seen(tmp_path, nodes, [96, 64], w=noise(64, 96), v=noise(64, 80))
    assert makers(attribution, "w") == {"transposed": "ConstantFolding · turn"}
    assert makers(attribution, "v") == {
        "packed_fp320": "prepack · straight",
        "packed_fp321": "prepack · turned",
    }


def test_what_a_run_dequantized_was_not_folded(tmp_path: Path) -> None:
    nodes = [
        # Something else is folded.
        node("Transpose", ["v"], ["t"], perm=[1, 0], name="turn"),
        node("DequantizeLinear", ["w", "scale"], ["f"], name="scale"),
        node("Add", ["x", "f"], ["a"], name="add"),
        node("Add", ["a", "t"], ["y"], name="more"),
    ]
    integers = RANDOM.integers(-100, 100, (96, 64)).astype(np.int8)
    weights = {"w": integers, "scale": np.float32(0.5), "v": noise(64, 96)}
    attribution = seen(tmp_path, nodes, [96, 64], **weights)
    assert makers(attribution, "v") == {"transposed": "ConstantFolding · turn"}
    made = makers(attribution, "w")
    assert made["original"] == "parse"
    # The next node may have written over it.
    assert made.get("dequantized", "kernel · scale") == "kernel · scale"


def test_a_convolution_is_blocked_after_what_was_folded_into_it(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="filter"),
        node("Mul", ["c", "k"], ["y"], name="scale"),
    ]
    weights = {"w": noise(32, 16, 3, 3), "k": noise(32, 1, 1)}
    attribution = seen(tmp_path, nodes, [1, 16, 8, 8], **weights)
    made = {str(copy.made_by) for copy in attribution.copies if copy.kind == "fused"}
    assert made
    assert {one.partition(" · ")[0] for one in made} <= {"NchwcTransformer", "ConvMulFusion"}
