"""The optimizers that write another form of a model.

This file also runs by its path under other interpreters, which need not have memdiag: it imports
only the standard library at its top, and the packages of an optimizer when that is used.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

ORIGINAL = "original"
"""The name of the unchanged model."""


class Optimizer(NamedTuple):
    """One optimizer.

    Attributes:
        packages: the packages that it needs; the version of the first one is the version of the
            optimizer.
        optimize: reads the model at the first path and writes the result to the second one, with
            weights in a file beside it if the flag `large` is set. Returns None, or the reason why
            nothing was written.
    """

    packages: tuple[str, ...]
    optimize: Callable[[str, str, bool], str | None]


def _onnxruntime(level: str) -> Callable[[str, str, bool], None]:
    def optimize(source: str, target: str, large: bool) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.optimized_model_filepath = target
        if large:
            options.add_session_config_entry(
                "session.optimized_model_external_initializers_file_name",
                f"{Path(target).name}.data",
            )
        # It warns that the model is for this machine only; it is measured on this machine.
        options.log_severity_level = 3
        onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    return optimize


def _onnxoptimizer(source: str, target: str, large: bool) -> None:
    import onnx
    import onnxoptimizer

    _save(onnxoptimizer.optimize(onnx.load(source)), target, large)


def _onnxsim(source: str, target: str, large: bool) -> None:
    import onnx
    import onnxsim

    model, is_equal = onnxsim.simplify(onnx.load(source))
    if not is_equal:
        raise RuntimeError("by its own check the simplified model computes something else")
    _save(model, target, large)


def _onnxslim(source: str, target: str, large: bool) -> None:
    import onnx
    import onnxslim

    _save(onnxslim.slim(onnx.load(source)), target, large)


def _onnxscript(source: str, target: str, large: bool) -> None:
    """Run the optimizer that PyTorch's exporter runs."""
    import onnx
    from onnxscript import optimizer

    _save(optimizer.optimize(onnx.load(source)), target, large)


def _memdiag_fix(source: str, target: str, large: bool) -> str | None:
    # Imported by name, like the packages of the others: the layers above are not imported here.
    fixed = import_module("memdiag").fix(source, target)
    return None if fixed.output else "nothing was worth changing"


def _save(model: Any, target: str, large: bool) -> None:
    import onnx

    location = f"{Path(target).name}.data"
    onnx.save(model, target, save_as_external_data=large, location=location)


OPTIMIZERS: dict[str, Optimizer] = {
    "onnxruntime-basic": Optimizer(("onnxruntime",), _onnxruntime("ORT_ENABLE_BASIC")),
    "onnxruntime-extended": Optimizer(("onnxruntime",), _onnxruntime("ORT_ENABLE_EXTENDED")),
    "onnxruntime-all": Optimizer(("onnxruntime",), _onnxruntime("ORT_ENABLE_ALL")),
    "onnxoptimizer": Optimizer(("onnxoptimizer", "onnx"), _onnxoptimizer),
    "onnxsim": Optimizer(("onnxsim", "onnx"), _onnxsim),
    "onnxslim": Optimizer(("onnxslim", "onnx"), _onnxslim),
    "onnxscript": Optimizer(("onnxscript", "onnx"), _onnxscript),
    "memdiag-fix": Optimizer(("memdiag",), _memdiag_fix),
}
"""All optimizers by name, in the order of the columns of a comparison."""
