"""The rewritten graph beside the one that the runtime saves."""

from collections import Counter
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from memdiag.model.model_file import open_model
from memdiag.ort.activations import executed_nodes
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.prepacking import CHANNEL_BLOCKS, NCHWC_BLOCK, channel_block
from memdiag.ort.runtime import Runtime

OPSET = '<ir_version: 9, opset_import: ["" : 20]>'
IMAGE = "(float[n, 16, 8, 8] x) => (float[n, 16, 8, 8] y)"

# Body of a graph from image to image, in which w0, w1 … are filters of 16 channels.
CASES = {
    "two convolutions": "a = Conv <pads=[1,1,1,1]> (x, w0) y = Conv <pads=[1,1,1,1]> (a, w1)",
    "an activation": "a = Conv <pads=[1,1,1,1]> (x, w0) y = Relu (a)",
    "an activation between": (
        "a = Conv <pads=[1,1,1,1]> (x, w0) b = Relu (a) y = Conv <pads=[1,1,1,1]> (b, w1)"
    ),
    "an operator without blocks between": (
        "a = Conv <pads=[1,1,1,1]> (x, w0) b = Erf (a) y = Conv <pads=[1,1,1,1]> (b, w1)"
    ),
    "a sum of two": (
        "a = Conv <pads=[1,1,1,1]> (x, w0) b = Conv <pads=[1,1,1,1]> (x, w1) s = Add (a, b) "
        "y = Relu (s)"
    ),
    "a sum with the input": "a = Conv <pads=[1,1,1,1]> (x, w0) y = Add (a, x)",
    "pooling": (
        "a = Conv <pads=[1,1,1,1]> (x, w0) y = MaxPool <kernel_shape=[3,3], pads=[1,1,1,1]> (a)"
    ),
    "pooling alone": "y = MaxPool <kernel_shape=[3,3], pads=[1,1,1,1]> (x)",
    "the largest of a channel": "s = Sin (x) g = GlobalMaxPool (s) y = Mul (s, g)",
    "the largest of a channel of blocks": (
        "a = Conv <pads=[1,1,1,1]> (x, w0) g = GlobalMaxPool (a) y = Mul (a, g)"
    ),
    "the largest of a channel of the input": "g = GlobalMaxPool (x) y = Mul (x, g)",
    "HardSwish": "s = Sin (x) h = HardSwish (s) y = Conv <pads=[1,1,1,1]> (h, w0)",
    "HardSwish of a Conv": (
        "a = Conv <pads=[1,1,1,1]> (x, w0) h = HardSwish (a) y = Conv <pads=[1,1,1,1]> (h, w1)"
    ),
    "HardSwish of a Conv as a result": "a = Conv <pads=[1,1,1,1]> (x, w0) y = HardSwish (a)",
    "concatenation": (
        "a = Conv <pads=[1,1,1,1]> (x, w0) b = Conv <pads=[1,1,1,1]> (x, w1) "
        "c = Concat <axis=1> (a, b) y = Conv <pads=[1,1,1,1]> (c, v2)"
    ),
    "the shape of a transposed value": (
        "t = Transpose <perm=[0,1,3,2]> (x) s = Shape (t) e = Erf (t) y = Reshape (e, s)"
    ),
    "the shape of another value": (
        "t = Transpose <perm=[0,1,3,2]> (x) s = Shape (x) e = Erf (t) y = Reshape (e, s)"
    ),
    "channels brought before the sides": (
        "c = Constant <value_ints=[16]> () f = ConstantOfShape <value=float[1] {2}> (c) "
        "t = Transpose <perm=[0,2,3,1]> (x) l = LayerNormalization (t, f) "
        "u = Transpose <perm=[0,3,1,2]> (l) y = Conv <pads=[1,1,1,1]> (u, w0)"
    ),
    "channels brought before the sides for two": (
        "c = Constant <value_ints=[16]> () f = ConstantOfShape <value=float[1] {2}> (c) "
        "t = Transpose <perm=[0,2,3,1]> (x) l = LayerNormalization (t, f) "
        "u = Transpose <perm=[0,3,1,2]> (l) a = Conv <pads=[1,1,1,1]> (u, w0) y = Add (a, u)"
    ),
    "padding": "p = Pad (x, pads) y = Conv (p, w0)",
    "a filter of 3 channels": "s = Slice (x, zero, three, one) y = Conv <pads=[1,1,1,1]> (s, u3)",
}


