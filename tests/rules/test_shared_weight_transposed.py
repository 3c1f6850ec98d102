from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from memdiag.rules.match_measurement import match_attribution
from tests.rules.conftest import Agrees
from tests.rules.examining import findings
from tests.rules.measuring import xray

RULE = "shared-weight-transposed"
ROWS, COLUMNS = 512, 256
SIZE = ROWS * COLUMNS * 4
PRODUCTS = {
    "product-by-rows",
    "gemm-transposed",
    "fused-matmul-transposed",
    "transpose-small-side",
}
REMEDIES = (
    "separate-packed-weight",
    "product-by-rows",
    "overridable-weight",
    "gemm-transposed",
    "fused-matmul-transposed",
    "transpose-small-side",
    "disable-constant-folding",
    "disable-prepacking",
)


def model(
    body: str,
    *,
    inputs: str = "",
    rows: int = ROWS,
    columns: int = COLUMNS,
    dtype: type[np.generic] = np.float32,
    opset: int = 17,
    more: str = "",
) -> onnx.ModelProto:
    """Return a model with the weight `W`, and with inputs c, ids, x [n, columns], v [n, rows]."""
    source = (
        f'<ir_version: 10, opset_import: ["":{opset}, "f":1]> g (bool c, int64 n0, int64[n] ids, '
        f"float[n,{columns}] x, float[n,{rows}] v{inputs}) => (float[p,q] y, float[r,s] z) "
        f"{{ {body} }}{more}"
    )
    proto = parser.parse_model(source)
    values = np.random.default_rng(0).standard_normal((rows, columns)).astype(dtype)
    proto.graph.initializer.append(numpy_helper.from_array(values, "W"))
    return proto


PLAIN = "y = Gather(W, ids) t = Transpose<perm=[1,0]>(W) z = MatMul(x, t)"
BRANCHES = (
    "z = Gather(W, ids) y = If(c) <"
    "then_branch = a () => (float[p,q] k) { t = Transpose(W) k = MatMul(x, t) }, "
    "else_branch = b () => (float[p,q] l) { u = Transpose(W) m = MatMul(x, u) l = Neg(m) }>"
)


TWO = (
    "a = Gather(W, ids) t = Transpose<perm=[1,0]>(W) b = MatMul(x, t) "
    "c0 = Gather(V, ids) u = Transpose<perm=[1,0]>(V) d = MatMul(x, u) "
    "y = Sum(a, c0) z = Sum(b, d)"
)


@pytest.mark.parametrize(
    ("seed", "claims"),
    [(0, [(("W", "V"), SIZE)]), (1, [(("W",), SIZE), (("V",), SIZE)])],
)
def test_a_packed_copy_that_two_weights_share_is_claimed_once(
    tmp_path: Path, seed: int, claims: list[tuple[tuple[str, ...], int]]
) -> None:
    proto = model(TWO)
    values = np.random.default_rng(seed).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(values, "V"))
    found = findings(RULE, proto, tmp_path)
    assert [(one.weights, one.bytes) for one in found] == claims
    assert [sum(each.bytes for each in one.expected) for one in found] == [SIZE] * len(claims)
    if seed == 0:
        assert found[0].message == (
            "W and V (512 KiB each, with the same content) are used as they are by Gather_0, "
            "Gather_3 and by MatMul_2, MatMul_5 through Transpose_1, Transpose_4, which are "
            "folded to 2 transposed copies."
        )
        assert found[0].detail.startswith(
            "onnxruntime 1.31.1 keeps the 2 originals and one packed copy of 512 KiB; "
        )


def test_one_graph(tmp_path: Path) -> None:
    (found,) = findings(RULE, model(PLAIN), tmp_path)
    assert found.rule == "MD103"
    assert found.weights == ("W",)
    assert found.nodes == ("Gather_0", "Transpose_1", "MatMul_2")
    assert found.graph == ""
    assert found.phase == "constant_fold"
    assert found.remedies == REMEDIES
    assert found.bytes == SIZE
    assert found.peak_bytes == SIZE
    assert [(copy.kind, copy.count, copy.bytes) for copy in found.expected] == [("packed", 1, SIZE)]
    assert found.message == (
        "W (512 KiB) is used as it is by Gather_0 and by MatMul_2 through Transpose_1, which is "
        "folded to a transposed copy."
    )
    assert found.detail == (
        "onnxruntime 1.31.1 keeps the original and one packed copy of 512 KiB; the peak is "
        "512 KiB higher than necessary."
    )


