"""What is folded: as predicted, and as the runtime itself does it at the level basic."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import onnx

from memdiag.model.graph_index import GraphIndex, subgraphs_of_node
from memdiag.model.model_file import open_model
from memdiag.model.shapes import infer_shapes
from memdiag.model.tensor_types import ELEMENT_TYPES_BY_NAME
from memdiag.ort.constant_folding import Fold, Folds, fold_constants
from memdiag.ort.runtime import Runtime

NEWEST = "1.31.1"

# Optimizers that change constants or move Transpose nodes about, but are not constant folding.
_LEFT_OUT = ["TransposeOptimizer", "MatMulAddFusion", "ReshapeFusion"]

_CHILD = """
import json, sys
import onnxruntime
for source, target in json.load(sys.stdin):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = target
    options.add_session_config_entry("session.disable_prepacking", "1")
    onnxruntime.InferenceSession(
        source, options, providers=["CPUExecutionProvider"], disabled_optimizers=%r
    )
"""

Kind = tuple[int, tuple[int, ...]]


def optimized(models: Sequence[Path], python: str = sys.executable) -> list[onnx.ModelProto]:
    """Return `models` as the runtime saves them after the level basic, all in one process."""
    pairs = [(str(path), str(path.with_suffix(".optimized"))) for path in models]
    subprocess.run(
        [python, "-c", _CHILD % _LEFT_OUT],
        input=json.dumps(pairs),
        text=True,
        check=True,
        timeout=100,
    )
    return [onnx.load(target) for _, target in pairs]


def predicted(path: Path, version: str = NEWEST, **sizes: int) -> Folds:
    """Return the folds that are predicted for the model at `path`."""
    with open_model(path) as model:
        graphs = GraphIndex(model)
        return fold_constants(
            graphs, infer_shapes(model, graphs, sizes, []), Runtime.parse(version)
        )


def kinds(found: Iterable[Fold]) -> Counter[Kind]:
    """Return types and shapes of those that stay."""
    return Counter(
        (ELEMENT_TYPES_BY_NAME[fold.dtype].number, fold.shape) for fold in found if fold.stays
    )


def new_constants(model: onnx.ModelProto, path: Path) -> Counter[Kind]:
    """Return types and shapes of the initializers of `model` that the one at `path` has not."""
    with open_model(path) as opened:
        original = {weight.name for weight in opened.weights}
    return Counter(
        (tensor.data_type, tuple(tensor.dims))
        for graph in _graphs(model.graph)
        for tensor in graph.initializer
        if tensor.name not in original
    )


def made_by_nodes(model: onnx.ModelProto) -> set[str]:
    """Return the names of the values that are still computed."""
    graphs = _graphs(model.graph)
    return {name for graph in graphs for node in graph.node for name in node.output}


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for _, body in subgraphs_of_node(node):
            yield from _graphs(body)
