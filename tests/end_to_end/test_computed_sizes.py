"""Models whose largest value has a size that the graph computes: estimated, measured, and named."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import memdiag
from memdiag.defaults import MMAP_THRESHOLD_VARIABLE

pytestmark = [pytest.mark.slow, pytest.mark.measures, pytest.mark.timeout(300)]

# Messages of edges are summed by receiver: a matrix of edges times nodes.
GRAPH_NETWORK = """
g (float[nodes, 32] x, int64[edges] senders, int64[edges] receivers) => (float[nodes, 32] y)
<int64[1] i0 = {0}, int64[1] i1 = {1}, float[2] onoff = {0, 1}> {
    sent = Gather <axis = 0> (x, senders) m = MatMul (sent, w) message = Relu (m)
    s = Shape (x) n = Slice (s, i0, i1) hot = OneHot <axis = -1> (receivers, n, onoff)
    t = Transpose <perm = [1, 0]> (hot) y = MatMul (t, message)
}"""

# Rows of x are made orthogonal to all rows before them.
GROWING_LIST = """
g (float[rows, width] x) => (float[m, width] y)
<int64 i0 = {0}, int64[1] axis = {0}, int64[1] a1 = {1}, bool yes = {1}> {
    s = Shape (x) n = Gather (s, i0) w1 = Slice (s, a1, a2) z = Concat <axis = 0> (axis, w1)
    first = ConstantOfShape (z)
    y = Loop (n, yes, first) <body = b (int64 i, bool c, float[k, width] basis) =>
        (bool d, float[l, width] grown) {
        d = Identity (c) row = Gather <axis = 0> (x, i) r = Unsqueeze (row, axis)
        bt = Transpose <perm = [1, 0]> (basis) p = MatMul (r, bt) q = MatMul (p, basis)
        u = Sub (r, q) grown = Concat <axis = 0> (basis, u)
    }>
}"""


@pytest.mark.parametrize(
    ("text", "weights", "sizes", "named"),
    [
        (GRAPH_NETWORK, {"w": (32, 32)}, {"nodes": 2000, "edges": 12_000}, "hot"),
        (GROWING_LIST, {}, {"rows": 40, "width": 200_000}, "grown"),
    ],
)
def test_values_of_computed_sizes(
    tmp_path: Path,
    text: str,
    weights: dict[str, tuple[int, ...]],
    sizes: dict[str, int],
    named: str,
) -> None:
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {text}')
    tensors = {name: np.full(shape, 0.1, np.float32) for name, shape in weights.items()}
    if "a2" in text:
        tensors["a2"] = np.array([2], np.int64)
    model.graph.initializer.extend(numpy_helper.from_array(*each[::-1]) for each in tensors.items())
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    found = memdiag.profile(
        path,
        dims=sizes,
        runs=2,
        run_peak=True,
        environment={MMAP_THRESHOLD_VARIABLE: str(128 << 10)},
        xray="none",
    )
    estimated = memdiag.estimate(path, dims=sizes).point
    peak = found.peak_rss_bytes - found.baseline_rss_bytes
    assert not estimated.unknown_values
    assert abs(estimated.peak_bytes - peak) < 0.05 * found.peak_rss_bytes
    assert peak > 100 << 20
    # Its node is named by the runtime's profile, and its value by the estimate.
    assert found.run_peak is not None
    producer = next(
        node
        for graph in (model.graph, *(a.g for n in model.graph.node for a in n.attribute))
        for node in graph.node
        if named in node.output
    )
    assert producer.op_type in [each.op_type for each in found.run_peak.largest]
    assert found.estimate is not None
    assert named in [tensor.name for tensor in found.estimate.live]
