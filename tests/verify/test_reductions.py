from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from memdiag.model.graph_index import GraphIndex
from memdiag.model.model_file import open_model
from memdiag.verify.model_bound import largest_reduction


@pytest.mark.parametrize(
    ("nodes", "shape", "expected"),
    [
        ("y = MatMul(x, w)", (5, 300), 5),
        ("y = MatMul(w, x)", (5, 300), 300),
        ("t = Transpose(w) y = MatMul(x, t)", (300, 7), 7),
        ("y = Gemm <transB = 1> (x, w)", (300, 7), 7),
        ("t = Transpose(w) y = Gemm <transB = 1> (x, t)", (300, 7), 300),
        ("y = Conv(x, w)", (300, 4, 3, 3), 36),
        ("y = Gather(w, i)", (300, 7), 1),
        ("y = MatMul(x, w)", (2, 5, 300), 300),
    ],
)
def test_the_dimension_that_is_summed_over_is_found(
    tmp_path: Path, nodes: str, shape: tuple[int, ...], expected: int
) -> None:
    model = parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 17]> g (float[?] x, int64[?] i) => (y) {{ {nodes} }}'
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), "w"))
    onnx.save(model, tmp_path / "m.onnx")
    with open_model(tmp_path / "m.onnx") as opened:
        assert largest_reduction(opened, GraphIndex(opened)) == expected
