"""Who made a copy: what the graph and the log say together, and where they say nothing."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from memdiag.attribution.search_target import SearchTarget
from memdiag.records.attribution import WHOLE_FILE_COPY_NAME, Backing
from tests.attribution.provenance_models import (
    NCHWC,
    Models,
    branch,
    copy,
    log,
    made_by,
    node,
    noise,
    octets,
    product,
)


@pytest.fixture
def models(tmp_path: Path) -> Iterator[Models]:
    with ExitStack() as stack:
        yield Models(tmp_path, stack)


def test_an_original_was_parsed_and_the_file_loaded(models: Models) -> None:
    target = models.target(*product(noise(200, 200)))
    assert made_by(target, log(), copy("original")) == "parse"
    assert made_by(target, log(), copy("original", WHOLE_FILE_COPY_NAME)) == "loading from bytes"


def test_nobody_made_what_is_mapped_or_not_known(models: Models) -> None:
    target = models.target(*product(noise(16, 16)))
    mapped = copy("original", backing=Backing(kind="file", file="w.data", offset=0))
    assert made_by(target, log(), mapped) is None
    assert made_by(target, log(), copy("original", "another")) is None


def test_openvino_made_what_onnxruntime_removed_after_it_had_compiled(models: Models) -> None:
    target = models.target(*product(noise(400, 32)))
    compiled = log(removed={"w": "OpenVINO"})
    maker = made_by(target, compiled, copy("original"))
    assert maker is not None
    assert maker.startswith("OpenVINO · ")
    assert made_by(target, compiled, copy("reordered_onednn")) == maker
    assert made_by(target, log(removed={"w": "ConstantFolding"}), copy("original")) == "parse"
    # Its library is loaded, but the log does not prove that it compiled anything.
    assert made_by(target, log(), copy("reordered_onednn")) is None


# Packed ahead of time, or by a kernel that ran.


def test_a_reserved_buffer_is_that_of_the_node_that_packs(models: Models) -> None:
    nodes = [
        node("Gather", ["w", "x"], ["g"], name="embed"),
        node("MatMul", ["w", "x"], ["m"], name="on the left"),
        node("MatMul", ["x", "w"], ["y"], name="product"),
    ]
    target = models.target(nodes, {"w": noise(32, 32)})
    packed = copy("packed_fp32", parameters={"transB": "0"})
    assert made_by(target, log(reserved={4096: 1}), packed) == "prepack · product"
    assert made_by(target, log(reserved=None), packed) == "prepack · product"


def test_what_was_not_reserved_was_packed_by_a_kernel_that_ran(models: Models) -> None:
    target = models.target(*product(noise(32, 32)))
    packed = copy("packed_fp32", parameters={"transB": "0"})
    assert made_by(target, log(reserved={640: 1}), packed) == "kernel · product"
    # Of other packings it is not known that every buffer is reserved.
    assert made_by(target, log(reserved={640: 1}), copy("packed_nbits")) == "prepack · product"


def test_the_way_a_product_takes_the_weight_tells_which_node_packed_it(models: Models) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["m"], name="straight"),
        node("Transpose", ["w"], ["t"], perm=[1, 0]),
        node("MatMul", ["m", "t"], ["n"], name="behind a Transpose"),
        node("Gemm", ["n", "w"], ["y"], name="turned", transB=1),
    ]
    target = models.target(nodes, {"w": noise(32, 32)})
    evidence = log(reserved={4096: 3})
    straight = copy("packed_fp32", parameters={"transB": "0"})
    turned = copy("packed_fp32", parameters={"transB": "1"})
    assert made_by(target, evidence, straight) == "prepack · straight"
    made = made_by(target, evidence, turned)
    assert made in ("prepack · behind a Transpose and 1 more", "prepack · turned and 1 more")


def test_a_packing_that_no_node_asks_for_has_no_maker(models: Models) -> None:
    target = models.target(*product(noise(32, 32)))
    assert made_by(target, log(), copy("packed_fp32", parameters={"transB": "1"})) is None


@pytest.mark.parametrize(
    ("reserved", "expected"),
    [
        ({4096: 2}, "prepack · first and 1 more"),
        ({4096: 1}, "prepack · one of first and 1 more"),
        ({}, "kernel · one of first and 1 more"),
        (None, "prepack · first and 1 more"),
    ],
)
def test_fewer_buffers_than_nodes_are_those_of_some(
    models: Models, reserved: dict[int, int] | None, expected: str
) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["m"], name="first"),
        node("MatMul", ["m", "w"], ["y"], name="second"),
    ]
    target = models.target(nodes, {"w": noise(32, 32)})
    packed = copy("packed_fp32", parameters={"transB": "0"})
    assert made_by(target, log(reserved=reserved), packed) == expected


def test_a_dequantized_operand_is_packed_by_the_product(models: Models) -> None:
    nodes = [
        node("DequantizeLinear", ["w", "scale"], ["f"], name="scale"),
        node("MatMul", ["x", "f"], ["y"], name="product"),
    ]
    target = models.target(nodes, {"w": octets(32, 32), "scale": np.float32(0.5)})
    assert made_by(target, log(), copy("packed_nbits")) == "prepack · product"


@pytest.mark.parametrize(
    ("layout", "operator"), [("transposed_filter", "ConvTranspose"), ("reordered_qconv", "Conv")]
)
def test_filters_are_reordered_by_their_convolutions(
    models: Models, layout: str, operator: str
) -> None:
    nodes = [
        node("Identity", ["w"], ["i"], name="same"),
        node(operator, ["x", "w"], ["y"], name="filter"),
    ]
    target = models.target(nodes, {"w": noise(8, 8, 3, 3)})
    every = log("ConstantFolding", "NchwcTransformer")
    assert made_by(target, every, copy(layout)) == "prepack · filter"


def test_blocked_filters_are_the_transformers_if_it_changed_anything(models: Models) -> None:
    nodes = [
        node("Shape", ["w"], ["s"], name="shape"),
        node("Conv", ["x", "w"], ["y"], name="filter"),
    ]
    target = models.target(nodes, {"w": noise(8, 8, 3, 3)})
    blocked = copy("reordered_nchwc")
    assert made_by(target, log("NchwcTransformer"), blocked) == "NchwcTransformer · filter"
    assert made_by(target, log("ConstantFolding"), blocked) is None


# Folded, or replaced by another transformer.


def tied() -> tuple[list[onnx.NodeProto], dict[str, Any]]:
    nodes = [
        node("Gather", ["w", "x"], ["g"], name="embed"),
        node("Transpose", ["w"], ["t"], perm=[1, 0], name="turn"),
        node("MatMul", ["g", "t"], ["y"], name="product"),
    ]
    return nodes, {"w": noise(32, 32)}


def halves() -> tuple[list[onnx.NodeProto], dict[str, Any]]:
    nodes = [
        node("MatMul", ["x", "w"], ["m"], name="first"),
        node("MatMul", ["m", "w"], ["y"], name="second"),
    ]
    return nodes, {"w": noise(32, 32).astype(np.float16)}


def test_a_weight_with_another_reader_may_have_been_folded(models: Models) -> None:
    target = models.target(*tied())
    turned = copy("transposed")
    assert made_by(target, log("ConstantFolding"), turned) == "ConstantFolding · turn"
    gone = log("ConstantFolding", removed={"w": "ConstantFolding"})
    assert made_by(target, gone, turned) == "ConstantFolding · turn"
    assert made_by(target, log(), turned) is None


def test_a_weight_whose_only_reader_is_left_was_not_folded(models: Models) -> None:
    nodes = [
        node("DequantizeLinear", ["w", "scale"], ["f"], name="scale"),
        node("MatMul", ["x", "f"], ["y"], name="product"),
    ]
    target = models.target(nodes, {"w": octets(32, 32), "scale": np.float32(0.5)})
    wide = copy("dequantized")
    # Folding changed something, but not this.
    assert made_by(target, log("ConstantFolding"), wide) == "kernel · scale"
    # Where not all that went is known, it may have been this.
    assert made_by(target, log("ConstantFolding", removed_all=False), wide) is None
    gone = log("ConstantFolding", removed={"w": "ConstantFolding"})
    assert made_by(target, gone, wide) == "ConstantFolding · scale"


def test_what_dequantize_gives_is_not_laid_to_folding_unless_proven(models: Models) -> None:
    nodes = [
        node("DequantizeLinear", ["w", "scale"], ["f"], name="scale"),
        node("Gather", ["w", "x"], ["y"], name="embed"),
    ]
    target = models.target(nodes, {"w": octets(32, 32), "scale": np.float32(0.5)})
    assert made_by(target, log("ConstantFolding"), copy("dequantized")) is None


def test_who_took_the_weight_from_its_readers_made_the_copy(models: Models) -> None:
    target = models.target(*halves())
    fuse = "FuseFp16InitializerToFp32NodeTransformer"
    evidence = log("ConstantFolding", fuse, removed={"w": fuse})
    assert made_by(target, evidence, copy("cast")) == f"{fuse} · first and 1 more"
    assert made_by(target, log("ConstantFolding", fuse), copy("cast")) is None


def test_who_took_a_weight_that_goes_on_in_another_shape_made_no_copy(models: Models) -> None:
    nodes = [
        node("Reshape", ["w", "shape"], ["r"], name="shape"),
        node("MatMul", ["x", "r"], ["y"], name="product"),
    ]
    weights = {"w": noise(16, 64).astype(np.float16), "shape": np.array([32, 32])}
    target = models.target(nodes, weights)
    for transformer in ("ReshapeFusion", "ConstantFolding"):
        evidence = log(transformer, removed={"w": transformer})
        assert made_by(target, evidence, copy("cast")) is None


def test_with_a_step_that_may_have_been_folded_the_last_transformer_is_not_named(
    models: Models,
) -> None:
    nodes = [
        node("Cast", ["w"], ["f"], to=TensorProto.FLOAT, name="widen"),
        node("MatMul", ["x", "w"], ["m"], name="half"),
        node("MatMul", ["m", "f"], ["y"], name="full"),
    ]
    target = models.target(nodes, {"w": noise(32, 32).astype(np.float16)})
    evidence = log("ConstantFolding", "Other", removed={"w": "Other"})
    assert made_by(target, evidence, copy("cast")) == "ConstantFolding · widen"


def test_a_name_that_several_graphs_have_proves_nothing(models: Models) -> None:
    def body(label: str) -> onnx.GraphProto:
        return branch(
            node("Transpose", ["w"], [f"{label}_t"], perm=[1, 0], name=f"{label}_turn"),
            node("MatMul", ["x", f"{label}_t"], [f"{label}_y"], name=f"{label}_product"),
            w=noise(32, 32),
        )

    choice = node(
        "If", ["flag"], ["y"], name="if", then_branch=body("then"), else_branch=body("else")
    )
    target = models.target([choice], {"flag": np.array(True)})
    turned = copy("transposed", "if/then_branch/w")
    elsewhere = log("ConstantFolding", "Other", removed={"w": "Other"})
    assert made_by(target, elsewhere, turned) == "ConstantFolding · then_turn"


# Computed from several weights: known through the runtime's optimized model.


def fused(models: Models, name: str, reader: onnx.NodeProto) -> list[SearchTarget]:
    nodes = [
        node("Mul", ["w", "k"], ["wk"], name="scale"),
        node("Conv", ["x", "wk"], ["y"], name="filter"),
    ]
    original = models.target(nodes, {"w": noise(8, 8, 3, 3), "k": noise(8, 1, 1, 1)})
    return models.optimized(original, [reader], {name: noise(8, 8, 3, 3)})


def test_a_blocked_convolutions_filter_was_blocked_last(models: Models) -> None:
    blocked = node("Conv", ["x", "reorder"], ["y"], name="y_nchwc", domain=NCHWC)
    target = fused(models, "reorder", blocked)
    one = copy("original", "reorder", kind="fused")
    every = log("ConstantFolding", "NchwcTransformer")
    assert made_by(target, every, one) == "NchwcTransformer · y_nchwc"
    assert made_by(target, log("ConstantFolding", "Other"), one) == "optimize · y_nchwc"


def test_an_output_that_became_a_weight_was_folded(models: Models) -> None:
    target = fused(models, "wk", node("Conv", ["x", "wk"], ["y"], name="filter"))
    one = copy("original", "wk", kind="fused")
    assert made_by(target, log("ConstantFolding", "Other"), one) == "ConstantFolding · scale"
    # That one changes weights under the name that they had.
    moved = log("ConstantFolding", "TransposeOptimizer")
    assert made_by(target, moved, one) == "optimize · filter"


def test_the_runtimes_names_tell_the_fusion(models: Models) -> None:
    name = "ConvMulFusion_W_w"
    target = fused(models, name, node("Conv", ["x", name], ["y"], name="filter"))
    one = copy("original", name, kind="fused")
    every = log("Level1_RuleBasedTransformer", "Other")
    assert made_by(target, every, one) == "ConvMulFusion · filter"


def test_a_name_that_the_model_had_tells_no_fusion(models: Models) -> None:
    name = "ConvMulFusion_W_w"
    reader = node("Conv", ["x", name], ["y"], name="filter")
    original = models.target([reader], {name: noise(8, 8, 3, 3)})
    target = models.optimized(original, [reader], {name: noise(8, 8, 3, 3)})
    one = copy("original", name, kind="fused")
    assert made_by(target, log("A", "B"), one) == "optimize · filter"


def test_the_only_transformer_that_changed_anything_is_named(models: Models) -> None:
    target = fused(models, "new", node("Conv", ["x", "new"], ["y"], name="filter"))
    one = copy("original", "new", kind="fused")
    assert made_by(target, log("TransposeOptimizer"), one) == "TransposeOptimizer · filter"
    assert made_by(target, log("TransposeOptimizer", "B"), one) == "optimize · filter"


def test_what_was_computed_and_then_packed_was_packed_last(models: Models) -> None:
    target = fused(models, "new", node("MatMul", ["x", "new"], ["y"], name="product"))
    one = copy("packed_fp32", "new", kind="fused", parameters={"transB": "0"})
    assert made_by(target, log("Other", reserved={4096: 1}), one) == "prepack · product"
