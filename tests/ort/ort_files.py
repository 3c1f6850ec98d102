"""Files in ORT format, written by the installed onnxruntime."""

from pathlib import Path

import onnxruntime
from onnx import ModelProto


def convert(model: ModelProto | Path, path: Path, level: str = "ORT_DISABLE_ALL") -> Path:
    """Write `model` to `path` as a session of the optimization level `level` saves it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns that the file may fit this processor only
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry("session.save_model_format", "ORT")
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return path


def ort_file(model: Path, folder: Path) -> Path:
    """Return the optimized `model` in ORT format, in `folder`."""
    return convert(model, folder / f"{model.stem}.ort", "ORT_ENABLE_ALL")
