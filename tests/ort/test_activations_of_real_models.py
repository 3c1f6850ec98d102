"""The predicted peak beside what the runtime's own arena has in use, node by node."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from memdiag.model.inputs import make_array, plan_inputs
from memdiag.model.model_file import open_model
from memdiag.ort.activations import simulate_run
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.runtime import Runtime

pytestmark = pytest.mark.slow

TOLERANCE = 0.01
"""Of the ratio. Repeated measurements are equal to the byte."""

# Model, sizes, and predicted / measured on onnxruntime 1.32.0. Where it is far from 1, the
# optimized graph of the runtime has other values.
CASES: list[tuple[str, dict[str, int], float]] = [
    ("light_bvlc_alexnet", {}, 1.0),
    ("light_densenet121", {}, 1.0),
    ("light_inception_v1", {}, 1.0),
    ("light_inception_v2", {}, 1.0),
    ("light_resnet50", {}, 1.0),
    ("light_shufflenet", {}, 1.0),
    ("light_squeezenet", {}, 1.0),
    ("light_vgg19", {}, 1.0),
    ("light_zfnet512", {}, 1.0),
    ("minilm_int8", {"batch": 16, "sequence": 512}, 0.98),
    ("minilm_int8", {"batch": 1, "sequence": 512}, 0.98),
    ("magika", {"unk__214": 8}, 1.0),
    ("ocr_angle", {"x:0": 6, "x:2": 192, "x:3": 192}, 1.0),
    (
        "ocr_detection",
        {"DynamicDimension.0": 1, "DynamicDimension.1": 640, "DynamicDimension.2": 640},
        1.0,
    ),
    ("ocr_recognition", {"DynamicDimension.0": 6, "DynamicDimension.1": 320}, 1.0),
    ("smart_turn", {"s6": 4}, 1.045),
    ("tashkeel_bilstm", {"batch": 8, "seq_len": 256}, 1.0),
    ("tashkeel_rawi", {"batch_size": 16, "sequence": 256}, 1.0),
    ("tashkeel_rawi_v3", {"batch": 8, "seq": 256}, 1.0),
]


def in_use(path: Path, sizes: Mapping[str, int], folder: Path) -> int:
    """Return the most that the arena has in use for values after a node, beside the weights."""
    with open_model(path) as model:
        plans = plan_inputs(model, dims=sizes, given={})
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "run")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    session.run(None, {plan.name: make_array(plan, 0) for plan in plans})
    written = session.end_profiling()
    events: list[dict[str, Any]] = json.loads(Path(written).read_text())
    os.remove(written)
    nodes = [one["args"] for one in events if "mem_bytes_requested_in_use" in one.get("args", {})]
    if not nodes:
        pytest.skip("this onnxruntime does not say what its arena has in use")
    first = nodes[0]
    before = int(first["mem_bytes_requested_in_use"]) - int(first["mem_requested_in_use_delta"])
    return max(int(node["mem_bytes_requested_in_use"]) for node in nodes) - before


@pytest.mark.parametrize(("name", "sizes", "ratio"), CASES)
def test_the_peak_is_what_the_arena_uses(
    real_models: dict[str, Path],
    tmp_path: Path,
    name: str,
    sizes: dict[str, int],
    ratio: float,
) -> None:
    path = real_models[name]
    measured = in_use(path, sizes, tmp_path)
    with open_model(path) as model:
        runtime = Runtime.parse(onnxruntime.__version__)
        ctx = AnalysisContext(model, runtime, sizes=sizes)
        found = simulate_run(ctx.graphs, ctx.shapes, ctx.folds).peak
    assert found.peak_bytes / measured == pytest.approx(ratio, abs=TOLERANCE)
