"""The rewritten graph next to the one that the runtime saves."""

from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
import pytest

from memdiag.ort.prepacking import CHANNEL_BLOCKS, channel_block
from memdiag.ort.runtime import Runtime
from tests.builders import build, cases, noise, saved
from tests.ort.executing import (
    analysed,
    predicted,
    predicted_operators,
    saved_nodes,
    saved_operators,
)

# Graphs from image to image, in which w0, w1 … are filters of 16 channels.
CASES = cases(
    """
two convolutions | a = $CONV (x, w0) y = $CONV (a, w1)
an activation | a = $CONV (x, w0) y = Relu (a)
an activation between | a = $CONV (x, w0) b = Relu (a) y = $CONV (b, w1)
an operator without blocks between | a = $CONV (x, w0) b = Erf (a) y = $CONV (b, w1)
a sum of two | a = $CONV (x, w0) b = $CONV (x, w1) s = Add (a, b) y = Relu (s)
a sum with the input | a = $CONV (x, w0) y = Add (a, x)
pooling | a = $CONV (x, w0) y = MaxPool <kernel_shape=[3,3], pads=[1,1,1,1]> (a)
pooling alone | y = MaxPool <kernel_shape=[3,3], pads=[1,1,1,1]> (x)
the largest of a channel | s = Sin (x) g = GlobalMaxPool (s) y = Mul (s, g)
the largest of a channel of blocks | a = $CONV (x, w0) g = GlobalMaxPool (a) y = Mul (a, g)
the largest of a channel of the input | g = GlobalMaxPool (x) y = Mul (x, g)
HardSwish | s = Sin (x) h = HardSwish (s) y = $CONV (h, w0)
HardSwish of a Conv | a = $CONV (x, w0) h = HardSwish (a) y = $CONV (h, w1)
HardSwish of a Conv as a result | a = $CONV (x, w0) y = HardSwish (a)
concatenation | a = $CONV (x, w0) b = $CONV (x, w1) c = Concat <axis=1> (a, b) y = $CONV (c, v2)
the shape of a transposed value:
    t = Transpose <perm=[0,1,3,2]> (x) s = Shape (t) e = Erf (t) y = Reshape (e, s)
the shape of another value:
    t = Transpose <perm=[0,1,3,2]> (x) s = Shape (x) e = Erf (t) y = Reshape (e, s)
channels brought before the sides | $LAST u = Transpose <perm=[0,3,1,2]> (l) y = $CONV (u, w0)
channels brought before the sides for two:
    $LAST u = Transpose <perm=[0,3,1,2]> (l) a = $CONV (u, w0) y = Add (a, u)
padding | p = Pad (x, pads) y = Conv (p, w0)
a filter of 3 channels | s = Slice (x, zero, three, one) y = $CONV (s, u3)
""",
    CONV="Conv <pads=[1,1,1,1]>",
    LAST="c = Constant <value_ints=[16]> () f = ConstantOfShape <value=float[1] {2}> (c) "
    "t = Transpose <perm=[0,2,3,1]> (x) l = LayerNormalization (t, f)",
)
WEIGHTS = {f"w{index}": noise(16, 16, 3, 3) for index in range(2)} | {
    "v2": noise(16, 32, 3, 3),
    "u3": noise(16, 3, 3, 3),
    "pads": [0, 0, 1, 1, 0, 0, 1, 1],
    "zero": [0],
    "one": [1],
    "three": [3],
}


def model(name: str, folder: Path) -> Path:
    graph = f"(float[n, 16, 8, 8] x) => (float[n, 16, 8, 8] y) {{ {CASES[name][1]} }}"
    return saved(build(graph, opset=20, weights=WEIGHTS), folder)


@pytest.mark.parametrize("name", CASES)
def test_the_runtime_executes_the_same_operators(name: str, tmp_path: Path) -> None:
    path = model(name, tmp_path)
    assert predicted(path) == saved_operators(path)


