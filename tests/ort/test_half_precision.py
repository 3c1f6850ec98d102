"""Nodes that read float16 compared with the graph that the runtime saves."""

import json
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto
from onnxruntime.capi import onnxruntime_pybind11_state as native

from benchmarks.environments import ProvisionError
from benchmarks.runtimes import runtime
from memdiag.ort.operators import CONTRIB_FLOAT16_KERNELS, FLOAT16_KERNELS
from memdiag.ort.releases import NODE_MEMORY_SINCE
from memdiag.ort.runtime import Runtime
from tests.builders import build, cases, noise, saved
from tests.ort.executing import (
    INSTALLED,
    analysed,
    most_in_use,
    predicted,
    profiled_nodes,
    saved_nodes,
)

# Graphs from x to y, both float16[n, 64], with indices i and float16 weights: w and v of 64 × 64,
# u of 128 × 64, s of 64, and two equal numbers. After the name: the operator set, if it isn't 20.
CASES = cases(
    """
an operator without a kernel | y = Relu (x)
an operator with a kernel | y = Transpose <perm=[0, 1]> (x)
casts between two operators cancel out | a = MatMul (x, w) b = Relu (a) y = MatMul (b, v)
one operator with a kernel between others | a = Relu (x) b = Round (a) y = Sigmoid (b)
two operators with a kernel between others | a = Relu (x) b = Round (a) c = Sign (b) y = Sigmoid (c)
an operator with a kernel before and after others | a = Round (x) b = Relu (a) y = Round (b)
an operator with a kernel and two readers:
    a = Relu (x) b = Round (a) c = Sigmoid (b) d = Sign (b) y = Add (c, d)
an operator with a kernel behind an Identity:
    a = Relu (x) c = Identity (a) b = Round (c) d = Identity (b) y = Sigmoid (d)
concatenation:
    a = Relu (x) b = Sigmoid (x) c = Concat <axis=1> (a, b) d = Relu (c) y = MatMul (d, u)
the shape of a value | a = Relu (x) b = Sigmoid (a) h = Shape (a) y = Reshape (b, h)
a weight with two readers | a = MatMul (x, w) b = Relu (a) y = MatMul (b, w)
a weight that is gathered as well | a = MatMul (x, w) r = Gather (w, i) y = Sub (a, r)
equal numbers | a = Mul (x, three) b = Relu (a) y = Mul (b, drei)
PRelu: 16 | a = MatMul (x, w) b = PRelu (a, s) y = MatMul (b, v)
PRelu of a later operator set | a = MatMul (x, w) b = PRelu (a, s) y = MatMul (b, v)
LeakyRelu: 16 | a = MatMul (x, w) b = LeakyRelu (a) y = MatMul (b, v)
Softmax | a = MatMul (x, w) y = Softmax <axis=-1> (a)
Softmax of an earlier operator set: 12 | y = Softmax <axis=1> (x)
LogSoftmax | y = LogSoftmax <axis=-1> (x)
Mish | a = Mish (x) y = Relu (a)
ReduceL1 | a = ReduceL1 (x) y = Add (x, a)
ReduceL2: 18 | a = ReduceL2 (x) y = Add (x, a)
ReduceSumSquare | a = ReduceSumSquare (x) y = Add (x, a)
HardSwish | a = HardSwish (x) y = Relu (a)
Relu that becomes a Max: 18 | a = MatMul (x, w) b = Relu (a) y = MatMul (b, v)
Relu that stays half: 18 | a = Transpose <perm=[0, 1]> (x) y = Relu (a)
Elu: 18 | a = Elu (x) y = Sigmoid (a)
Selu: 18 | a = Selu (x) y = Sigmoid (a)
Softplus: 18 | a = Softplus (x) y = Sigmoid (a)
Softsign: 18 | a = Softsign (x) y = Sigmoid (a)
ThresholdedRelu: 18 | a = ThresholdedRelu (x) y = Sigmoid (a)
HardSigmoid: 18 | a = HardSigmoid (x) y = Sigmoid (a)
a comparison: 16 | a = Relu (x) c = GreaterOrEqual (a, x) y = Where (c, a, x)
a Cast to fp32 of a value that is:
    a = Relu (x) f = Cast <to=1> (a) g = Sigmoid (f) y = Cast <to=10> (g)
a Cast to fp16 before a node that computes in fp32:
    f = Cast <to=1> (x) g = Sigmoid (f) h = Cast <to=10> (g) y = Relu (h)
Cast nodes around each node:
    f = Cast <to=1> (x) g = Sigmoid (f) h = Cast <to=10> (g) k = Cast <to=1> (h)
    m = Relu (k) y = Cast <to=10> (m)
Cast nodes at the interface | f = Cast <to=1> (x) g = Sigmoid (f) m = Relu (g) y = Cast <to=10> (m)
a weight read under two names | k = Identity (w) a = MatMul (x, w) b = Relu (a) y = MatMul (b, k)
normalization | a = MatMul (x, w) b = LayerNormalization (a, s) y = MatMul (b, v)
"""
)
WEIGHTS = {
    name: (0.05 * noise(rows, 64)).astype(np.float16)
    for name, rows in (("w", 64), ("v", 64), ("u", 128))
} | {
    "s": np.full(64, 0.25, np.float16),
    **dict.fromkeys(("three", "drei"), np.array(3, np.float16)),
}


