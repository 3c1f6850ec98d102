"""Small models as ONNX text, with the values of their weights."""

from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, numpy_helper, parser


def model_of(graph: str, *, opset: int = 17, ir_version: int = 9, **weights: Any) -> ModelProto:
    """Return the model of a graph such as ``g (float[n] x) => (float[n] y) { y = Abs(x) }``.

    `weights` are arrays by name.
    """
    model = parser.parse_model(
        f'<ir_version: {ir_version}, opset_import: ["": {opset}]> {graph.strip()}'
    )
    for name, values in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    return model


def save_model(path: Path, graph: str, **weights: Any) -> Path:
    """Write the model that `model_of` returns to `path`, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model_of(graph, **weights), path)
    return path
