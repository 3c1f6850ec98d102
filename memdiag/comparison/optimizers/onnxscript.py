"""onnxscript: the optimizer that PyTorch's exporter runs, with its rewriting."""

from pathlib import Path

NAMES = ("onnxscript",)
PACKAGES = ("onnxscript", "onnx")
PLACE = 4


def optimize(name: str, source: str, target: str, large: bool) -> None:
    """Optimize with its defaults; weights go beside the model where it is `large`."""
    import onnx
    from onnxscript import optimizer

    model = optimizer.optimize(onnx.load(source))
    onnx.save(model, target, save_as_external_data=large, location=f"{Path(target).name}.data")
