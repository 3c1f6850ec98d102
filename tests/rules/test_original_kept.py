from pathlib import Path

import onnx
import pytest

from memdiag.ort.prepacking import fp32_panels
from tests.model_text import random, with_weights
from tests.rules.examining import findings, found
from tests.rules.measuring import NEWEST, xray

RULE = "original-kept"
ROWS, COLUMNS = 512, 1000
PACKED, TURNED = fp32_panels(ROWS, COLUMNS), fp32_panels(COLUMNS, ROWS)
INPUTS = f"float[n,{ROWS}] x, float[n,{COLUMNS}] u, int64[k] i"
TIED = "y = Gather(w, i) z = MatMul(x, w)"
BRANCHES = (
    "y = If (c) <then_branch = t () => (float[k,1000] a) { a = Gather(w, i) },"
    " else_branch = e () => (float[n,1000] b) { b = MatMul(x, w) }>"
)
FUNCTION = '<domain: "local", opset_import: ["" : 21]> twice (a, b) => (c) { c = MatMul(a, b) }'


def model(
    body: str,
    *,
    outputs: str = "y, z",
    inputs: str = INPUTS,
    shape: tuple[int, ...] = (ROWS, COLUMNS),
    functions: str = "",
) -> onnx.ModelProto:
    """A graph of `body` with a weight ``w[512, 1000]``."""
    text = f"g ({inputs}) => ({outputs}) {{ {body} }}{functions}"
    return with_weights(text, 10, 21, w=random(shape))


def test_a_gather_keeps_the_original_of_a_product(tmp_path: Path) -> None:
    nodes = ("Gather_0", "MatMul_1")
    copies = [("packed", 1, PACKED)]
    finding = found(
        RULE, model(TIED), tmp_path, weights=("w",), nodes=nodes, bytes=PACKED, copies=copies
    )
    assert finding.remedies[0] == "overridable-weight"


def test_an_output_keeps_it_as_well(tmp_path: Path) -> None:
    proto = model("y = MatMul(x, w)", outputs=f"y, float[{ROWS},{COLUMNS}] w")
    assert "it is an output" in found(RULE, proto, tmp_path).message


def test_readers_in_branches_count(tmp_path: Path) -> None:
    proto = model(BRANCHES, outputs="y", inputs=f"{INPUTS}, bool c")
    nodes = ("If_0/then_branch/Gather_0", "If_0/else_branch/MatMul_0")
    found(RULE, proto, tmp_path, nodes=nodes)


def test_a_function_is_looked_into(tmp_path: Path) -> None:
    proto = model("y = Gather(w, i) z = local.twice(x, w)", functions=FUNCTION)
    found(RULE, proto, tmp_path, bytes=PACKED)


@pytest.mark.parametrize(
    "proto",
    [
        model("y = MatMul(x, w) z = Neg(u)"),
        model("y = MatMul(x, w) a = Neg(x) z = MatMul(a, w)"),
        model("y = Gather(w, i) z = Add(w, w)"),
        model("y = MatMul(x, w) v = Identity(w) a = Neg(x) z = MatMul(a, v)"),
        model(TIED, inputs=f"{INPUTS}, float[{ROWS},{COLUMNS}] w"),
        model(TIED, inputs="float[n,64] x, int64[k] i", shape=(64, 64)),
    ],
    ids=["packed", "packed once", "read", "Identity", "overridable", "small"],
)
def test_near_misses(tmp_path: Path, proto: onnx.ModelProto) -> None:
    assert not findings(RULE, proto, tmp_path)


def test_two_kernels_pack_it_twice(tmp_path: Path) -> None:
    proto = model("y = MatMul(x, w) z = Gemm <transB = 1> (u, w)")
    copies = [("packed", 2, PACKED + TURNED)]
    nbytes = PACKED + TURNED - ROWS * COLUMNS * 4
    finding = found(RULE, proto, tmp_path, bytes=nbytes, copies=copies)
    assert "is packed 2 times, by MatMul_0, Gemm_1" in finding.message