@pytest.mark.parametrize(
    ("version", "steady", "copies"),
    [
        ("1.24.4", 1, [("packed", 1)]),
        ("1.28.0", 1, [("packed", 1)]),
        ("1.31.1", 3, [("transposed", 2), ("packed", 1)]),
    ],
)
def test_each_branch_has_a_copy_by_version(
    tmp_path: Path, version: str, steady: int, copies: list[tuple[str, int]]
) -> None:
    (found,) = findings(RULE, model(BRANCHES), tmp_path, runtime=version)
    assert found.bytes == steady * SIZE
    assert [(copy.kind, copy.count) for copy in found.expected] == copies
    assert "folded to 2 transposed copies" in found.message


@pytest.mark.parametrize("version", ["1.24.4", "1.31.1"])
def test_the_peak_by_version(tmp_path: Path, version: str) -> None:
    (found,) = findings(RULE, model(PLAIN), tmp_path, runtime=version)
    assert found.peak_bytes == SIZE
    path = tmp_path / "external.onnx"
    onnx.save(model(PLAIN), path, save_as_external_data=True, location="external.data")
    (found,) = findings(RULE, path, tmp_path, runtime=version)
    assert found.peak_bytes == SIZE


FIRES: dict[str, tuple[str, int]] = {
    # A body, and how many times the weight it keeps beyond one.
    "both are packed": (
        "y = MatMul(v, W) t = Transpose(W) z = MatMul(x, t)",
        1,
    ),
    "nothing packs it": ("y = Gather(W, ids) t = Transpose(W) z = Gather(t, ids)", 1),
    "packed, and read as it is": (
        "y = Gather(W, ids) t = Transpose(W) a = MatMul(x, t) b = Gather(t, ids) "
        "z = Concat<axis=0>(a, b)",
        2,
    ),
    "through Identity": (
        "i = Identity(W) y = Gather(i, ids) t = Transpose(i) j = Identity(t) z = MatMul(x, j)",
        1,
    ),
    "the same Transpose twice": (
        "y = Gather(W, ids) t = Transpose(W) u = Transpose(W) a = MatMul(x, t) b = MatMul(x, u) "
        "z = Max(a, b)",
        1,
    ),
    "behind a loop": (
        "z = Gather(W, ids) y = Loop(n0, c, v) <"
        "body = b (int64 i, bool k, float[p,q] a) => (bool l, float[p,q] o) "
        "{ t = Transpose(W) m = MatMul(x, t) o = Max(m, a) l = Identity(k) }>",
        2,
    ),
    "both in one branch": (
        "z = Neg(x) y = If(c) <then_branch = a () => (float[p,q] k) "
        "{ g = Gather(W, ids) t = Transpose(W) k = MatMul(g, t) }, "
        "else_branch = b () => (float[p,q] l) { l = Neg(x) }>",
        2,
    ),
    "only transposed, in two branches": (
        BRANCHES.replace("z = Gather(W, ids)", "z = Neg(x)"),
        2,
    ),
    "Gemm and MatMul": (
        "y = Gather(W, ids) t = Transpose(W) a = Gemm(x, t) b = MatMul(x, t) z = Max(a, b)",
        2,
    ),
}


@pytest.mark.parametrize("case", FIRES)
def test_it_fires(tmp_path: Path, case: str) -> None:
    body, steady = FIRES[case]
    (found,) = findings(RULE, model(body), tmp_path)
    assert found.bytes == steady * SIZE


NEAR_MISSES = {
    "only transposed": "y = Neg(x) t = Transpose(W) z = MatMul(x, t)",
    "only as it is": "y = Gather(W, ids) z = MatMul(v, W)",
    "an activation is transposed": ("g = Gather(W, ids) y = Transpose(g) z = MatMul(v, W)"),
    "Gemm alone": "y = Gather(W, ids) t = Transpose(W) z = Gemm(x, t)",
    "only axes of size 1 move": (
        "y = Gather(W, ids) k = Constant<value_ints=[0]>() u = Unsqueeze(W, k) "
        "t = Transpose<perm=[1,0,2]>(u) s = Gather(t, ids) m = Constant<value_ints=[1]>() "
        "z = Squeeze(s, m)"
    ),
    "something else is done to it": (
        "y = Gather(W, ids) a = Neg(W) t = Transpose(a) z = MatMul(x, t)"
    ),
}