def model(body: str, folder: Path) -> Path:
    proto = onnx.parser.parse_model(f"{OPSET} g {IMAGE} {{{body}}}")
    generator = np.random.default_rng(0)
    filters = {f"w{index}": (16, 16, 3, 3) for index in range(3)}
    filters |= {"v2": (16, 32, 3, 3), "u3": (16, 3, 3, 3)}
    for name, shape in filters.items():
        if name in body:
            values = generator.standard_normal(shape).astype(np.float32)
            proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    numbers = {"pads": [0, 0, 1, 1, 0, 0, 1, 1], "zero": [0], "one": [1], "three": [3]}
    for name, given in numbers.items():
        if name in body:
            tensor = onnx.numpy_helper.from_array(np.array(given, np.int64), name)
            proto.graph.initializer.append(tensor)
    path = folder / "model.onnx"
    onnx.save(proto, path)
    return path


def saved(path: Path, folder: Path) -> Counter[str]:
    """Return the operators of the graph that the runtime executes."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(options.optimized_model_filepath).graph.node
    return Counter(node.op_type for node in nodes)


def predicted(
    path: Path, version: str = onnxruntime.__version__, block: int = NCHWC_BLOCK
) -> Counter[str]:
    with open_model(path) as opened:
        sizes = {"n": 2}
        runtime = Runtime.parse(version)
        ctx = AnalysisContext(opened, runtime, sizes=sizes, reads_weights=False)
        return Counter(
            node.op_type
            for node in executed_nodes(ctx.graphs, ctx.shapes, ctx.folds, runtime, block)
        )


@pytest.mark.parametrize("name", CASES)
def test_the_runtime_executes_the_same_operators(name: str, tmp_path: Path) -> None:
    path = model(CASES[name], tmp_path)
    assert predicted(path) == saved(path, tmp_path)


MATRICES = """<ir_version: 9, opset_import: ["" : 17]>
g (float[n, 8] x, int64[n, 1] i, int64[1, m] j) => (float[m, 8] y) {
    a = Gemm (x, w, b) %s e = Equal (i, j) c = Cast <to=1> (e) t = Transpose <perm=[1,0]> (c)
    y = MatMul (t, %s)
}
"""


@pytest.mark.parametrize(
    ("activation", "is_first"), [("r = Relu (a)", True), ("r = Erf (a)", False), ("", False)]
)
def test_a_product_with_an_activation_comes_where_a_new_node_does(
    tmp_path: Path, activation: str, is_first: bool
) -> None:
    proto = onnx.parser.parse_model(MATRICES % (activation, "r" if activation else "a"))
    weights = (("w", (8, 8)), ("b", (8,)))
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in weights
    )
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    saved(path, tmp_path)
    nodes = onnx.load(tmp_path / "optimized.onnx").graph.node
    orders = [[node.op_type.removeprefix("Fused") for node in nodes]]
    with open_model(path) as opened:
        runtime = Runtime.parse(onnxruntime.__version__)
        ctx = AnalysisContext(opened, runtime, sizes={"n": 4, "m": 2})
        predicted_nodes = executed_nodes(ctx.graphs, ctx.shapes, ctx.folds, runtime)
        orders.append([node.op_type for node in predicted_nodes])
    for order in orders:
        assert (order.index("Gemm") < order.index("Equal")) == is_first


CHANNELS = """
<ir_version: 9, opset_import: ["" : 17]>
g (float[1, 3, 32, 32] x) => (float[1, 20, 32, 32] y) {
    a = Conv <pads=[1,1,1,1]> (x, w0) b = Conv <pads=[1,1,1,1]> (a, w1)
    c = Conv <pads=[1,1,1,1], group=24> (b, w2) d = Conv (c, w3) y = Sigmoid (d)
}
"""
FILTERS = ((12, 3, 3, 3), (24, 12, 3, 3), (24, 1, 3, 3), (20, 24, 1, 1))


@pytest.mark.parametrize(
    ("cpu", "reordered_outputs", "filters"),
    [
        # The second Conv has fewer input channels than a block: it reads them in plain order.
        ("avx512", 2, ((16, 3, 3, 3), (32, 12, 3, 3), (32, 1, 3, 3), (32, 32, 1, 1))),
        ("avx2", 1, ((16, 3, 3, 3), (24, 16, 3, 3), (24, 1, 3, 3), (24, 24, 1, 1))),
    ],
)
def test_blocks_of_8_channels_pad_less_and_need_fewer_reorders(
    tmp_path: Path, cpu: str, reordered_outputs: int, filters: Sequence[tuple[int, ...]]
) -> None:
    """As onnxruntime 1.32.0 saved the model, under an emulator of a processor with AVX2 as well."""
    proto = onnx.parser.parse_model(CHANNELS)
    for index, shape in enumerate(FILTERS):
        values = np.ones(shape, np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, f"w{index}"))
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    block = CHANNEL_BLOCKS[cpu]
    assert predicted(path, "1.32.0", block) == Counter(
        {"Conv": 4, "ReorderOutput": reordered_outputs}
    )
    with open_model(path) as opened:
        ctx = AnalysisContext(opened, Runtime(1, 32), reads_weights=False, block=block)
        for index, blocked in enumerate(filters):
            weight = next(each for each in opened.weights if each.name == f"w{index}")
            ((_, buffer),) = ctx.session.weight(weight).buffers()
            assert buffer.nbytes == 4 * prod(blocked)


@pytest.mark.parametrize(
    ("machine", "block"),
    [
        ("Linux x86_64 avx512_vnni glibc", 16),
        ("Linux x86_64 avx512f glibc", 16),
        ("Linux x86_64 avx2 glibc huge pages", 8),
        ("Linux x86_64 avx glibc", 8),
        ("Linux aarch64 asimddp glibc", 16),
        ("", 16),
    ],
)
def test_the_class_of_a_machine_has_the_length_of_a_block(machine: str, block: int) -> None:
    assert channel_block(machine) == block


SWISH = "a = Conv <pads=[1,1,1,1]> (x, w0) h = HardSwish (a) y = Conv <pads=[1,1,1,1]> (h, w1)"


@pytest.mark.parametrize(
    ("body", "version", "operators"),
    [
        (SWISH, "1.24.4", {"HardSigmoid", "Mul"}),
        (SWISH, "1.32.0", set()),
    ],
)
def test_releases_differ(body: str, version: str, operators: set[str], tmp_path: Path) -> None:
    found = predicted(model(body, tmp_path), version)
    assert set(found) - {"Conv", "ReorderInput", "ReorderOutput"} == operators


def test_parts_of_an_axis_become_one_split(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        f"""{OPSET} g (float[n, 3, 8] x) => (float[n, 8] y) {{
            a = Gather <axis=1> (x, i0) b = Gather <axis=1> (x, i1) c = Gather <axis=1> (x, i2)
            d = Sin (a) e = Mul (b, c) y = Add (d, e)
        }}"""
    )
    for index in range(3):
        tensor = onnx.numpy_helper.from_array(np.array(index, np.int64), f"i{index}")
        proto.graph.initializer.append(tensor)
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    found = predicted(path)
    assert found == saved(path, tmp_path)
    assert found["Split"] == 1
    # Without one of them the axis is not covered.
    del proto.graph.node[2]
    proto.graph.node[3].input[1] = "b"
    onnx.save(proto, path)
    assert predicted(path)["Split"] == 0


GELU = "d = Div (a, r) e = Erf (d) h = Add (e, one) i = Mul (a, h) y = Mul (i, half)"
DYNAMIC = (
    "q, s, z = DynamicQuantizeLinear (x) p = MatMulInteger (q, k, z) c = Cast <to = 1> (p) "
    "f = Mul (s, half) m = Mul (c, f)"
)


@pytest.mark.parametrize(
    ("before", "operators"),
    [(DYNAMIC, {"DynamicQuantizeMatMul", "Gelu"}), ("m = Sin (x)", {"Sin", "BiasGelu"})],
)
def test_the_bias_before_a_gelu_is_in_the_product_that_takes_it_in(
    before: str, operators: set[str], tmp_path: Path
) -> None:
    proto = onnx.parser.parse_model(
        f"{OPSET} g (float[n, 4, 64] x) => (float[n, 4, 64] y) {{{before} a = Add (m, b) {GELU}}}"
    )
    weights: dict[str, object] = {"r": np.float32(2**0.5), "one": np.float32(1)}
    weights |= {"half": np.float32(0.5), "b": np.ones(64, np.float32)}
    weights["k"] = np.ones((64, 64), np.int8)
    for name, value in weights.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    found = predicted(path)
    assert found == saved(path, tmp_path)
    assert set(found) == operators
