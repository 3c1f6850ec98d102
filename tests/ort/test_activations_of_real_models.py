"""The predicted peak next to what the runtime's own arena has in use, node by node."""

from pathlib import Path

import pytest

from memdiag.ort.activations import simulate_run
from tests.ort.executing import analysed, most_in_use, profiled_nodes

pytestmark = pytest.mark.slow

TOLERANCE = 0.01
"""Of the ratio. Repeated measurements are equal to the byte."""

# Model, sizes, and predicted / measured on onnxruntime 1.32.0. Where it is far from 1, the
# optimized graph of the runtime has other values.
CASES: list[tuple[str, dict[str, int], float]] = [
    *((f"light_{name}", {}, 1.0) for name in ("bvlc_alexnet", "densenet121", "inception_v1")),
    *((f"light_{name}", {}, 1.0) for name in ("inception_v2", "resnet50", "shufflenet")),
    *((f"light_{name}", {}, 1.0) for name in ("squeezenet", "vgg19", "zfnet512")),
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


@pytest.mark.parametrize(("name", "sizes", "ratio"), CASES)
def test_the_peak_is_what_the_arena_uses(
    real_models: dict[str, Path], tmp_path: Path, name: str, sizes: dict[str, int], ratio: float
) -> None:
    path = real_models[name]
    measured = most_in_use(profiled_nodes(path, sizes, tmp_path))
    with analysed(path, sizes) as ctx:
        found = simulate_run(ctx.graphs, ctx.shapes, ctx.folds).peak
    assert found.peak_bytes / measured == pytest.approx(ratio, abs=TOLERANCE)
