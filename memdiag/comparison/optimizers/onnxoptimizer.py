"""onnxoptimizer: the passes over the graph that ONNX once had of its own."""

from pathlib import Path

NAMES = ("onnxoptimizer",)
PACKAGES = ("onnxoptimizer", "onnx")
PLACE = 1


def optimize(name: str, source: str, target: str, large: bool) -> None:
    """Run its default passes; weights go beside the model where it is `large`."""
    import onnx
    import onnxoptimizer

    model = onnxoptimizer.optimize(onnx.load(source))
    onnx.save(model, target, save_as_external_data=large, location=f"{Path(target).name}.data")
