"""The optimizers that memdiag is set next to, each run in a process of its own."""

import os
import shutil
import subprocess
from pathlib import Path

from benchmarks.environments import environment
from memdiag.model.model_file import open_model

_PACKAGES = (
    "onnx",
    "onnxruntime",
    "onnxsim",
    "onnxslim",
    "onnxoptimizer",
    "onnxscript",
    "numpy",
)
_TIMEOUT_S = 600.0

# A is the model, B what is to be written; models that cannot be one file get external data.
_SAVE = """
def save(model):
    big = model.ByteSize() > 1 << 30
    onnx.save(model, B, save_as_external_data=big, location=os.path.basename(B) + ".data")
"""
OPTIMIZERS = {
    "onnxsim": "import onnxsim; save(onnxsim.simplify(onnx.load(A))[0])",
    "onnxslim": "import onnxslim; save(onnxslim.slim(A))",
    "onnxoptimizer": "import onnxoptimizer as o; save(o.optimize(onnx.load(A)))",
    "onnxscript": "import onnxscript.optimizer as o; save(o.optimize(onnx.load(A)))",
    "onnxruntime, saved offline": (
        "import onnxruntime as o; s = o.SessionOptions(); s.optimized_model_filepath = B;"
        " s.graph_optimization_level = o.GraphOptimizationLevel.ORT_ENABLE_EXTENDED;"
        " o.InferenceSession(A, s, providers=['CPUExecutionProvider'])"
    ),
}


def optimize(name: str, model: Path, target: Path) -> str:
    """Let an optimizer write `target`; return why it did not, in a few words, or nothing."""
    python = environment("optimizers", _PACKAGES)
    _place_beside(model, target.parent)
    paths = f"import os, onnx\nA, B = {str(model)!r}, {str(target)!r}\n"
    try:
        done = subprocess.run(
            [str(python), "-c", paths + _SAVE + OPTIMIZERS[name]],
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
    except subprocess.TimeoutExpired:
        return "timed out"
    return "" if done.returncode == 0 and target.exists() else f"ended with {done.returncode}"


def _place_beside(model: Path, folder: Path) -> None:
    """Copy the external files of `model` into `folder`: a model written there may refer to them."""
    with open_model(model) as file:
        others = [path for path in file.files if path != model.resolve()]
    for path in others:
        if not (folder / path.name).exists():
            shutil.copyfile(path, folder / path.name)
