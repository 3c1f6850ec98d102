from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import memdiag
from tests.model_text import random, tensor, text_model
from tests.rules.conftest import Agrees
from tests.rules.examining import external, findings, found
from tests.rules.measuring import above_baseline, xray

RULE = "dequantized-matmul"
TYPES = {
    "int4": (TensorProto.INT4, 4),
    "uint4": (TensorProto.UINT4, 4),
    "int8": (TensorProto.INT8, 8),
    "uint2": (TensorProto.UINT2, 2),
}
DEPTH, COLUMNS = 1024, 512
FP32 = DEPTH * COLUMNS * 4
LARGE = 4096


def quantized(
    dtype: str = "int4",
    *,
    axis: int | None = 0,
    block: int = 32,
    operator: str = "MatMul",
    behind: tuple[str, ...] = (),
    rank: int = 3,
    half: bool = False,
    size: tuple[int, int] = (DEPTH, COLUMNS),
    layers: int = 1,
    attributes: str = "",
    more: str = "",
    outputs: str = "",
) -> onnx.ModelProto:
    """Products with dequantized weights ``[K, N]``, one after the other, and what is `behind`."""
    kind, bits = TYPES[dtype]
    depth, columns = size
    scales: tuple[int, ...] = (columns,) if axis is not None else ()
    if axis in (0, -2) and not block:
        scales = (depth,)
    if block:
        scales = (-(-depth // block), columns) if axis in (0, -2) else (depth, columns // block)
    options = [f"axis = {axis}"] if axis is not None else []
    options += [f"block_size = {block}"] if block else []
    attribute_list = f"<{', '.join(options)}>" if options else ""
    nodes, value = [], "x"
    for layer in range(layers):
        operands = f"v{layer}, {value}" if operator == "Gather" else f"{value}, v{layer}"
        nodes += [
            f"v{layer} = DequantizeLinear{attribute_list}(w{layer}, s{layer})",
            f"m{layer} = {operator}{attributes}({operands})",
        ]
        value = f"m{layer}"
        for place, name in enumerate(behind):
            added = ", b" if name == "Add" else ""
            nodes.append(f"r{layer}_{place} = {name}({value}{added})")
            value = f"r{layer}_{place}"
    float_type, number = ("float16", np.float16) if half else ("float", np.float32)
    shape = f"b, n, {depth}" if rank == 3 else f"n, {depth}"
    x = "int64[n] x" if operator == "Gather" else f"{float_type}[{shape}] x"
    text = f"g ({x}) => ({float_type}[] {value}{outputs}) {{ {' '.join(nodes)} {more} }}"
    model = text_model(text, 10, 25 if bits == 2 else 21)
    for layer in range(layers):
        data = random((depth * columns * bits // 8,), layer, np.uint8).tobytes()
        model.graph.initializer.append(helper.make_tensor(f"w{layer}", kind, size, data, raw=True))
        scale = np.asarray(np.abs(random(scales, layer)) * 0.01 + 0.001, number)
        model.graph.initializer.append(tensor(scale, f"s{layer}"))
    model.graph.initializer.append(tensor(np.ones(columns, number), "b"))
    return model


def initializer(model: onnx.ModelProto, name: str) -> TensorProto:
    found: TensorProto = next(one for one in model.graph.initializer if one.name == name)
    return found


def reasons(model: onnx.ModelProto, folder: Path, runtime: str = "1.31.1") -> list[str]:
    """Return why products are not fused, as the findings about bytes say it."""
    reported = findings(RULE, model, folder, runtime=runtime)
    return [one.message.rpartition("(")[2].rstrip(")") for one in reported if one.bytes]


LAST_AXIS = "its blocks are along the last axis"
NO_BLOCKS = "it is not quantized in blocks"


@pytest.mark.parametrize(
    ("options", "old", "new"),
    [
        ({}, None, None),
        ({"axis": 1}, LAST_AXIS, LAST_AXIS),
        ({"axis": -2}, "its axis is written as -2", "its axis is written as -2"),
        ({"block": 512}, "its blocks are of 512 values", "its blocks are of 512 values"),
        ({"block": 0, "axis": 1}, NO_BLOCKS, None),
        ({"block": 0, "axis": None}, NO_BLOCKS, None),
        ({"block": 0, "axis": -1}, NO_BLOCKS, "its axis is written as -1"),
        ({"block": 0, "axis": 0}, NO_BLOCKS, NO_BLOCKS),
        ({"dtype": "int8"}, "8 bits are fused since 1.25", None),
        ({"dtype": "uint2"}, "2 bits are fused since 1.25", None),
        ({"half": True}, "the scales are not fp32", None),
        ({"operator": "Gemm", "rank": 2}, "Gemm is fused since 1.25", None),
        ({"operator": "Gather"}, "a Gather reads it", "a Gather reads it"),
        ({"behind": ("Relu", "Neg")}, "a Relu takes the product", "a Relu takes the product"),
        ({"behind": ("Clip", "Neg")}, "a Clip takes the product", "a Clip takes the product"),
        ({"behind": ("Add",), "rank": 2}, "an Add makes the product a Gemm", None),
        ({"behind": ("Add",)}, None, None),
        ({"behind": ("Relu",)}, None, None),
        ({"behind": ("Sigmoid", "Neg")}, None, None),
        ({"axis": 1, "size": (256, 512)}, None, None),
    ],
)
def test_what_does_not_fuse_says_why(
    tmp_path: Path, options: dict[str, Any], old: str | None, new: str | None
) -> None:
    model = quantized(**options)
    for runtime, reason in (("1.24.4", old), ("1.31.1", new)):
        assert reasons(model, tmp_path, runtime) == ([] if reason is None else [reason])


def test_a_transposed_gemm_does_not_fuse(tmp_path: Path) -> None:
    model = quantized(operator="Gemm", rank=2, attributes="<transB = 1>", size=(512, 512))
    assert reasons(model, tmp_path) == ["Gemm reads it with transB"]


def test_all_weights_are_in_fp32_at_once_and_twice(tmp_path: Path) -> None:
    model = quantized(axis=1, layers=3, size=(1024, 1024))
    fields = {"weights": ("w0", "w1", "w2"), "bytes": 2 * 3 * 1024 * 1024 * 4}
    finding = found(RULE, model, tmp_path, phase="first_run", **fields)
    assert {*finding.nodes} >= {"DequantizeLinear_0", "MatMul_1"}


def test_sharing_the_dequantized_values_since_1_27(tmp_path: Path) -> None:
    model = quantized(more="z = MatMul(x, v0)", outputs=", float[b, n, m] z")
    assert not findings(RULE, model, tmp_path, runtime="1.26.0")
    found(RULE, model, tmp_path, bytes=2 * FP32)
    assert reasons(model, tmp_path) == ["several nodes share the DequantizeLinear"]


@pytest.mark.parametrize("axis", [None, 1])
def test_sharing_scales_since_1_27(tmp_path: Path, axis: int | None) -> None:
    model = quantized("int8", axis=axis, block=0, layers=2, size=(1024, 1024))
    assert not findings(RULE, model, tmp_path)
    if axis is None:
        # Equal single numbers are made one.
        initializer(model, "s1").raw_data = initializer(model, "s0").raw_data
    else:
        model.graph.node[2].input[1] = "s0"
    assert reasons(model, tmp_path) == ["several weights share their scales"]
    assert not findings(RULE, model, tmp_path, runtime="1.26.0")


def test_one_scale_in_an_axis_of_its_own(tmp_path: Path) -> None:
    model = quantized("int8", axis=None, block=0)
    initializer(model, "s0").dims.append(1)
    assert reasons(model, tmp_path) == [NO_BLOCKS]


def test_what_is_added_must_fit_a_gemm(tmp_path: Path) -> None:
    model = quantized(behind=("Add",), rank=2)
    initializer(model, "b").CopyFrom(tensor(np.ones((1, COLUMNS), np.float32), "b"))
    assert reasons(model, tmp_path) == ["an Add makes the product a Gemm"]
    initializer(model, "b").CopyFrom(tensor(np.ones(1, np.float32), "b"))
    assert not findings(RULE, model, tmp_path, runtime="1.24.4")


def test_a_quantized_other_operand_makes_an_integer_product(tmp_path: Path) -> None:
    model = quantized("int8", axis=1, block=0, rank=2)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    model.graph.node.insert(0, helper.make_node("DequantizeLinear", ["x", "s"], ["a"]))
    model.graph.initializer.append(tensor(np.array(0.1, np.float32), "s"))
    model.graph.node[2].input[0] = "a"
    assert not findings(RULE, model, tmp_path, runtime="1.24.4")


def test_a_gather_of_quantized_values_stays_quantized(tmp_path: Path) -> None:
    assert findings(RULE, quantized("int8", axis=1, block=0, operator="Gather"), tmp_path)
    model = quantized(
        "int8", axis=1, block=0, operator="Gather", more="q = QuantizeLinear(m0, qs, qz)"
    )
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("q", TensorProto.UINT8, None))
    for values, name in ((np.array(0.1, np.float32), "qs"), (np.array(1, np.uint8), "qz")):
        model.graph.initializer.append(tensor(values, name))
    assert not findings(RULE, model, tmp_path)


def test_scales_that_are_not_constant_are_not_judged(tmp_path: Path) -> None:
    model = quantized(axis=1)
    model.graph.initializer.remove(initializer(model, "s0"))
    scales = helper.make_tensor_value_info("s0", TensorProto.FLOAT, [DEPTH, COLUMNS // 32])
    model.graph.input.append(scales)
    assert not findings(RULE, model, tmp_path)


def test_a_large_embedded_model_peaks_while_it_is_repacked(tmp_path: Path) -> None:
    model = quantized(layers=6, size=(LARGE, LARGE))
    values, scales = LARGE * LARGE // 2, LARGE * LARGE // 32 * 4
    peak = pytest.approx(6 * (2 * (values + scales) - values - 3 * scales), 0.01)
    found(RULE, model, tmp_path, bytes=0, peak_bytes=peak)
    assert not findings(RULE, external(model, tmp_path), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["1.24.4", "1.31.1"])
@pytest.mark.parametrize("options", [{"axis": 1}, {"behind": ("Relu", "Neg")}], ids=str)
def test_the_memory_taken_is_what_was_predicted(
    tmp_path: Path, options: dict[str, Any], version: str, agrees: Agrees
) -> None:
    sizes: dict[str, Any] = {"layers": 3, "size": (2048, 2048)}
    finding = found(RULE, quantized(**options, **sizes), tmp_path, runtime=version)
    taken = above_baseline(xray(tmp_path / "model.onnx", version))
    assert not findings(RULE, quantized(behind=("Neg",), **sizes), tmp_path, runtime=version)
    more = taken - above_baseline(xray(tmp_path / "model.onnx", version))
    # Fused, the weights are packed with block sums; apart, they are mapped as they are.
    packed = 3 * 2048 * 2048 // 4
    # Measured on three releases, in four rounds: 3.5 to 5.1 % more than predicted.
    agrees(finding, more + packed, version, rel=0.07)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("dtype", "block", "axis"), [("int4", 32, 0), ("int8", 0, 1)])
def test_the_peak_is_that_of_both_forms(
    tmp_path: Path, dtype: str, block: int, axis: int, agrees: Agrees
) -> None:
    model = quantized(dtype, axis=axis, block=block, layers=10, size=(LARGE, LARGE))
    finding = found(RULE, model, tmp_path)
    profile = memdiag.profile(
        tmp_path / "model.onnx",
        session_options={"intra_op_num_threads": "1"},
        run=False,
        xray="none",
        environment={"MALLOC_MMAP_THRESHOLD_": "131072"},
    )
    phases = {phase.name: phase for phase in profile.phases}
    while_fusing, packed = phases["optimize"].peak_rss_bytes, phases["prepack"].peak_rss_bytes
    agrees(finding, while_fusing - packed, figure="peak")
