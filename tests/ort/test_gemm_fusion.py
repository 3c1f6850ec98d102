from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from memdiag.model.model_file import open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.fusions import becomes_gemm, kernel_of
from memdiag.ort.runtime import Runtime
from memdiag.ort.session_constants import packed_buffers
from tests.rules.measuring import NEWEST, xray

ROWS, COLUMNS = 128, 256


def model(
    body: str,
    x: str = "n,128",
    bias: tuple[int, ...] = (COLUMNS,),
    rank: int = 2,
    output: str = "",
) -> onnx.ModelProto:
    sizes = output or ",".join("abcd"[:rank])
    proto = parser.parse_model(
        f'<ir_version: 10, opset_import: ["":17]> g (float[{x}] x) => '
        f"(float[{sizes}] y, float[{sizes}] z) {{ {body} }}"
    )
    values = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), np.float32)
    proto.graph.initializer.extend(
        [numpy_helper.from_array(values, "w"), numpy_helper.from_array(values[:1, :1] * 0, "o")]
    )
    rest = np.random.default_rng(1).standard_normal(bias).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(rest, "b"))
    return proto


PLAIN = "u = Neg(x) y = MatMul(u, w) "
# A body in which a product is beside one that is alone, and whether it becomes a Gemm.
CASES = {
    "a bias": (model(PLAIN + "k = MatMul(x, w) z = Add(k, b)"), True),
    "the bias first": (model(PLAIN + "k = MatMul(x, w) z = Add(b, k)"), True),
    "three axes of known size": (
        model(PLAIN + "k = MatMul(x, w) z = Add(k, b)", x="2,3,128", rank=3),
        True,
    ),
    "three axes of known size, behind Identity": (
        model(PLAIN + "i = Identity(w) k = MatMul(x, i) z = Add(k, b)", x="2,3,128", rank=3),
        True,
    ),
    "three axes": (model(PLAIN + "k = MatMul(x, w) z = Add(k, b)", x="n,m,128", rank=3), False),
    "a matrix of as many rows": (
        model(PLAIN + "h = Sin(y) k = MatMul(x, w) z = Add(k, h)", output="n,256"),
        True,
    ),
    "a column of as many rows": (
        model(
            PLAIN + "c = ReduceMax<axes = [1]>(y) k = MatMul(x, w) z = Add(k, c)", output="n,256"
        ),
        True,
    ),
    # The graph calls the number of rows of y otherwise.
    "a matrix of other rows": (model(PLAIN + "k = MatMul(x, w) z = Add(k, y)"), False),
    "no sum": (model(PLAIN + "k = MatMul(x, w) z = Sub(k, b)"), False),
    "two readers": (
        model(PLAIN + "k = MatMul(x, w) a = Add(k, b) z = Mul(a, k)"),
        False,
    ),
    "a bias of more axes": (
        model(PLAIN + "k = MatMul(x, w) a = Add(k, b) z = Max(a, y)", bias=(5, 1, COLUMNS), rank=2),
        False,
    ),
    "one of two like products": (
        model(PLAIN + "k = MatMul(x, w) a = Add(k, b) l = MatMul(x, w) c = Relu(l) z = Mul(a, c)"),
        False,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_becomes_a_gemm(tmp_path: Path, case: str) -> None:
    proto, expected = CASES[case]
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    with open_model(path) as opened:
        ctx = AnalysisContext(opened, Runtime(1, 31, 1))
        scope = next(scope for _, scope in ctx.graphs)
        node = next(node for node in scope.nodes if node.output[0] == "k")
        found = becomes_gemm(ctx.graphs, ctx.shapes, scope, node)
        operator = kernel_of(ctx.graphs, ctx.shapes, scope, node)
    assert found == expected
    assert operator == ("", "Gemm" if expected else "MatMul", False)


@pytest.mark.parametrize(
    "change", ["an input less", "an input more", "a like product without an output"]
)
def test_a_product_with_other_inputs_or_outputs_becomes_no_gemm(
    tmp_path: Path, change: str
) -> None:
    proto = model(PLAIN + "k = MatMul(x, w) l = MatMul(x, w) z = Add(k, b)")
    product, other = proto.graph.node[2], proto.graph.node[3]
    if change == "an input less":
        del product.input[1]
    elif change == "an input more":
        product.input.append("b")
    else:
        del other.output[:]
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    with open_model(path) as opened:
        ctx = AnalysisContext(opened, Runtime(1, 31, 1))
        scope = next(scope for _, scope in ctx.graphs)
        found = becomes_gemm(ctx.graphs, ctx.shapes, scope, scope.nodes[2])
    assert found == (change == "a like product without an output")


READ_DIRECTLY_AND_BEHIND_IDENTITY = (
    "i = Identity(w) l = MatMul(x, w) y = Add(l, b) u = Neg(x) "
    "j = Identity(i) k = MatMul(u, j) z = Add(k, b)"
)


@pytest.mark.parametrize("x", ["n,m,128", "2,3,128"])
def test_sizes_that_only_the_user_knows_change_no_kernel(tmp_path: Path, x: str) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(READ_DIRECTLY_AND_BEHIND_IDENTITY, x=x, rank=3), path)
    with open_model(path) as opened:
        for sizes in ({}, {"n": 2, "m": 3}):
            ctx = AnalysisContext(opened, Runtime(1, 32), sizes=sizes)
            (weight,) = (each for each in opened.weights if each.name == "w")
            loaded = ctx.session.weight(weight)
            assert [use.kernel.op_type for use in loaded.uses if use.kernel] == [
                "MatMul" if "n" in x else "Gemm"
            ] * 2
            assert len(packed_buffers([loaded])) == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("x", ["n,m,128", "2,3,128"])
def test_one_packed_copy_serves_reads_behind_identity(tmp_path: Path, x: str) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(READ_DIRECTLY_AND_BEHIND_IDENTITY, x=x, rank=3), path)
    copies = xray(path, NEWEST).copies
    packed = [one for one in copies if one.kind == "packed" and one.in_use and "w" in one.weights]
    assert len(packed) == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
@pytest.mark.parametrize("case", CASES)
def test_a_gemm_shares_no_packed_copy_with_a_product(
    tmp_path: Path, case: str, version: str
) -> None:
    proto, expected = CASES[case]
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    copies = xray(path, version).copies
    packed = [one for one in copies if one.kind == "packed" and one.in_use and "w" in one.weights]
    assert len(packed) == 1 + expected
