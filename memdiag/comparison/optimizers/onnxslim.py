"""onnxslim: folding of constants, removal of what is not needed, and fusions."""

from pathlib import Path

NAMES = ("onnxslim",)
PACKAGES = ("onnxslim", "onnx")
PLACE = 3


def optimize(name: str, source: str, target: str, large: bool) -> None:
    """Slim with its defaults; weights go beside the model where it is `large`."""
    import onnx
    import onnxslim

    model = onnxslim.slim(onnx.load(source))
    onnx.save(model, target, save_as_external_data=large, location=f"{Path(target).name}.data")
