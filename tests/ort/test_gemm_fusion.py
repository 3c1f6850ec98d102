from pathlib import Path
from typing import Any

import pytest
from onnx import ModelProto

from memdiag.ort.fusions import becomes_gemm, kernel_of
from memdiag.ort.runtime import Runtime
from memdiag.ort.session_constants import packed_buffers
from tests.builders import build, cases, noise, saved
from tests.ort.executing import analysed
from tests.rules.measuring import NEWEST, xray

COLUMNS = 256


def model(
    body: str,
    *,
    x: str = "n,128",
    bias: tuple[int, ...] = (COLUMNS,),
    rank: int = 2,
    output: str = "",
) -> ModelProto:
    sizes = output or ",".join("abcd"[:rank])
    graph = f"(float[{x}] x) => (float[{sizes}] y, float[{sizes}] z) {{ {body} }}"
    return build(graph, ir=10, weights={"w": noise(128, COLUMNS), "b": noise(*bias, seed=1)})


# Besides y, a product that is alone, there is a product k: whether it becomes a Gemm.
TABLE = cases(
    """
a bias: Gemm | k = MatMul(x, w) z = Add(k, b)
the bias first: Gemm | k = MatMul(x, w) z = Add(b, k)
three axes of known size: Gemm | k = MatMul(x, w) z = Add(k, b)
three axes of known size, behind Identity: Gemm | i = Identity(w) k = MatMul(x, i) z = Add(k, b)
three axes: MatMul | k = MatMul(x, w) z = Add(k, b)
a matrix of as many rows: Gemm | h = Sin(y) k = MatMul(x, w) z = Add(k, h)
a column of as many rows: Gemm
    c = ReduceMax<axes = [1]>(y) k = MatMul(x, w) z = Add(k, c)
# The graph calls the number of rows of y otherwise.
a matrix of other rows: MatMul | k = MatMul(x, w) z = Add(k, y)
no sum: MatMul | k = MatMul(x, w) z = Sub(k, b)
two readers: MatMul | k = MatMul(x, w) a = Add(k, b) z = Mul(a, k)
a bias of more axes: MatMul | k = MatMul(x, w) a = Add(k, b) z = Max(a, y)
one of two like products: MatMul
    k = MatMul(x, w) a = Add(k, b) l = MatMul(x, w) c = Relu(l) z = Mul(a, c)
"""
)
KNOWN_SIZE: dict[str, Any] = {"x": "2,3,128", "rank": 3}
OPTIONS: dict[str, dict[str, Any]] = {
    "three axes of known size": KNOWN_SIZE,
    "three axes of known size, behind Identity": KNOWN_SIZE,
    "three axes": {"x": "n,m,128", "rank": 3},
    "a matrix of as many rows": {"output": "n,256"},
    "a column of as many rows": {"output": "n,256"},
    "a bias of more axes": {"bias": (5, 1, COLUMNS)},
}
PLAIN = "u = Neg(x) y = MatMul(u, w)"
CASES = {
    name: (model(f"{PLAIN} {body}", **OPTIONS.get(name, {})), expected == "Gemm")
    for name, (expected, body) in TABLE.items()
}


@pytest.mark.parametrize("case", CASES)
def test_what_becomes_a_gemm(tmp_path: Path, case: str) -> None:
    proto, expected = CASES[case]
    with analysed(saved(proto, tmp_path), {}, Runtime(1, 31, 1)) as ctx:
        scope = next(scope for _, scope in ctx.graphs)
        node = next(node for node in scope.nodes if node.output[0] == "k")
        assert becomes_gemm(ctx.graphs, ctx.shapes, scope, node) == expected
        operator = kernel_of(ctx.graphs, ctx.shapes, scope, node)
        assert operator == ("", "Gemm" if expected else "MatMul", False)


@pytest.mark.parametrize(
    "change", ["an input less", "an input more", "a like product without an output"]
)
def test_a_product_with_other_inputs_or_outputs_becomes_no_gemm(
    tmp_path: Path, change: str
) -> None:
    proto = model(f"{PLAIN} k = MatMul(x, w) l = MatMul(x, w) z = Add(k, b)")
    product, other = proto.graph.node[2], proto.graph.node[3]
    if change == "an input less":
        del product.input[1]
    elif change == "an input more":
        product.input.append("b")
    else:
        del other.output[:]
    with analysed(saved(proto, tmp_path), {}, Runtime(1, 31, 1)) as ctx:
        scope = next(scope for _, scope in ctx.graphs)
        found = becomes_gemm(ctx.graphs, ctx.shapes, scope, scope.nodes[2])
    assert found == (change == "a like product without an output")


READ_DIRECTLY_AND_BEHIND_IDENTITY = (
    "i = Identity(w) l = MatMul(x, w) y = Add(l, b) u = Neg(x) "
    "j = Identity(i) k = MatMul(u, j) z = Add(k, b)"
)


@pytest.mark.parametrize("x", ["n,m,128", "2,3,128"])
def test_sizes_that_only_the_user_knows_change_no_kernel(tmp_path: Path, x: str) -> None:
    path = saved(model(READ_DIRECTLY_AND_BEHIND_IDENTITY, x=x, rank=3), tmp_path)
    for sizes in ({}, {"n": 2, "m": 3}):
        with analysed(path, sizes, Runtime(1, 32)) as ctx:
            (weight,) = (each for each in ctx.model_file.weights if each.name == "w")
            loaded = ctx.session.weight(weight)
            operators = [use.kernel.op_type for use in loaded.uses if use.kernel]
            assert operators == ["MatMul" if "n" in x else "Gemm"] * 2
            assert len(packed_buffers([loaded])) == 1


def packed_copies(path: Path, version: str) -> int:
    """Return how many packed copies of w a session uses."""
    copies = xray(path, version).copies
    return sum(
        copy.kind == "packed" and copy.in_use is True and "w" in copy.weights for copy in copies
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("x", ["n,m,128", "2,3,128"])
def test_one_packed_copy_serves_reads_behind_identity(tmp_path: Path, x: str) -> None:
    path = saved(model(READ_DIRECTLY_AND_BEHIND_IDENTITY, x=x, rank=3), tmp_path)
    assert packed_copies(path, NEWEST) == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
@pytest.mark.parametrize("case", CASES)
def test_a_gemm_shares_no_packed_copy_with_a_product(
    tmp_path: Path, case: str, version: str
) -> None:
    proto, expected = CASES[case]
    assert packed_copies(saved(proto, tmp_path), version) == 1 + expected