def test_a_filter_that_something_else_reads(tmp_path: Path) -> None:
    inputs = "float[n,64,8,8] x, float[64,1,1,1] s"
    proto = model("y = Conv(x, w) z = Mul(w, s)", inputs=inputs, shape=(64, 64, 3, 3))
    copies = [("reordered", 1, 64 * 64 * 9 * 4)]
    found(RULE, proto, tmp_path, copies=copies, remedies=("overridable-weight", "disable-nchwc"))


SIDE = 512
PANELS = fp32_panels(SIDE, SIDE)
SAME = (
    "c = Gather(w0, i) d = Gather(w1, i) e = MatMul(x, w0) f = MatMul(x, w1) "
    "y = Concat<axis = 0>(c, d, e, f)"
)
DIFFERENT_FORMS = SAME.replace("f = MatMul(x, w1)", "f = Gemm<transB = 1>(x, w1)")
ONE_KEPT = "c = Gather(w0, i) e = MatMul(x, w0) f = MatMul(x, w1) y = Concat<axis = 0>(c, e, f)"
TWO_WAYS = (
    "c = MatMul(x, w0) d = Gemm<transB = 1>(x, w0) e = MatMul(x, w1) f = Gemm<transB = 1>(x, w1) "
    "y = Concat<axis = 0>(c, d, e, f)"
)


def two(body: str, seed: int = 0) -> onnx.ModelProto:
    """Return a model of two weights, which are equal if `seed` is 0."""
    weights = {"w0": random((SIDE, SIDE)), "w1": random((SIDE, SIDE), seed)}
    return with_weights(f"g (float[n,{SIDE}] x, int64[k] i) => (y) {{ {body} }}", **weights)


@pytest.mark.parametrize(
    ("body", "seed", "claims"),
    [
        (SAME, 0, [(("w0", "w1"), PANELS)]),
        (SAME, 1, [(("w0",), PANELS), (("w1",), PANELS)]),
        (DIFFERENT_FORMS, 0, [(("w0", "w1"), 2 * PANELS)]),
        (ONE_KEPT, 0, [(("w0",), PANELS)]),
        # Two originals take as much as the two packed copies that they share.
        (TWO_WAYS, 0, []),
        (TWO_WAYS, 1, [(("w0",), PANELS), (("w1",), PANELS)]),
    ],
)
def test_a_packed_copy_that_two_weights_share_is_claimed_once(
    tmp_path: Path, body: str, seed: int, claims: list[tuple[tuple[str, ...], int]]
) -> None:
    reported = findings(RULE, two(body, seed), tmp_path)
    assert [(one.weights, one.bytes) for one in reported] == claims
    expected = [nbytes if body != TWO_WAYS else 2 * PANELS for _, nbytes in claims]
    assert [sum(each.bytes for each in one.expected) for one in reported] == expected


def test_thousands_of_readers_are_named_briefly(tmp_path: Path) -> None:
    products = " ".join(f"y{n} = MatMul(x, w)" for n in range(500))
    outputs = ", ".join(["z", *(f"y{n}" for n in range(500))])
    finding = found(RULE, model(f"{products} z = Gather(w, i)", outputs=outputs), tmp_path)
    assert "and 497 more pack it" in finding.message
    assert len(finding.nodes) == 501


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("version", ["1.24.4", NEWEST])
@pytest.mark.parametrize(
    "body", [TIED, "y = MatMul(x, w) z = Gemm <transB = 1> (u, w)"], ids=["tied", "two ways"]
)
def test_the_copies_are_those_predicted(
    tmp_path: Path, version: str, external: bool, body: str
) -> None:
    path = tmp_path / "tied.onnx"
    onnx.save(model(body), path, save_as_external_data=external, size_threshold=0)
    finding = found(RULE, path, tmp_path, runtime=version)
    copies = [copy for copy in xray(path, version, run=False).copies if copy.in_use is not False]
    packed = [copy.bytes for copy in copies if copy.kind == "packed"]
    assert (len(packed), sum(packed)) == (finding.expected[0].count, finding.expected[0].bytes)
    originals = [copy for copy in copies if copy.kind == "original"]
    assert len(originals) == (body == TIED)
