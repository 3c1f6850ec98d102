"""Equal weights in one model, by the rules that share them out among each other."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto

from tests.model_text import random, text_model
from tests.rules.equal_weight_models import EqualWeights, examined

OLD, NEW = "1.24.4", "1.31.1"
EQUAL = EqualWeights(256, 384)
SIZE, VALUES = EQUAL.nbytes, EQUAL.values
TURNED = np.ascontiguousarray(VALUES.T)
READ = EQUAL.model("y = Add(z, a) q = Mul(z, b)", "a b")
PACKED = EQUAL.model("y = MatMul(x, a) q = MatMul(x, b)", "a b")
PACKED_AND_READ = EQUAL.model("y = Gather(a, ids) q = MatMul(x, b)", "a b")
FOLDED = EQUAL.model("s = Transpose(a) t = Transpose(b) y = Add(x, s) q = Mul(x, t)", "a b")
FIVE_PACKED = EQUAL.model(
    "a = MatMul(x, w0) b = MatMul(x, w1) d = MatMul(x, w2) y = MatMul(x, w3) q = MatMul(x, w4)",
    "w0 w1 w2 w3 w4",
)


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("external", [False, True])
def test_equal_weights_that_are_read_stay_once_each(
    tmp_path: Path, version: str, external: bool
) -> None:
    finding = examined(READ, tmp_path, version, external=external)["MD101"]
    assert (finding.weights, finding.nodes) == (("a", "b"), ("Add_0", "Mul_1"))
    assert finding.bytes == SIZE
    (copies,) = finding.expected
    assert (copies.kind, copies.count, copies.bytes) == ("original", 2, 2 * SIZE)


@pytest.mark.parametrize(("version", "external"), [(OLD, False), (NEW, False), (NEW, True)])
def test_equal_weights_that_are_packed_cost_the_file_alone(
    tmp_path: Path, version: str, external: bool
) -> None:
    finding = examined(PACKED, tmp_path, version, external=external)["MD101"]
    assert (finding.bytes, finding.expected) == (0, ())
    assert "the file is 384 KiB larger than necessary" in finding.detail


@pytest.mark.parametrize(
    ("model", "nbytes", "peak_bytes", "copies"),
    [
        (FIVE_PACKED, 0, 3 * SIZE, []),  # all but what packing needs
        (PACKED_AND_READ, 0, SIZE, []),  # one original is needed anyway
        (FOLDED, SIZE, None, [("transposed", 2)]),
    ],
    ids=["five packed", "packed and read", "folded"],
)
def test_what_equal_weights_cost(
    tmp_path: Path, model: ModelProto, nbytes: int, peak_bytes: int | None, copies: list[Any]
) -> None:
    finding = examined(model, tmp_path)["MD101"]
    assert finding.bytes == nbytes
    assert peak_bytes in (None, finding.peak_bytes)
    assert [(one.kind, one.count) for one in finding.expected] == copies


def test_the_first_of_many_are_named(tmp_path: Path) -> None:
    assert "w0, w1, w2 and 2 more" in examined(FIVE_PACKED, tmp_path)["MD101"].message


def mapped_twice(folder: Path) -> ModelProto:
    """Return a model two of whose weights are one range of a file."""
    (folder / "shared").write_bytes(VALUES.tobytes())
    model = EQUAL.model("y = Add(z, a) q = Mul(z, b)")
    for name in "ab":
        weight = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=VALUES.shape)
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value="shared")
        model.graph.initializer.append(weight)
    return model


def many_small(pairs: int) -> ModelProto:
    """Return a model with `pairs` of equal weights of 1.2 KB."""
    names = [f"{letter}{row}" for row in range(pairs) for letter in "ab"]
    declared = ", ".join(f"float[300] {name}" for name in names)
    nodes = " ".join(f"y_{name} = Relu({name})" for name in names)
    weights = {name: random((300,), int(name[1:])) for name in names}
    return text_model(f"g () => (float[300] y_a0) <{declared}> {{ {nodes} }}", 9, **weights)


def test_small_weights_count_together(tmp_path: Path) -> None:
    finding = examined(many_small(100), tmp_path)["MD101"]
    assert finding.message.startswith("100 small weights repeat the content of 100 others, 117 KiB")


CHANGED = TURNED.copy()
CHANGED[-1, 7] += 1
CUT = np.ascontiguousarray(VALUES[:100, :100])
NEAR_MISSES = {
    "one weight, used twice": EQUAL.model("y = Add(z, a) q = Mul(z, a)", "a"),
    "another shape or type": EQUAL.model(
        "y = Add(z, a) q = Add(x, b) r = Gather(n, ids)",
        "a",
        b=VALUES.reshape(-1, 256),
        n=VALUES.view(np.int32),
    ),
    "few small ones": many_small(20),
    "a weight of the main graph in a branch": EQUAL.choice("k = MatMul(x, w)", weights="w"),
    "a small one of a branch": EQUAL.choice("k = Mul(x, w)", owned=("w", ""), w=VALUES[0, :128]),
    "reshaped": EQUAL.model("y = Gather(e, ids) q = MatMul(x, w)", "w", e=VALUES.reshape(384, 256)),
    "transposed and changed": EQUAL.model("y = Gather(e, ids) q = MatMul(x, w)", "w", e=CHANGED),
    "a small transpose": EQUAL.model(
        "y = Gather(e, ids) q = MatMul(x, w)", w=CUT, e=np.ascontiguousarray(CUT.T)
    ),
}


@pytest.mark.parametrize("case", NEAR_MISSES)
def test_near_misses(tmp_path: Path, case: str) -> None:
    assert examined(NEAR_MISSES[case], tmp_path) == {}


def test_one_range_of_a_file_that_is_only_mapped_costs_nothing(tmp_path: Path) -> None:
    assert examined(mapped_twice(tmp_path), tmp_path) == {}


def in_branch(operator: str, source: str, *, constant: bool = False) -> ModelProto:
    """Return an If one of whose branches has a weight, perhaps of a Constant."""
    if not constant:
        return EQUAL.choice(f"k = {operator}({source}, w)", owned=("w", ""))
    model = EQUAL.choice(f"w = Constant() k = {operator}({source}, w)")
    value = model.graph.node[0].attribute[0].g.node[0].attribute.add(name="value", type=4)
    value.t.CopyFrom(READ.graph.initializer[0])
    return model


@pytest.mark.parametrize("constant", [False, True], ids=["initializer", "constant"])
@pytest.mark.parametrize(
    ("operator", "source", "version", "stale", "alive"),
    [
        ("MatMul", "x", "1.24.4", 1, 0),
        ("MatMul", "x", "1.28.0", 1, 0),
        ("MatMul", "x", "1.29.0", 2, 0),
        ("MatMul", "x", "1.31.1", 2, 0),
        ("Add", "z", "1.24.4", 1, 1),
        ("Add", "z", "1.31.1", 1, 1),
    ],
)
def test_a_weight_of_a_subgraph_stays_stale_and_since_1_29_unfreed(
    tmp_path: Path, operator: str, source: str, version: str, stale: int, alive: int, constant: bool
) -> None:
    model = in_branch(operator, source, constant=constant)
    finding = examined(model, tmp_path, version)["MD104"]
    assert (finding.weights, finding.nodes) == (("If_0/then_branch/w",), ("If_0",))
    assert finding.graph == "If_0/then_branch"
    assert finding.bytes == stale * SIZE
    assert finding.expected[0].bytes == (stale + alive) * SIZE


def test_an_external_weight_of_a_subgraph_costs_only_since_1_29(tmp_path: Path) -> None:
    model = in_branch("MatMul", "x")
    assert examined(model, tmp_path, OLD, external=True) == {}
    finding = examined(model, tmp_path, NEW, external=True)["MD104"]
    assert (finding.bytes, finding.peak_bytes) == (SIZE, 0)


def nested() -> ModelProto:
    """Return an If in an If, whose branch has a weight."""
    inner = "then_branch = d () => (float[r, s] m) { m = Add(z, w) }"
    inner += ", else_branch = e () => (float[r, s] n) { n = Relu(x) }"
    model = EQUAL.choice(f"k = If(c) <{inner}>")
    body = model.graph.node[0].attribute[0].g.node[0].attribute[0].g
    body.initializer.append(in_branch("Add", "z").graph.node[0].attribute[0].g.initializer[0])
    return model


def test_each_node_around_a_weight_leaves_a_stale_copy(tmp_path: Path) -> None:
    finding = examined(nested(), tmp_path)["MD104"]
    assert (finding.nodes, finding.bytes) == (("If_0",), 2 * SIZE)


def test_a_weight_in_a_loop_body_is_found(tmp_path: Path) -> None:
    model = text_model(
        """g (float[256, 384] z, bool c) => (float[256, 384] y) {
            trips = Constant <value = int64 {2}> ()
            y = Loop (trips, , z) <body = b (int64 i, bool keep, float[256, 384] s)
                => (bool going, float[256, 384] next) <float[256, 384] w> {
                next = Add(s, w) going = Identity(keep) }> }""",
        9,
    )
    assert examined(model, tmp_path)["MD104"].weights == ("Loop_1/body/w",)


def in_both(operator: str, source: str, **others: Any) -> ModelProto:
    then, other = f"k = {operator}({source}, u)", f"o = {operator}({source}, w)"
    return EQUAL.choice(then, other, owned=("u", "w"), **others)


@pytest.mark.parametrize(
    ("operator", "source", "version", "originals", "needed"),
    [
        ("MatMul", "x", OLD, 2, 0),
        ("MatMul", "x", NEW, 4, 0),
        ("Add", "z", OLD, 4, 1),
        ("Add", "z", NEW, 4, 1),
    ],
)
def test_equal_weights_of_branches_are_one_rule_s_alone(
    tmp_path: Path, operator: str, source: str, version: str, originals: int, needed: int
) -> None:
    findings = examined(in_both(operator, source), tmp_path, version)
    assert list(findings) == ["MD105"]
    finding = findings["MD105"]
    assert {*finding.weights} == {"If_0/then_branch/u", "If_0/else_branch/w"}
    assert finding.bytes == (originals - needed) * SIZE
    assert (finding.expected[0].count, finding.expected[0].bytes) == (originals, originals * SIZE)


@pytest.mark.parametrize(("version", "copies"), [(OLD, 0), (NEW, 2)])
def test_external_weights_of_branches_cost_by_version(
    tmp_path: Path, version: str, copies: int
) -> None:
    findings = examined(in_both("MatMul", "x"), tmp_path, version, external=True)
    assert findings["MD105"].bytes == copies * SIZE


def test_other_weights_of_branches_are_none_of_the_same(tmp_path: Path) -> None:
    findings = examined(in_both("MatMul", "x", w=VALUES + 1), tmp_path)
    assert {rule: one.bytes for rule, one in findings.items()} == {"MD104": 4 * SIZE}


def test_a_weight_with_a_namesake_in_a_later_branch_is_kept(tmp_path: Path) -> None:
    model = EQUAL.choice("k = MatMul(x, w)", "o = MatMul(x, w)", owned=("w", "w"))
    model.graph.node[0].attribute[1].g.initializer[0].raw_data = (VALUES + 1).tobytes()
    versions = ("1.24.4", "1.28.0", "1.31.1")
    sizes = [examined(model, tmp_path, version)["MD104"].bytes // SIZE for version in versions]
    assert sizes == [3, 3, 4]


def test_a_weight_that_the_main_graph_has_too_is_shared_out_without_overlap(
    tmp_path: Path,
) -> None:
    model = EQUAL.choice(
        "k = Add(z, w)", "o = Relu(x)", "q = Mul(z, m)", owned=("w", ""), weights="m"
    )
    findings = examined(model, tmp_path)
    assert {rule: one.bytes for rule, one in findings.items()} == {"MD101": SIZE, "MD104": SIZE}
    assert {finding.expected[0].count for finding in findings.values()} == {3}


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("external", [False, True])
def test_a_stored_transpose_costs_what_it_keeps(
    tmp_path: Path, version: str, external: bool
) -> None:
    model = EQUAL.model("y = Gather(e, ids) q = MatMul(x, w)", e=TURNED, w=VALUES)
    findings = examined(model, tmp_path, version, external=external)
    assert list(findings) == ["MD102"]
    finding = findings["MD102"]
    assert (finding.weights, finding.nodes) == (("e", "w"), ("Gather_0", "MatMul_1"))
    assert finding.bytes == SIZE
