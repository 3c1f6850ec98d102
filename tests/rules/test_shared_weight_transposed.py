from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.model_text import random, tensor, with_weights
from tests.rules.examining import external, findings, found

RULE = "shared-weight-transposed"
OLD, NEW = "1.24.4", "1.31.1"
ROWS, COLUMNS = 512, 256
SIZE = ROWS * COLUMNS * 4
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
PRODUCTS = {*REMEDIES[1:2], *REMEDIES[3:6]}


def model(
    body: str,
    *,
    inputs: str = "",
    rows: int = ROWS,
    columns: int = COLUMNS,
    dtype: Any = np.float32,
    functions: str = "",
    **others: Any,
) -> onnx.ModelProto:
    """Return a model with the weight `W`, and with inputs c, ids, x [n, columns], v [n, rows]."""
    text = (
        f"g (bool c, int64 n0, int64[n] ids, float[n,{columns}] x, float[n,{rows}] v{inputs})"
        f" => (float[p,q] y, float[r,s] z) {{ {body} }}{functions}"
    )
    return with_weights(text, 10, 17, W=random((rows, columns), 0, dtype), **others)


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


def two(seed: int) -> onnx.ModelProto:
    """Return a model with two weights, which are equal if `seed` is 0."""
    return model(TWO, V=random((ROWS, COLUMNS), seed))


@pytest.mark.parametrize(
    ("seed", "claims"),
    [(0, [(("W", "V"), SIZE)]), (1, [(("W",), SIZE), (("V",), SIZE)])],
)
def test_a_packed_copy_that_two_weights_share_is_claimed_once(
    tmp_path: Path, seed: int, claims: list[tuple[tuple[str, ...], int]]
) -> None:
    reported = findings(RULE, two(seed), tmp_path)
    assert [(one.weights, one.bytes) for one in reported] == claims
    assert [sum(each.bytes for each in one.expected) for one in reported] == [SIZE] * len(claims)


def test_one_graph(tmp_path: Path) -> None:
    found(
        RULE,
        model(PLAIN),
        tmp_path,
        rule="MD103",
        weights=("W",),
        nodes=("Gather_0", "Transpose_1", "MatMul_2"),
        graph="",
        phase="constant_fold",
        remedies=REMEDIES,
        bytes=SIZE,
        peak_bytes=SIZE,
        copies=[("packed", 1, SIZE)],
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
    expected = [(kind, count, count * SIZE) for kind, count in copies]
    found(RULE, model(BRANCHES), tmp_path, runtime=version, bytes=steady * SIZE, copies=expected)


@pytest.mark.parametrize("version", [OLD, NEW])
def test_the_peak_by_version(tmp_path: Path, version: str) -> None:
    proto = model(PLAIN)
    found(RULE, proto, tmp_path, runtime=version, peak_bytes=SIZE)
    found(RULE, external(proto, tmp_path), tmp_path, runtime=version, peak_bytes=SIZE)


FIRES: dict[str, tuple[str, int]] = {
    # A body, and how many times the weight it keeps beyond one.
    "both are packed": ("y = MatMul(v, W) t = Transpose(W) z = MatMul(x, t)", 1),
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
    found(RULE, model(body), tmp_path, bytes=steady * SIZE)


NEAR_MISSES = {
    "only transposed": model("y = Neg(x) t = Transpose(W) z = MatMul(x, t)"),
    "only as it is": model("y = Gather(W, ids) z = MatMul(v, W)"),
    "an activation is transposed": model("g = Gather(W, ids) y = Transpose(g) z = MatMul(v, W)"),
    "Gemm alone": model("y = Gather(W, ids) t = Transpose(W) z = Gemm(x, t)"),
    "only axes of size 1 move": model(
        "y = Gather(W, ids) k = Constant<value_ints=[0]>() u = Unsqueeze(W, k) "
        "t = Transpose<perm=[1,0,2]>(u) s = Gather(t, ids) m = Constant<value_ints=[1]>() "
        "z = Squeeze(s, m)"
    ),
    "something else is done to it": model(
        "y = Gather(W, ids) a = Neg(W) t = Transpose(a) z = MatMul(x, t)"
    ),
    "overridable": model(PLAIN, inputs=f", float[{ROWS},{COLUMNS}] W"),
    "small": model(PLAIN, rows=63),
}


@pytest.mark.parametrize("case", NEAR_MISSES)
@pytest.mark.parametrize("version", [OLD, NEW])
def test_near_misses(tmp_path: Path, case: str, version: str) -> None:
    assert findings(RULE, NEAR_MISSES[case], tmp_path, runtime=version) == []


def test_64_rows_are_enough(tmp_path: Path) -> None:
    assert findings(RULE, model(PLAIN, rows=64), tmp_path)


def test_a_cast_on_the_way(tmp_path: Path) -> None:
    body = (
        "g = Gather(W, ids) y = Cast<to=1>(g) w = Cast<to=1>(W) t = Transpose(w) z = MatMul(x, t)"
    )
    # 256 KiB of halves stay, and 512 KiB of packed floats.
    found(RULE, model(body, dtype=np.float16), tmp_path, bytes=SIZE, peak_bytes=2.5 * SIZE)


def test_axes_of_rank_three(tmp_path: Path) -> None:
    body = (
        "y = Gather(W, ids) k = Constant<value_ints=[0]>() u = Unsqueeze(W, k) "
        "t = Transpose<perm=[0,2,1]>(u) m = MatMul(x, t) z = Squeeze(m, k)"
    )
    finding = found(RULE, model(body), tmp_path, bytes=SIZE, copies=[("transposed", 1, SIZE)])
    assert not PRODUCTS & {*finding.remedies}


def test_transposed_in_a_function(tmp_path: Path) -> None:
    turn = (
        '<domain: "local", opset_import: ["":17]> turn (w, a) => (o) '
        "{ t = Transpose(w) o = MatMul(a, t) }"
    )
    body = "y = Gather(W, ids) z = local.turn(W, x)"
    found(RULE, model(body, functions=turn), tmp_path, bytes=SIZE)


def test_a_subgraphs_own_weight_cannot_be_made_overridable(tmp_path: Path) -> None:
    proto = model(FIRES["both in one branch"][0])
    body = proto.graph.node[1].attribute[0].g
    body.initializer.append(tensor(random((ROWS, COLUMNS)), "W"))
    del proto.graph.initializer[:]
    branch = "If_1/then_branch"
    finding = found(RULE, proto, tmp_path, weights=(f"{branch}/W",), graph=branch)
    remedies = {*finding.remedies}
    assert not {"overridable-weight", "product-by-rows", "separate-packed-weight"} & remedies
    assert "gemm-transposed" in remedies
