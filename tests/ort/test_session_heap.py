"""What malloc's heap contains of a session, next to weights: hardly any protobuf, and no log."""

import subprocess
import sys
from pathlib import Path

import pytest
from onnx import parser, save
from onnxruntime import InferenceSession, SessionOptions

from memdiag.units import KIB

_NODES = 300
_HEAP_OF_SESSION = """
import ctypes
import sys
import onnxruntime

class Info(ctypes.Structure):
    _fields_ = [(f"field{index}", ctypes.c_size_t) for index in range(10)]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info

def in_use():
    info = libc.mallinfo2()
    return info.field4 + info.field7  # mapped blocks, and blocks in use in the heap

def load(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = int(severity)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

severity, path, first = sys.argv[1:]
onnxruntime.set_default_logger_severity(int(severity))
warm = load(first)
before = in_use()
session = load(path)
print(in_use() - before)
"""


def heap_bytes(path: Path, severity: int, first: Path) -> int:
    """Return the heap of a session of `path`, created after one of `first`, in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", _HEAP_OF_SESSION, str(severity), str(path), str(first)],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return one graph in both formats, and a small one."""
    folder = tmp_path_factory.mktemp("models")
    texts = {"onnx": _NODES, "small": 1}
    paths = {}
    for name, count in texts.items():
        nodes = "\n".join(f"x{index + 1} = Sin(x{index})" for index in range(count))
        paths[name] = folder / f"{name}.onnx"
        model = parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]>'
            f"g (float[1, 8] x0) => (float[1, 8] x{count}) {{\n{nodes}\n}}"
        )
        save(model, paths[name])
    paths["ort"] = folder / "onnx.ort"
    options = SessionOptions()
    options.optimized_model_filepath = str(paths["ort"])
    options.add_session_config_entry("session.save_model_format", "ORT")
    InferenceSession(paths["onnx"], options, providers=["CPUExecutionProvider"])
    return paths


def test_the_log_leaves_nothing_in_the_heap(models: dict[str, Path]) -> None:
    silent, verbose = (heap_bytes(models["onnx"], each, models["small"]) for each in (4, 0))
    assert silent > _NODES * KIB
    assert abs(verbose - silent) < 0.02 * silent


def test_parsed_protobuf_is_a_small_part_of_the_heap(models: dict[str, Path]) -> None:
    parsed = heap_bytes(models["onnx"], 4, models["small"])
    from_flatbuffers = heap_bytes(models["ort"], 4, models["small"])
    assert abs(parsed - from_flatbuffers) < 0.2 * parsed