@pytest.mark.parametrize(
    ("activation", "is_first"), [("r = Relu (a)", True), ("r = Erf (a)", False), ("", False)]
)
def test_a_product_with_an_activation_comes_where_a_new_node_does(
    tmp_path: Path, activation: str, is_first: bool
) -> None:
    graph = f"""(float[n, 8] x, int64[n, 1] i, int64[1, m] j) => (float[m, 8] y) {{
        a = Gemm (x, w, b) {activation} e = Equal (i, j) c = Cast <to=1> (e)
        t = Transpose <perm=[1,0]> (c) y = MatMul (t, {"r" if activation else "a"}) }}"""
    weights = {"w": np.ones((8, 8), np.float32), "b": np.ones(8, np.float32)}
    path = saved(build(graph, weights=weights), tmp_path)
    real = [node.op_type.removeprefix("Fused") for node in saved_nodes(path)]
    for order in (real, predicted_operators(path, sizes={"n": 4, "m": 2})):
        assert (order.index("Gemm") < order.index("Equal")) == is_first


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
    graph = """(float[1, 3, 32, 32] x) => (float[1, 20, 32, 32] y) {
        a = Conv <pads=[1,1,1,1]> (x, w0) b = Conv <pads=[1,1,1,1]> (a, w1)
        c = Conv <pads=[1,1,1,1], group=24> (b, w2) d = Conv (c, w3) y = Sigmoid (d) }"""
    weights = {f"w{index}": np.ones(shape, np.float32) for index, shape in enumerate(FILTERS)}
    path = saved(build(graph, weights=weights), tmp_path)
    block, runtime = CHANNEL_BLOCKS[cpu], Runtime(1, 32)
    assert predicted(path, runtime, block) == {"Conv": 4, "ReorderOutput": reordered_outputs}
    with analysed(path, {}, runtime, block=block) as ctx:
        sizes = {
            weight.name: [buffer.nbytes for _, buffer in ctx.session.weight(weight).buffers()]
            for weight in ctx.model_file.weights
        }
    assert sizes == {f"w{index}": [4 * prod(blocked)] for index, blocked in enumerate(filters)}


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


@pytest.mark.parametrize(
    ("minor", "operators"), [(24, {"HardSigmoid", "Mul"}), (32, set())], ids=["1.24", "1.32"]
)
def test_releases_differ(minor: int, operators: set[str], tmp_path: Path) -> None:
    found = predicted(model("HardSwish of a Conv", tmp_path), Runtime(1, minor))
    assert set(found) - {"Conv", "ReorderInput", "ReorderOutput"} == operators


@pytest.mark.parametrize(
    ("parts", "splits"),
    [("b = $PART (x, i1) c = $PART (x, i2) e = Mul (b, c)", 1), ("e = $PART (x, i1)", 0)],
    ids=["all parts of an axis", "not all"],
)
def test_parts_of_an_axis_become_one_split(tmp_path: Path, parts: str, splits: int) -> None:
    graph = f"""(float[n, 3, 8] x) => (float[n, 8] y) {{
        a = $PART (x, i0) d = Sin (a) {parts} y = Add (d, e) }}"""
    weights = {f"i{index}": np.int64(index) for index in range(3)}
    graph = graph.replace("$PART", "Gather <axis=1>")
    path = saved(build(graph, opset=20, weights=weights), tmp_path)
    found = predicted(path)
    assert found == saved_operators(path)
    assert found["Split"] == splits


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
    gelu = "d = Div (a, r) e = Erf (d) h = Add (e, one) i = Mul (a, h) y = Mul (i, half)"
    graph = f"(float[n, 4, 64] x) => (float[n, 4, 64] y) {{ {before} a = Add (m, b) {gelu} }}"
    numbers = {"r": 2**0.5, "one": 1, "half": 0.5, "b": np.ones(64)}
    weights = {name: np.asarray(value, np.float32) for name, value in numbers.items()}
    weights["k"] = np.ones((64, 64), np.int8)
    path = saved(build(graph, opset=20, weights=weights), tmp_path)
    found = predicted(path)
    assert found == saved_operators(path)
    assert set(found) == operators
