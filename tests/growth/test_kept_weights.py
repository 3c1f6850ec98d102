"""A library that keeps a weight of each session: the growing blocks have the weight's name."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import memdiag

MODEL = """<ir_version: 8, opset_import: ["": 17]>
m (float[1, 64] x) => (float[1, 96] y) {
    hidden = MatMul(x, first)
    y = MatMul(hidden, second)
}"""

# Imported when the child's interpreter starts.
LIBRARY = """
import ctypes
import numpy
import onnxruntime

weight = numpy.load({path!r})
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
create = onnxruntime.InferenceSession

def keep_a_weight(*args, **kwargs):
    ctypes.memmove(ctypes.c_void_p(libc.malloc(weight.nbytes)), weight.tobytes(), weight.nbytes)
    return create(*args, **kwargs)

onnxruntime.InferenceSession = keep_a_weight
"""


def test_a_weight_that_each_reload_leaves_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    weights = {
        "first": random.standard_normal((64, 80), np.float32),
        "second": random.standard_normal((80, 96), np.float32),
    }
    proto = onnx.parser.parse_model(MODEL)
    for name, values in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
    onnx.save(proto, tmp_path / "m.onnx")
    np.save(tmp_path / "second.npy", weights["second"])
    library = LIBRARY.format(path=str(tmp_path / "second.npy"))
    (tmp_path / "sitecustomize.py").write_text(library)

    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    growth = memdiag.leak(tmp_path / "m.onnx", reload=True, runs=60)
    assert (growth.verdict, growth.owner) == ("leak", "heap")
    largest = growth.blocks[0]
    assert largest.content == "weight 'second'"
    assert largest.blocks_per_run == pytest.approx(1, abs=0.05)  # a reload may be under way
    assert "weight 'second'" in growth.sentence
