from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.rules.conftest import Agrees
from tests.rules.examining import findings
from tests.rules.measuring import NEWEST, xray

RULE = "half-precision-cast"
WIDTH = 1024
STORED = WIDTH * WIDTH * 2
HALF = TensorProto.FLOAT16


def halves(
    operator: str = "MatMul",
    *,
    shape: tuple[int, ...] = (WIDTH, WIDTH),
    x: tuple[int | str, ...] = ("n", WIDTH),
    layers: int = 1,
    gathered: bool = False,
    dtype: Any = np.float16,
    **attributes: Any,
) -> onnx.ModelProto:
    """Layers that read an fp16 weight each, with a plain operator between them."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    random = np.random.default_rng(1)
    nodes, constants, value = [], [], "x"
    for layer in range(layers):
        weight = (random.standard_normal(shape, np.float32) * 0.01).astype(dtype)
        constants.append(numpy_helper.from_array(weight, f"w{layer}"))
        nodes += [
            helper.make_node(operator, [value, f"w{layer}"], [f"m{layer}"], **attributes),
            helper.make_node("Sigmoid", [f"m{layer}"], [f"r{layer}"]),
        ]
        value = f"r{layer}"
    outputs = [helper.make_tensor_value_info(value, kind, None)]
    inputs = [helper.make_tensor_value_info("x", kind, x)]
    if gathered:
        nodes.append(helper.make_node("Gather", ["w0", "i"], ["rows"]))
        inputs.append(helper.make_tensor_value_info("i", TensorProto.INT64, ["k"]))
        outputs.append(helper.make_tensor_value_info("rows", kind, None))
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_weights_of_products_are_packed_in_fp32(tmp_path: Path) -> None:
    (one,) = findings(RULE, halves(layers=3), tmp_path)
    assert one.weights == ("w0", "w1", "w2")
    assert one.bytes == 0  # an fp32 model packs them, too
    assert [(each.kind, each.bytes) for each in one.expected] == [("packed", 2 * STORED)] * 3
    assert one.message.startswith("3 fp16 weights (6.0 MiB: w0, w1, w2) are kept in fp32 (12 MiB)")
    assert one.phase == "optimize"


def test_the_whole_model_in_fp32_is_the_first_remedy(tmp_path: Path) -> None:
    (packed,) = findings(RULE, halves(), tmp_path)
    assert packed.remedies == ("model-to-fp32", "fp16-to-fp32", "save-prepacked")
    assert "an fp32 model are: fp16 saves none of it" in packed.detail
    (one,) = findings(RULE, halves("MatMul", shape=(4, 512, 1024), x=("n", 512)), tmp_path)
    assert one.remedies == ("model-to-fp32", "fp16-to-fp32")
    assert "save-prepacked" not in one.detail


def test_a_gather_keeps_the_half_precision_too(tmp_path: Path) -> None:
    (one,) = findings(RULE, halves(gathered=True), tmp_path)
    assert one.bytes == STORED


def test_what_is_only_gathered_is_clean(tmp_path: Path) -> None:
    model = halves(gathered=True)
    del model.graph.node[:2], model.graph.input[0], model.graph.output[0]
    assert not findings(RULE, model, tmp_path)


@pytest.mark.parametrize(
    ("operator", "shape", "x", "kind"),
    [
        ("Add", (1024, 1024), (1024, 1024), "cast"),
        ("MatMul", (4, 512, 1024), ("n", 512), "cast"),
        ("Gemm", (1024, 1024), ("n", 1024), "packed"),
        ("Conv", (256, 256, 3, 3), ("n", 256, 8, 8), "reordered"),
        ("ConvTranspose", (256, 256, 3, 3), ("n", 256, 8, 8), "transposed"),
    ],
)
def test_the_kind_of_copy_is_the_kernels(
    tmp_path: Path, operator: str, shape: tuple[int, ...], x: tuple[int | str, ...], kind: str
) -> None:
    (one,) = findings(RULE, halves(operator, shape=shape, x=x), tmp_path)
    assert [each.kind for each in one.expected] == [kind]
    # An fp32 model packs, too: only a plain copy is more than it would have.
    assert one.bytes == (one.expected[0].bytes // 2 if kind == "cast" else 0)


@pytest.mark.parametrize("alias", ["b0", "Identity"])
def test_a_filter_whose_bias_is_cast_in_each_run_is_not_reordered(
    tmp_path: Path, alias: str
) -> None:
    model = halves("Conv", shape=(256, 256, 3, 3), x=("n", 256, 64, 64), layers=2)
    for layer, convolution in enumerate((model.graph.node[0], model.graph.node[2])):
        convolution.input.append(f"b{layer}")
        bias = np.full(256, 1 + layer, np.float16)
        model.graph.initializer.append(numpy_helper.from_array(bias, f"b{layer}"))
    (one,) = findings(RULE, model, tmp_path)
    assert {each.kind for each in one.expected} == {"reordered"}
    # Both read the same bias, perhaps under another name.
    del model.graph.initializer[-1]
    if alias == "Identity":
        model.graph.node.insert(0, helper.make_node("Identity", ["b0"], ["b1"]))
    else:
        model.graph.node[2].input[2] = alias
    (one,) = findings(RULE, model, tmp_path)
    assert {each.kind for each in one.expected} == {"cast"}


def test_single_precision_is_clean(tmp_path: Path) -> None:
    assert not findings(RULE, halves(dtype=np.float32), tmp_path)


def test_little_is_left_alone(tmp_path: Path) -> None:
    assert not findings(RULE, halves(shape=(512, 512), x=("n", 512)), tmp_path)


def test_a_weight_with_two_readers_is_cast_in_each_run(tmp_path: Path) -> None:
    model = halves(layers=2)
    model.graph.node[2].input[1] = "w0"
    del model.graph.initializer[1]
    (one,) = findings(RULE, model, tmp_path)
    assert "is cast to fp32 (4.0 MiB) at each run" in one.message
    assert one.bytes == 2 * STORED
    assert not one.expected


RUN = {"n": 1, "height": 256, "width": 512}


def network(body: str, opset: int = 17, dtype: str = "float16") -> onnx.ModelProto:
    """A network of images, with two filters and a slope for each of 16 channels."""
    proto = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : {opset}]> '
        f"g ({dtype}[n, 16, height, width] x) => ({dtype}[n, 16, height, width] y) {{ {body} }}"
    )
    kind = np.float16 if dtype == "float16" else np.float32
    weights = dict.fromkeys(("f", "e"), np.full((16, 16, 3, 3), 0.01))
    weights["s"] = np.full((16, 1, 1), 0.25)
    for name, values in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(values.astype(kind), name))
    return proto


CONV = "Conv <pads=[1, 1, 1, 1]>"
RECTIFIED = f"a = {CONV} (x, f) b = PRelu (a, s) y = {CONV} (b, e)"
MOVED = (
    f"a = {CONV} (x, f) k = Constant <value_ints=[0, 16, -1]> () b = Reshape (a, k) "
    "c = Transpose <perm=[0, 2, 1]> (b) q = Softmax <axis=-1> (c) "
    "t = Transpose <perm=[0, 2, 1]> (q) h = Shape (a) g = Reshape (t, h) y = Sigmoid (g)"
)


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (RECTIFIED, "PRelu (1 node) becomes Less, Mul, Where"),
        (MOVED, "Softmax (1 node) becomes ReduceMax, Sub, Exp, ReduceSum, Div, and"),
    ],
)
def test_a_run_with_more_than_in_fp32_is_found(tmp_path: Path, body: str, cause: str) -> None:
    (one,) = findings(RULE, network(body), tmp_path, sizes=RUN)
    assert cause in one.message
    assert "at n=1, height=256, width=512: " in one.message
    assert one.remedies == ("model-to-fp32",)
    assert one.bytes >= 8 << 20
    assert one.run_bytes > one.bytes / 2
    assert one.phase == "first_run"


def test_assumed_sizes_claim_no_bytes(tmp_path: Path) -> None:
    (one,) = findings(RULE, network(RECTIFIED), tmp_path)
    assert "assumed sizes" in one.message
    assert (one.bytes, one.peak_bytes) == (0, 0)


@pytest.mark.parametrize(
    "model",
    [
        network(RECTIFIED, dtype="float"),
        network(RECTIFIED, opset=20),  # PRelu is not replaced
        network(f"a = {CONV} (x, f) b = Relu (a) y = {CONV} (b, e)"),
        network("a = Cast <to=1> (x) b = Sigmoid (a) y = Cast <to=10> (b)"),
        network(  # each node has casts around it in the model
            "a = Cast <to=1> (x) b = Sigmoid (a) c = Cast <to=10> (b) d = Cast <to=1> (c) "
            "e = Erf (d) y = Cast <to=10> (e)"
        ),
    ],
    ids=["fp32", "a later operator set", "Relu", "interface only", "explicit casts"],
)
def test_a_run_that_fp32_would_not_lower_is_clean(tmp_path: Path, model: onnx.ModelProto) -> None:
    assert not findings(RULE, model, tmp_path, sizes=RUN)


def test_a_small_run_is_left_alone(tmp_path: Path) -> None:
    assert not findings(
        RULE, network(RECTIFIED), tmp_path, sizes={"n": 1, "height": 16, "width": 16}
    )


def test_operators_of_other_domains_are_not_known(tmp_path: Path) -> None:
    model = halves(domain="custom")
    model.opset_import.append(helper.make_opsetid("custom", 1))
    assert not findings(RULE, model, tmp_path)


def test_an_overridable_weight_is_no_constant(tmp_path: Path) -> None:
    model = halves()
    model.graph.input.append(helper.make_tensor_value_info("w0", HALF, [WIDTH, WIDTH]))
    assert not findings(RULE, model, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
def test_the_copies_are_those_predicted(
    tmp_path: Path, version: str, external: bool, agrees: Agrees
) -> None:
    path = tmp_path / "half.onnx"
    onnx.save(halves(layers=3, gathered=True), path, save_as_external_data=external)
    (one,) = findings(RULE, path, tmp_path, runtime=version)
    found = xray(path, version)
    for expected in one.expected:
        seen = [
            copy
            for copy in found.copies
            if copy.kind == expected.kind
            and set(copy.weights) & set(expected.weights)
            and copy.in_use is not False
        ]
        assert len(seen) == expected.count
        agrees(one, sum(copy.bytes for copy in seen), version, predicted=expected.bytes)
    originals = [copy.weights for copy in found.copies if copy.kind == "original" and copy.in_use]
    assert originals == [("w0",)]