def model(body: str, opset: int = 20) -> ModelProto:
    inputs = "float16[n, 64] x, int64[n] i" if "i)" in body else "float16[n, 64] x"
    graph = f"({inputs}) => (float16[n, 64] y) {{ {body} }}"
    return build(graph, opset=opset, weights=WEIGHTS)


def save_all(folder: Path) -> dict[str, Path]:
    return {
        name: saved(model(body, int(opset or 20)), folder, f"{name}.onnx")
        for name, (opset, body) in CASES.items()
    }


def operators(path: Path, nodes: list[NodeProto]) -> Counter[str]:
    """Return the operators of a saved graph, without casts of numbers in definitions."""
    graph = onnx.load(f"{path}.optimized").graph
    numbers = {tensor.name for tensor in graph.initializer if tensor.name.startswith("_inlfunc")}
    return Counter(
        node.op_type for node in nodes if not (node.op_type == "Cast" and node.input[0] in numbers)
    )


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return save_all(tmp_path_factory.mktemp("installed"))


@pytest.mark.parametrize("name", CASES)
def test_the_runtime_executes_the_same_operators(name: str, paths: dict[str, Path]) -> None:
    assert predicted(paths[name]) == operators(paths[name], saved_nodes(paths[name]))


SAVING = """
import json, sys, onnxruntime
for path in json.loads(sys.argv[1]):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = path + ".optimized"
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
"""


@pytest.mark.slow
def test_an_older_release_executes_the_same_operators(tmp_path: Path) -> None:
    try:
        python = runtime("1.24.4")
    except ProvisionError as error:
        pytest.skip(str(error))
    paths = save_all(tmp_path)
    listed = json.dumps([str(path) for path in paths.values()])
    subprocess.run([python, "-c", SAVING, listed], check=True, timeout=100)
    for name, path in paths.items():
        nodes = list(onnx.load(f"{path}.optimized").graph.node)
        assert predicted(path, Runtime(1, 24, 4)) == operators(path, nodes), name


@pytest.mark.skipif(INSTALLED < NODE_MEMORY_SINCE, reason="no memory of nodes")
@pytest.mark.parametrize("name", ["PRelu", "Softmax", "two operators with a kernel between others"])
def test_the_peak_is_what_the_arena_uses(name: str, paths: dict[str, Path], tmp_path: Path) -> None:
    sizes = {"n": 4096}
    with analysed(paths[name], sizes) as ctx:
        peak = ctx.activations(sizes).peak_bytes
    measured = most_in_use(profiled_nodes(paths[name], sizes, tmp_path))
    assert peak == pytest.approx(measured, rel=0.01)


