"""Who made a copy: what the graph and the log say together, and where they say nothing."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memdiag.attribution.search_target import SearchTarget
from memdiag.records.attribution import WHOLE_FILE_COPY_NAME, Backing, Copy
from memdiag.runner.log import LogEvidence
from tests.attribution.provenance_models import Models, copy, log, made_by
from tests.builders import noise

FOLDING, NCHWC = "ConstantFolding", "NchwcTransformer"
FP16 = "FuseFp16InitializerToFp32NodeTransformer"
MATRIX, FILTER = noise(32, 32), noise(8, 8, 3, 3)
BYTES: dict[str, Any] = {"w": noise(32, 32, dtype=np.int8), "scale": np.float32(0.5)}
PRODUCT = "[product] y = MatMul (x, w)"
SCALED_PRODUCT = "[scale] f = DequantizeLinear (w, scale) [product] y = MatMul (x, f)"
TWO_PRODUCTS = "[first] m = MatMul (x, w) [second] y = MatMul (m, w)"
PLAIN, TURNED = (copy("packed_fp32", parameters={"transB": way}) for way in "01")


@pytest.fixture
def models(tmp_path: Path) -> Iterator[Models]:
    with ExitStack() as stack:
        yield Models(tmp_path, stack)


def removed(by: str, *changed: str, **options: Any) -> LogEvidence:
    """Return a log in which a transformer removed the weight w."""
    return log(*changed, removed={"w": by}, **options)


MAPPED = copy("original", backing=Backing(kind="file", file="w.data", offset=0))


@pytest.mark.parametrize(
    ("made", "evidence", "maker"),
    [
        (copy("original"), log(), "parse"),
        (copy("original", WHOLE_FILE_COPY_NAME), log(), "loading from bytes"),
        # Nobody made what is mapped or not known.
        (MAPPED, log(), None),
        (copy("original", "another"), log(), None),
        (copy("original"), removed(FOLDING), "parse"),
        # OpenVINO's library is loaded, but the log does not prove that it compiled anything.
        (copy("reordered_onednn"), log(), None),
        (PLAIN, log(reserved={4096: 1}), "prepack · product"),
        (PLAIN, log(reserved=None), "prepack · product"),
        # What was not reserved was packed by a kernel that ran. Of other packings it is not known
        # that every buffer is reserved.
        (PLAIN, log(reserved={640: 1}), "kernel · product"),
        (copy("packed_nbits"), log(reserved={640: 1}), "prepack · product"),
        # No node asks for this packing.
        (TURNED, log(), None),
    ],
)
def test_the_weight_of_a_product(
    models: Models, made: Copy, evidence: LogEvidence, maker: str | None
) -> None:
    # So large that the file itself is looked for.
    assert made_by(models.target(PRODUCT, w=noise(200, 200)), evidence, made) == maker


def test_openvino_made_what_onnxruntime_removed_after_it_had_compiled(models: Models) -> None:
    target = models.target(PRODUCT, w=noise(400, 32))
    maker = made_by(target, removed("OpenVINO"), copy("original"))
    assert maker is not None
    assert maker.startswith("OpenVINO · ")
    assert made_by(target, removed("OpenVINO"), copy("reordered_onednn")) == maker


# Packed ahead of time, or by a kernel that ran.


def test_a_reserved_buffer_is_that_of_the_node_that_packs(models: Models) -> None:
    body = f"[embed] g = Gather (w, x) [left] m = MatMul (w, x) {PRODUCT}"
    target = models.target(body, w=MATRIX)
    assert made_by(target, log(reserved={4096: 1}), PLAIN) == "prepack · product"


def test_the_way_a_product_takes_the_weight_tells_which_node_packed_it(models: Models) -> None:
    body = (
        "[straight] m = MatMul (x, w) t = Transpose <perm = [1, 0]> (w) "
        "[behind] n = MatMul (m, t) [turned] y = Gemm <transB = 1> (n, w)"
    )
    target, evidence = models.target(body, w=MATRIX), log(reserved={4096: 3})
    assert made_by(target, evidence, PLAIN) == "prepack · straight"
    maker = made_by(target, evidence, TURNED)
    assert maker in ("prepack · behind and 1 more", "prepack · turned and 1 more")


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
    target = models.target(TWO_PRODUCTS, w=MATRIX)
    assert made_by(target, log(reserved=reserved), PLAIN) == expected


def test_a_dequantized_operand_is_packed_by_the_product(models: Models) -> None:
    target = models.target(SCALED_PRODUCT, **BYTES)
    assert made_by(target, log(), copy("packed_nbits")) == "prepack · product"


@pytest.mark.parametrize(
    ("layout", "operator", "changed", "maker"),
    [
        ("transposed_filter", "ConvTranspose", (FOLDING, NCHWC), "prepack · filter"),
        ("reordered_qconv", "Conv", (FOLDING, NCHWC), "prepack · filter"),
        # Blocked filters are the transformer's if it changed anything.
        ("reordered_nchwc", "Conv", (NCHWC,), "NchwcTransformer · filter"),
        ("reordered_nchwc", "Conv", (FOLDING,), None),
    ],
)
def test_filters_are_reordered_by_their_convolutions(
    models: Models, layout: str, operator: str, changed: tuple[str, ...], maker: str | None
) -> None:
    body = f"[same] i = Identity (w) [shape] s = Shape (w) [filter] y = {operator} (x, w)"
    assert made_by(models.target(body, w=FILTER), log(*changed), copy(layout)) == maker


# Folded, or replaced by another transformer.

TIED = (
    "[embed] g = Gather (w, x) [turn] t = Transpose <perm = [1, 0]> (w) [product] y = MatMul (g, t)"
)
EMBEDDED = "[scale] f = DequantizeLinear (w, scale) [embed] y = Gather (w, x)"
RESHAPED = "[shape] r = Reshape (w, shape) [product] y = MatMul (x, r)"
HALF_WIDENED = "[widen] f = Cast <to = 1> (w) [half] m = MatMul (x, w) [full] y = MatMul (m, f)"
HALF = MATRIX.astype(np.float16)


@pytest.mark.parametrize(
    ("body", "weight", "layout", "evidence", "maker"),
    [
        # A weight with another reader may have been folded.
        (TIED, MATRIX, "transposed", log(FOLDING), "ConstantFolding · turn"),
        (TIED, MATRIX, "transposed", removed(FOLDING, FOLDING), "ConstantFolding · turn"),
        (TIED, MATRIX, "transposed", log(), None),
        # One whose only reader is left was not, unless not all that went is known.
        (SCALED_PRODUCT, BYTES["w"], "dequantized", log(FOLDING), "kernel · scale"),
        (SCALED_PRODUCT, BYTES["w"], "dequantized", log(FOLDING, removed_all=False), None),
        (
            *(SCALED_PRODUCT, BYTES["w"], "dequantized", removed(FOLDING, FOLDING)),
            "ConstantFolding · scale",
        ),
        # What DequantizeLinear gives is not laid to folding unless that is proven.
        (EMBEDDED, BYTES["w"], "dequantized", log(FOLDING), None),
        # Who took the weight from its readers made the copy, if it goes on in its own shape.
        (TWO_PRODUCTS, HALF, "cast", removed(FP16, FOLDING, FP16), f"{FP16} · first and 1 more"),
        (TWO_PRODUCTS, HALF, "cast", log(FOLDING, FP16), None),
        (RESHAPED, HALF, "cast", removed("ReshapeFusion", "ReshapeFusion"), None),
        (RESHAPED, HALF, "cast", removed(FOLDING, FOLDING), None),
        # With a step that may have been folded the last transformer is not named.
        (HALF_WIDENED, HALF, "cast", removed("Other", FOLDING, "Other"), "ConstantFolding · widen"),
    ],
)
def test_folded_and_replaced_weights(
    models: Models,
    body: str,
    weight: Any,
    layout: str,
    evidence: LogEvidence,
    maker: str | None,
) -> None:
    target = models.target(body, w=weight, scale=np.float32(0.5), shape=[64, 16])
    assert made_by(target, evidence, copy(layout)) == maker


def test_a_name_that_several_graphs_have_proves_nothing(models: Models) -> None:
    def branch(label: str, start: int) -> str:
        values = ", ".join(f"{value}.5" for value in range(start, start + 256))
        return f"""{label} () => ({label}_y) <float[16, 16] w = {{{values}}}> {{
            [{label}_turn] {label}_t = Transpose <perm = [1, 0]> (w)
            [{label}_product] {label}_y = MatMul (x, {label}_t) }}"""

    target = models.target(
        f"[if] y = If (x) <then_branch = {branch('then', 0)}, else_branch = {branch('other', 9)}>"
    )
    turned = copy("transposed", "if/then_branch/w")
    maker = made_by(target, removed("Other", FOLDING, "Other"), turned)
    assert maker == "ConstantFolding · then_turn"


# Computed from several weights: known through the runtime's optimized model.


def fused(models: Models, name: str, reader: str) -> list[SearchTarget]:
    body = "[scale] wk = Mul (w, k) [filter] y = Conv (x, wk)"
    original = models.target(body, w=FILTER, k=noise(8, 1, 1, 1))
    return models.optimized(original, reader, **{name: noise(8, 8, 3, 3, seed=1)})


CONV = "[filter] y = Conv (x, {})"
BLOCKED = "[y_nchwc] y = com.microsoft.nchwc.Conv (x, {})"
LEVEL_1 = "Level1_RuleBasedTransformer"


@pytest.mark.parametrize(
    ("name", "reader", "changed", "maker"),
    [
        # A blocked convolution's filter was blocked last.
        ("reorder", BLOCKED, (FOLDING, NCHWC), "NchwcTransformer · y_nchwc"),
        ("reorder", BLOCKED, (FOLDING, "Other"), "optimize · y_nchwc"),
        # An output that became a weight was folded. TransposeOptimizer changes weights under the
        # name that they had.
        ("wk", CONV, (FOLDING, "Other"), "ConstantFolding · scale"),
        ("wk", CONV, (FOLDING, "TransposeOptimizer"), "optimize · filter"),
        ("ConvMulFusion_W_w", CONV, (LEVEL_1, "Other"), "ConvMulFusion · filter"),
        # The only transformer that changed anything is named.
        ("new", CONV, ("TransposeOptimizer",), "TransposeOptimizer · filter"),
        ("new", CONV, ("TransposeOptimizer", "B"), "optimize · filter"),
    ],
)
def test_fused_weights(
    models: Models, name: str, reader: str, changed: tuple[str, ...], maker: str
) -> None:
    target = fused(models, name, reader.format(name))
    assert made_by(target, log(*changed), copy("original", name, kind="fused")) == maker


def test_a_name_that_the_model_had_tells_no_fusion(models: Models) -> None:
    name = "ConvMulFusion_W_w"
    original = models.target(CONV.format(name), **{name: FILTER})
    changed = noise(8, 8, 3, 3, seed=1)
    target = models.optimized(original, CONV.format(name), **{name: changed})
    made = copy("original", name, kind="fused")
    assert made_by(target, log("A", "B"), made) == "optimize · filter"


def test_what_was_computed_and_then_packed_was_packed_last(models: Models) -> None:
    target = fused(models, "new", "[product] y = MatMul (x, new)")
    made = copy("packed_fp32", "new", kind="fused", parameters={"transB": "0"})
    assert made_by(target, log("Other", reserved={4096: 1}), made) == "prepack · product"
