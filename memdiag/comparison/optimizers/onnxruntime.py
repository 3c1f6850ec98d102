"""ONNX Runtime's own graph optimizations, saved to a file at one of three levels."""

from pathlib import Path

NAMES = ("onnxruntime-basic", "onnxruntime-extended", "onnxruntime-all")
PACKAGES = ("onnxruntime",)
PLACE = 0

_LEVELS = {
    "onnxruntime-basic": "ORT_ENABLE_BASIC",
    "onnxruntime-extended": "ORT_ENABLE_EXTENDED",
    "onnxruntime-all": "ORT_ENABLE_ALL",
}


def optimize(name: str, source: str, target: str, large: bool) -> None:
    """Have the runtime write what it makes of `source`; weights beside it where `large`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, _LEVELS[name])
    options.optimized_model_filepath = target
    if large:
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", f"{Path(target).name}.data"
        )
    # It warns that such a model is for this machine: that is where it is measured.
    options.log_severity_level = 3
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
