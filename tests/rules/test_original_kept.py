from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from memdiag.ort.prepacking import fp32_panels
from memdiag.records.finding import Finding
from tests.rules.examining import findings
from tests.rules.measuring import NEWEST, xray

RULE = "original-kept"
HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
ROWS, COLUMNS = 512, 1000
PACKED = fp32_panels(ROWS, COLUMNS)
INPUTS = f"float[n,{ROWS}] x, float[n,{COLUMNS}] u, int64[k] i"


def model(body: str, *, outputs: str = "y, z", inputs: str = INPUTS) -> onnx.ModelProto:
    """A graph of `body` with a weight ``w[512, 1000]``."""
    parsed = onnx.parser.parse_model(f"{HEAD} g ({inputs}) => ({outputs}) {{ {body} }}")
    return weighted(parsed, (ROWS, COLUMNS))


def weighted(parsed: onnx.ModelProto, shape: tuple[int, ...]) -> onnx.ModelProto:
    noise = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    parsed.graph.initializer.append(numpy_helper.from_array(noise, "w"))
    return parsed


def kinds(one: Finding) -> list[tuple[str, int, int]]:
    return [(each.kind, each.count, each.bytes) for each in one.expected]


TIED = "y = Gather(w, i) z = MatMul(x, w)"


def test_a_gather_keeps_the_original_of_a_product(tmp_path: Path) -> None:
    (one,) = findings(RULE, model(TIED), tmp_path)
    assert one.weights == ("w",)
    assert one.nodes == ("Gather_0", "MatMul_1")
    assert one.bytes == PACKED
    assert kinds(one) == [("packed", 1, PACKED)]
    assert one.message == (
        "w (2.0 MiB) stays next to its packed copy: MatMul_1 packs it, and Gather_0 reads it as "
        "it is"
    )
    assert one.remedies[0] == "overridable-weight"


def test_an_output_keeps_it_as_well(tmp_path: Path) -> None:
    proto = model("y = MatMul(x, w)", outputs=f"y, float[{ROWS},{COLUMNS}] w")
    (one,) = findings(RULE, proto, tmp_path)
    assert "it is an output" in one.message


def test_readers_in_branches_count(tmp_path: Path) -> None:
    text = (
        "y = If (c) <then_branch = t () => (float[k,1000] a) { a = Gather(w, i) },"
        " else_branch = e () => (float[n,1000] b) { b = MatMul(x, w) }>"
    )
    (one,) = findings(RULE, model(text, outputs="y", inputs=f"{INPUTS}, bool c"), tmp_path)
    assert one.nodes == ("If_0/then_branch/Gather_0", "If_0/else_branch/MatMul_0")


def test_a_function_is_looked_into(tmp_path: Path) -> None:
    text = (
        '<ir_version: 10, opset_import: ["" : 21, "f" : 1]>'
        f"g ({INPUTS}) => (y, z) {{ y = Gather(w, i) z = f.twice(x, w) }}"
        '<domain: "f", opset_import: ["" : 21]> twice (a, b) => (c) { c = MatMul(a, b) }'
    )
    (one,) = findings(RULE, weighted(onnx.parser.parse_model(text), (ROWS, COLUMNS)), tmp_path)
    assert one.bytes == PACKED


@pytest.mark.parametrize(
    "body",
    [
        "y = MatMul(x, w) z = Neg(u)",
        "y = MatMul(x, w) a = Neg(x) z = MatMul(a, w)",
        "y = Gather(w, i) z = Add(w, w)",
        "y = MatMul(x, w) v = Identity(w) a = Neg(x) z = MatMul(a, v)",
    ],
)
def test_one_form_is_enough(tmp_path: Path, body: str) -> None:
    assert not findings(RULE, model(body), tmp_path)


def test_one_that_may_be_given_is_not_packed(tmp_path: Path) -> None:
    inputs = f"{INPUTS}, float[{ROWS},{COLUMNS}] w"
    assert not findings(RULE, model(TIED, inputs=inputs), tmp_path)


def test_two_kernels_pack_it_twice(tmp_path: Path) -> None:
    proto = model("y = MatMul(x, w) z = Gemm <transB = 1> (u, w)")
    turned = fp32_panels(COLUMNS, ROWS)
    (one,) = findings(RULE, proto, tmp_path)
    assert one.bytes == PACKED + turned - ROWS * COLUMNS * 4
    assert kinds(one) == [("packed", 2, PACKED + turned)]
    assert "is packed 2 times, by MatMul_0, Gemm_1" in one.message


def test_a_filter_that_something_else_reads(tmp_path: Path) -> None:
    body = "{ y = Conv(x, w) z = Mul(w, s) }"
    text = f"{HEAD} g (float[n,64,8,8] x, float[64,1,1,1] s) => (y, z) {body}"
    (one,) = findings(RULE, weighted(onnx.parser.parse_model(text), (64, 64, 3, 3)), tmp_path)
    assert kinds(one) == [("reordered", 1, 64 * 64 * 9 * 4)]
    assert one.remedies == ("overridable-weight", "disable-nchwc")