@pytest.mark.parametrize("case", NEAR_MISSES)
def test_near_misses(tmp_path: Path, case: str) -> None:
    for version in ("1.24.4", "1.31.1"):
        assert findings(RULE, model(NEAR_MISSES[case]), tmp_path, runtime=version) == []


def test_an_overridable_weight(tmp_path: Path) -> None:
    proto = model(PLAIN, inputs=f", float[{ROWS},{COLUMNS}] W")
    assert findings(RULE, proto, tmp_path) == []


def test_a_small_weight(tmp_path: Path) -> None:
    assert findings(RULE, model(PLAIN, rows=64), tmp_path, runtime="1.31.1")
    assert findings(RULE, model(PLAIN, rows=63), tmp_path, runtime="1.31.1") == []


def test_a_cast_on_the_way(tmp_path: Path) -> None:
    body = (
        "g = Gather(W, ids) y = Cast<to=1>(g) w = Cast<to=1>(W) t = Transpose(w) z = MatMul(x, t)"
    )
    (found,) = findings(RULE, model(body, dtype=np.float16), tmp_path)
    # 256 KiB of halves stay, and 512 KiB of packed floats.
    assert found.bytes == SIZE
    assert found.peak_bytes == 2.5 * SIZE


def test_axes_of_rank_three(tmp_path: Path) -> None:
    body = (
        "y = Gather(W, ids) k = Constant<value_ints=[0]>() u = Unsqueeze(W, k) "
        "t = Transpose<perm=[0,2,1]>(u) m = MatMul(x, t) z = Squeeze(m, k)"
    )
    (found,) = findings(RULE, model(body), tmp_path)
    assert found.bytes == SIZE
    assert [copy.kind for copy in found.expected] == ["transposed"]
    assert not PRODUCTS & {*found.remedies}


def test_transposed_in_a_function(tmp_path: Path) -> None:
    turn = (
        '<domain: "f", opset_import: ["":17]> turn (w, a) => (o) '
        "{ t = Transpose(w) o = MatMul(a, t) }"
    )
    (found,) = findings(RULE, model("y = Gather(W, ids) z = f.turn(W, x)", more=turn), tmp_path)
    assert found.bytes == SIZE


def test_a_subgraphs_own_weight_cannot_be_made_overridable(tmp_path: Path) -> None:
    proto = model(FIRES["both in one branch"][0])
    weight = proto.graph.initializer.pop()
    node = next(node for node in proto.graph.node if node.op_type == "If")
    body = next(one.g for one in node.attribute if one.name == "then_branch")
    body.initializer.append(weight)
    (found,) = findings(RULE, proto, tmp_path)
    assert found.weights == ("If_1/then_branch/W",)
    assert found.graph == "If_1/then_branch"
    assert not {"overridable-weight", "product-by-rows", "separate-packed-weight"} & {
        *found.remedies
    }
    assert "gemm-transposed" in found.remedies


MEASURED = {"tied": PLAIN, "branches": BRANCHES, "both are packed": FIRES["both are packed"][0]}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("external", [False, True], ids=["embedded", "external"])
@pytest.mark.parametrize("version", ["1.24.4", "1.31.1"])
@pytest.mark.parametrize("case", MEASURED)
def test_what_is_predicted_is_measured(
    tmp_path: Path, case: str, version: str, external: bool, agrees: Agrees
) -> None:
    path = tmp_path / "model.onnx"
    proto = model(MEASURED[case], rows=2048, columns=1024)
    onnx.save(proto, path, save_as_external_data=external, location="data")
    (found,) = findings(RULE, path, tmp_path, runtime=version)
    after = match_attribution(found, xray(path, version))
    assert after.evidence == "measured"
    assert after.measured_bytes is not None
    agrees(found, after.measured_bytes, version)


@pytest.mark.slow
def test_the_sample(sample_model: Callable[..., Path], tmp_path: Path, agrees: Agrees) -> None:
    path = sample_model("tied_if", 16)
    (found,) = findings(RULE, path, tmp_path)
    after = match_attribution(found, xray(path))
    assert after.measured_bytes is not None
    agrees(found, after.measured_bytes)
