"""onnxsim: what does not depend on inputs is computed by running it, and passes over the graph."""

from pathlib import Path

NAMES = ("onnxsim",)
PACKAGES = ("onnxsim", "onnx")
PLACE = 2


def optimize(name: str, source: str, target: str, large: bool) -> None:
    """Simplify with its defaults; weights go beside the model where it is `large`."""
    import onnx
    import onnxsim

    model, is_equal = onnxsim.simplify(onnx.load(source))
    if not is_equal:
        raise RuntimeError("by its own check the simplified model computes something else")
    onnx.save(model, target, save_as_external_data=large, location=f"{Path(target).name}.data")