SIDE = 512
PANELS = fp32_panels(SIDE, SIDE)
SAME = (
    "c = Gather(w0, i) d = Gather(w1, i) e = MatMul(x, w0) f = MatMul(x, w1) "
    "y = Concat<axis = 0>(c, d, e, f)"
)
DIFFERENT_FORMS = (
    "c = Gather(w0, i) d = Gather(w1, i) e = MatMul(x, w0) f = Gemm<transB = 1>(x, w1) "
    "y = Concat<axis = 0>(c, d, e, f)"
)
ONE_KEPT = "c = Gather(w0, i) e = MatMul(x, w0) f = MatMul(x, w1) y = Concat<axis = 0>(c, e, f)"
TWO_WAYS = (
    "c = MatMul(x, w0) d = Gemm<transB = 1>(x, w0) e = MatMul(x, w1) f = Gemm<transB = 1>(x, w1) "
    "y = Concat<axis = 0>(c, d, e, f)"
)


@pytest.mark.parametrize(
    ("body", "seeds", "claims"),
    [
        (SAME, (1, 1), [(("w0", "w1"), PANELS)]),
        (SAME, (1, 2), [(("w0",), PANELS), (("w1",), PANELS)]),
        (DIFFERENT_FORMS, (1, 1), [(("w0", "w1"), 2 * PANELS)]),
        (ONE_KEPT, (1, 1), [(("w0",), PANELS)]),
        # Two originals take as much as the two packed copies that they share.
        (TWO_WAYS, (1, 1), []),
        (TWO_WAYS, (1, 2), [(("w0",), PANELS), (("w1",), PANELS)]),
    ],
)
def test_a_packed_copy_that_two_weights_share_is_claimed_once(
    tmp_path: Path,
    body: str,
    seeds: tuple[int, int],
    claims: list[tuple[tuple[str, ...], int]],
) -> None:
    text = f"{HEAD} g (float[n,{SIDE}] x, int64[k] i) => (y) {{ {body} }}"
    proto = onnx.parser.parse_model(text)
    for name, seed in zip(("w0", "w1"), seeds, strict=True):
        noise = np.random.default_rng(seed).standard_normal((SIDE, SIDE)).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(noise, name))
    found = findings(RULE, proto, tmp_path)
    assert [(one.weights, one.bytes) for one in found] == claims
    assert [sum(each.bytes for each in one.expected) for one in found] == [
        nbytes if body != TWO_WAYS else 2 * PANELS for _, nbytes in claims
    ]


def test_two_equal_weights_are_named_together(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(f"{HEAD} g (float[n,{SIDE}] x, int64[k] i) => (y) {{ {SAME} }}")
    noise = np.random.default_rng(1).standard_normal((SIDE, SIDE)).astype(np.float32)
    proto.graph.initializer.extend(numpy_helper.from_array(noise, name) for name in ("w0", "w1"))
    (one,) = findings(RULE, proto, tmp_path)
    assert one.message == (
        "w0 and w1 (1.0 MiB each, with the same content) stay next to their packed copy: MatMul_2, "
        "MatMul_3 pack them, and Gather_0, Gather_1 read them as they are"
    )
    assert one.detail == (
        "2.0 MiB as the model has them and 1.0 MiB packed are resident; without packing only the "
        "first are."
    )


def test_small_weights_are_left_alone(tmp_path: Path) -> None:
    text = f"{HEAD} g (float[n,64] x, int64[k] i) => (y, z) {{ {TIED} }}"
    assert not findings(RULE, weighted(onnx.parser.parse_model(text), (64, 64)), tmp_path)


def test_thousands_of_readers_are_named_briefly(tmp_path: Path) -> None:
    info = helper.make_tensor_value_info
    nodes = [helper.make_node("MatMul", ["x", "w"], [f"y{n}"]) for n in range(500)]
    nodes += [helper.make_node("Gather", ["w", "i"], ["z"])]
    outputs = [info(node.output[0], 1, None) for node in nodes]
    graph = helper.make_graph(nodes, "g", [info("x", 1, ["n", ROWS]), info("i", 7, ["k"])], outputs)
    opset = [helper.make_opsetid("", 21)]
    proto = weighted(helper.make_model(graph, opset_imports=opset, ir_version=10), (ROWS, COLUMNS))
    (one,) = findings(RULE, proto, tmp_path)
    assert "and 497 more pack it" in one.message
    assert len(one.nodes) == 501


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
    (one,) = findings(RULE, path, tmp_path, runtime=version)
    copies = [copy for copy in xray(path, version, run=False).copies if copy.in_use is not False]
    packed = [copy.bytes for copy in copies if copy.kind == "packed"]
    assert (len(packed), sum(packed)) == (one.expected[0].count, one.expected[0].bytes)
    originals = [copy for copy in copies if copy.kind == "original"]
    assert len(originals) == (body == TIED)