NOT_OF_MODELS = frozenset(
    {
        *("If", "Loop", "Scan"),  # their graphs are cast inside
        *("MemcpyFromHost", "MemcpyToHost", "Optional", "OptionalGetElement"),
        *("OptionalHasElement", "SequenceAt", "SequenceConstruct", "SplitToSequence"),
        *("RandomNormalLike", "RandomUniformLike", "DynamicSlice"),
        # Before opset 13, from opset 24 on, or of graphs that are optimized already.
        *("Dropout", "BitCast", "Celu", "TensorScatter", "SimplifiedLayerNormalization"),
    }
)


def test_the_kernels_are_those_of_the_runtime() -> None:
    found: dict[str, set[str]] = {"": set(), "com.microsoft": set()}
    for kernel in native.get_all_opkernel_def():
        constraints = kernel.type_constraints.values()
        is_half = any("tensor(float16)" in types for types in constraints)
        if kernel.provider == "CPUExecutionProvider" and is_half and kernel.domain in found:
            found[kernel.domain].add(kernel.op_name)
    assert found[""] - NOT_OF_MODELS == FLOAT16_KERNELS
    assert found["com.microsoft"] >= CONTRIB_FLOAT16_KERNELS


def test_the_model_in_fp32_casts_inputs_outputs_and_rows(tmp_path: Path) -> None:
    path = saved(model("r = Gather (w, i) a = PRelu (r, s) y = Add (a, x)", 16), tmp_path)
    with analysed(path, {"n": 1000}, Runtime(1, 32)) as ctx:
        run, in_fp32 = ctx.run(ctx.sizes), ctx.fp32_run(ctx.sizes)
    half = 1000 * 64 * 2
    # PRelu has a kernel for fp32: its output, the cast input, and their sum.
    assert in_fp32.peak.peak_bytes == 6 * half
    # Otherwise its input, the product with the slope and the comparison are there as well.
    assert run.peak.peak_bytes > 8 * half


@pytest.mark.parametrize(("bias", "reorders", "casts"), [("b", 0, 3), ("c", 1, 2)])
def test_convolutions_compute_blocks_if_their_bias_is_constant(
    bias: str, reorders: int, casts: int, tmp_path: Path
) -> None:
    graph = f"""(float16[n, 16, 8, 8] x) => (float16[n, 16, 8, 8] y) {{
        k = Identity ({bias}) u = Conv <pads=[1,1,1,1]> (x, w, b) v = Relu (u)
        y = Conv <pads=[1,1,1,1]> (v, z, k) }}"""
    weights = dict.fromkeys("wz", noise(16, 16, 3, 3, dtype=np.float16))
    weights |= dict.fromkeys("bc", noise(16, dtype=np.float16))
    path = saved(build(graph, weights=weights), tmp_path)
    for found in (operators(path, saved_nodes(path)), predicted(path)):
        assert (found["ReorderInput"], found["Cast"]) == (reorders, casts)


def test_bfloat16_is_left_alone(tmp_path: Path) -> None:
    proto = model("a = Relu (x) y = Transpose <perm=[0, 1]> (a)")
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    assert predicted(saved(proto, tmp_path), Runtime(1, 32)) == {"Relu": 1, "Transpose": 1}


def test_a_function_of_the_model_counts_as_one_with_a_kernel(tmp_path: Path) -> None:
    proto = build(
        "(float16[n, 64] x) => (float16[n, 64] y) { a = local.f (x) y = Relu (a) }",
        opset=20,
        domains={"local": 1},
        functions='<domain: "local", opset_import: ["" : 20]> f (a) => (b) { b = Exp (a) }',
    )
    path = saved(proto, tmp_path)
    assert predicted(path, Runtime(1, 32)) == {"f": 1, "Cast": 2, "Relu": 1}
