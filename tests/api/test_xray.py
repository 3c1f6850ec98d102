"""What real sessions' logs say of who made their copies."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx

from memdiag.api.profile import profile
from memdiag.records.attribution import Attribution
from tests.api.small_models import model_of

RANDOM = np.random.default_rng(5)


def noise(*shape: int) -> Any:
    return RANDOM.standard_normal(shape, np.float32)


def seen(folder: Path, shape: str, nodes: str, **weights: Any) -> Attribution:
    """Return the X-ray of a session that ran the model."""
    text = f"main (float[{shape}] x) => (float y) {{ {nodes} }}"
    model = model_of(text, **weights)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    path = folder / "model.onnx"
    onnx.save(model, path)
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
    nodes = """[turn] t = Transpose <perm = [1, 0]> (w) [add] a = Add (x, t)
        [straight] b = MatMul (a, v) [turned] y = Gemm <transB = 1> (b, v)"""
    attribution = seen(tmp_path, "96, 64", nodes, w=noise(64, 96), v=noise(64, 80))
    assert makers(attribution, "w") == {"transposed": "ConstantFolding · turn"}
    assert makers(attribution, "v") == {
        "packed_fp320": "prepack · straight",
        "packed_fp321": "prepack · turned",
    }


def test_what_a_run_dequantized_was_not_folded(tmp_path: Path) -> None:
    # Something else is folded.
    nodes = """[turn] t = Transpose <perm = [1, 0]> (v) [scale] f = DequantizeLinear (w, scale)
        [add] a = Add (x, f) [more] y = Add (a, t)"""
    integers = RANDOM.integers(-100, 100, (96, 64)).astype(np.int8)
    weights = {"w": integers, "scale": np.array(0.5, np.float32), "v": noise(64, 96)}
    attribution = seen(tmp_path, "96, 64", nodes, **weights)
    assert makers(attribution, "v") == {"transposed": "ConstantFolding · turn"}
    made = makers(attribution, "w")
    assert made["original"] == "parse"
    # The next node may have written over it.
    assert made.get("dequantized", "kernel · scale") == "kernel · scale"


def test_a_convolution_is_blocked_after_what_was_folded_into_it(tmp_path: Path) -> None:
    nodes = "[filter] c = Conv (x, w) [scale] y = Mul (c, k)"
    weights = {"w": noise(32, 16, 3, 3), "k": noise(32, 1, 1)}
    attribution = seen(tmp_path, "1, 16, 8, 8", nodes, **weights)
    made = {str(copy.made_by) for copy in attribution.copies if copy.kind == "fused"}
    assert made
    assert {one.partition(" · ")[0] for one in made} <= {"NchwcTransformer", "ConvMulFusion"}
