from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from memdiag.rewrites.catalog import gemm_transposed
from tests.rewrites.rewriting import finding, operators, refusal
from tests.rewrites.tied_models import (
    COLUMNS,
    ROWS,
    SHARED,
    in_subgraph,
    model,
    rewritten,
    tied,
    tied_feeds,
    weight,
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_product_of_a_matrix_becomes_one_gemm(tmp_path: Path, dtype: type) -> None:
    runs = [tied_feeds(rows, dtype=dtype) for rows in (0, 1, 5)]
    path = rewritten(gemm_transposed, tied(dtype=dtype), tmp_path, *runs)
    assert operators(path) == ["Gather", "Gemm"]


@pytest.mark.parametrize(
    ("sizes", "runs", "opset", "added"),
    [
        ((), [()], 11, "Constant Flatten Reshape"),
        (("b", 3), [(1, 3), (4, 3), (0, 3)], 11, "Constant Flatten Reshape"),
        ((2, "s"), [(2, 1), (2, 0)], 13, "Constant Flatten Reshape"),
        (("b", "s"), [(1, 1), (2, 3), (0, 3), (2, 0), (0, 0)], 14, "Flatten Reshape Shape"),
        (("b", 0), [(2, 0)], 17, "Flatten Reshape Shape"),
        (("b", "h", "s"), [(1, 2, 3), (2, 0, 3)], 21, "Flatten Reshape Shape"),
    ],
)
def test_other_ranks_are_flattened_and_given_their_axes_again(
    tmp_path: Path,
    sizes: tuple[int | str, ...],
    runs: list[tuple[int, ...]],
    opset: int,
    added: str,
) -> None:
    feeds = [tied_feeds(*shape) for shape in runs]
    path = rewritten(gemm_transposed, tied(sizes, opset=opset), tmp_path, *feeds)
    assert {*added.split(), "Gemm"} <= set(operators(path))
    assert not {"MatMul", "Transpose"} & set(operators(path))


TWO_PRODUCTS = "t = Transpose(w) a = MatMul(x, t) b = MatMul(x, t) y = Add(a, b)"
TWO_TRANSPOSES = (
    "t = Transpose(w) s = Transpose(w) a = MatMul(x, t) b = Relu(s) c = ReduceSum(b) y = Add(a, c)"
)


@pytest.mark.parametrize(
    ("nodes", "left"),
    [
        ("i = Identity(w) t = Transpose(i) j = Identity(t) y = MatMul(x, j)", "Gather Gemm"),
        ("t = Transpose(w) y = Gemm(x, t)", "Gather Gemm"),
        ("t = Transpose(w) y = Gemm <alpha = 0.5, transB = 0> (x, t)", "Gather Gemm"),
        (TWO_PRODUCTS, "Add Gather Gemm Gemm"),
        (TWO_TRANSPOSES, "Add Gather Gemm ReduceSum Relu Transpose"),
    ],
    ids=["identity", "gemm", "gemm with attributes", "two products", "another Transpose"],
)
def test_what_lies_between_goes_as_well(tmp_path: Path, nodes: str, left: str) -> None:
    path = rewritten(gemm_transposed, tied(nodes=nodes), tmp_path, tied_feeds(3))
    assert operators(path) == left.split()


@pytest.mark.parametrize(
    "nodes",
    [
        "c = Cast <to = 1> (w) t = Transpose(c) y = MatMul(x, t)",
        "t = Transpose(w) c = Cast <to = 1> (t) y = MatMul(x, c)",
    ],
    ids=["before", "after"],
)
def test_a_cast_stays(tmp_path: Path, nodes: str) -> None:
    original = model(
        f"g (float[n, {COLUMNS}] x, int64[i] ids) => (float[n, {ROWS}] y, double[i, {COLUMNS}] e)"
        f" {{ e = Gather(w, ids) {nodes} }}",
        w=weight(dtype=np.float64),
    )
    assert operators(rewritten(gemm_transposed, original, tmp_path)) == ["Cast", "Gather", "Gemm"]


def test_gemm_with_transb_reads_the_weight_without(tmp_path: Path) -> None:
    original = model(
        f"g (float[n, {ROWS}] x, int64[i] ids) => (float[n, {COLUMNS}] y, float[i, {COLUMNS}] e)"
        " { e = Gather(w, ids) t = Transpose(w) y = Gemm <transB = 1> (x, t) }"
    )
    assert operators(rewritten(gemm_transposed, original, tmp_path)) == ["Gather", "Gemm"]


def test_a_weight_of_a_subgraph_is_named_by_its_path(tmp_path: Path) -> None:
    of = finding("If_0/then_branch/v")
    path = rewritten(gemm_transposed, in_subgraph(), tmp_path, of=of)
    assert operators(path) == ["Gemm", "If", "MatMul", "Transpose"]


OUTPUT = "t = Transpose(w) y = MatMul(x, t)"


@pytest.mark.parametrize(
    ("original", "reason"),
    [
        (tied(dtype=np.int32), "Gemm does not support int32"),
        (tied(dtype=np.float16), "Gemm does not support float16"),
        (tied(opset=10), "in operator set 10 a Gemm has to have a bias"),
        (tied(("b", "s"), opset=13), "in operator set 13 the product cannot be given its axes"),
        (tied(None, opset=13), "in operator set 13 the product cannot be given its axes"),
        (
            model(f"g (float[n, {COLUMNS}] x) => (float y, float t) {{ {OUTPUT} }}"),
            "the transposed weight is an output",
        ),
    ],
)
def test_near_misses_are_refused(tmp_path: Path, original: ModelProto, reason: str) -> None:
    assert reason in refusal(gemm_transposed, original, SHARED, tmp_path)
