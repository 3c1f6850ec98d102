"""Equal weights in one model, by the rules that share them out among each other."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from memdiag.model.model_file import open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.runtime import Runtime
from memdiag.records.finding import Finding
from memdiag.rules.catalog import (
    identical_weights,
    stored_transpose,
    subgraph_weights,
    weight_in_branches,
)

ROWS, COLUMNS = 256, 384
SIZE = ROWS * COLUMNS * 4
VALUES = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
RULES = (identical_weights, stored_transpose, subgraph_weights, weight_in_branches)
VERSIONS = ("1.24.4", "1.31.1")


def tensor(name: str, values: NDArray[Any] = VALUES) -> TensorProto:
    return numpy_helper.from_array(values, name)


def node(operator: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(operator, inputs.split(), [output], name=f"{output}/op", **attributes)


def model(nodes: list[NodeProto], weights: list[TensorProto], outputs: str = "y") -> ModelProto:
    inputs: dict[str, tuple[int, list[str | int | None]]] = {
        "x": (TensorProto.FLOAT, ["n", ROWS]),
        "z": (TensorProto.FLOAT, [ROWS, COLUMNS]),
        "v": (TensorProto.FLOAT, ["n", COLUMNS]),
        "i": (TensorProto.INT64, ["n"]),
        "c": (TensorProto.BOOL, []),
    }
    used = {name for each in nodes for name in each.input} | {"x", "z", "c"}
    graph = helper.make_graph(
        nodes,
        "main",
        [
            helper.make_tensor_value_info(name, kind, shape)
            for name, (kind, shape) in inputs.items()
            if name in used
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs.split()],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def branch(name: str, nodes: list[NodeProto], weights: list[TensorProto]) -> GraphProto:
    output = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    return helper.make_graph(nodes, name, [], [output], weights)


def choice(then: GraphProto, other: GraphProto, output: str = "y") -> NodeProto:
    return helper.make_node(
        "If", ["c"], [output], name=f"{output}/If", then_branch=then, else_branch=other
    )


def plain(name: str = "plain") -> GraphProto:
    return branch(name, [node("Relu", "x", f"{name}_out")], [])


def found(
    proto: ModelProto, folder: Path, version: str = "1.31.1", *, external: bool = False
) -> dict[str, Finding]:
    """Return the findings of the four rules, by code; each finds one thing at most here."""
    path = folder / "model.onnx"
    copy = ModelProto.FromString(proto.SerializeToString())  # saving external data changes it
    onnx.save(copy, path, save_as_external_data=external, location="data", size_threshold=1024)
    with open_model(path) as opened:
        ctx = AnalysisContext(opened, Runtime.parse(version))
        findings = [finding for rule in RULES for finding in rule.detect(ctx)]
        assert len(findings) == len({finding.rule for finding in findings})
        return {finding.rule: finding for finding in findings}


TWO_PACKED = model(
    [node("MatMul", "x a", "p"), node("MatMul", "x b", "q")], [tensor("a"), tensor("b")], "p q"
)
TWO_READ = model(
    [node("Add", "z a", "p"), node("Mul", "z b", "q")], [tensor("a"), tensor("b")], "p q"
)
TWO_FOLDED = model(
    [
        node("Transpose", "a", "at", perm=[1, 0]),
        node("Transpose", "b", "bt", perm=[1, 0]),
        node("Add", "x at", "p"),
        node("Mul", "x bt", "q"),
    ],
    [tensor("a"), tensor("b")],
    "p q",
)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("external", [False, True])
def test_equal_weights_that_are_read_stay_once_each(
    tmp_path: Path, version: str, external: bool
) -> None:
    finding = found(TWO_READ, tmp_path, version, external=external)["MD101"]
    assert finding.weights == ("a", "b")
    assert finding.nodes == ("p/op", "q/op")
    assert finding.bytes == SIZE
    (expected,) = finding.expected
    assert (expected.kind, expected.count, expected.bytes) == ("original", 2, 2 * SIZE)


@pytest.mark.parametrize(
    ("version", "external"), [("1.24.4", False), ("1.31.1", False), ("1.31.1", True)]
)
def test_equal_weights_that_are_packed_cost_the_file_alone(
    tmp_path: Path, version: str, external: bool
) -> None:
    finding = found(TWO_PACKED, tmp_path, version, external=external)["MD101"]
    assert finding.bytes == 0
    assert finding.expected == ()
    assert "the file is 384 KiB larger than necessary" in finding.detail


def test_of_many_equal_packed_weights_the_peak_would_lose_all_but_what_packing_needs(
    tmp_path: Path,
) -> None:
    names = [f"w{index}" for index in range(5)]
    nodes = [node("MatMul", f"x {name}", f"{name}_y") for name in names]
    proto = model(nodes, [tensor(name) for name in names], " ".join(f"{n}_y" for n in names))
    finding = found(proto, tmp_path)["MD101"]
    assert (finding.bytes, finding.peak_bytes) == (0, 3 * SIZE)
    assert "w0, w1 and w2 and 2 more" not in finding.message
    assert "w0, w1, w2 and 2 more" in finding.message


def test_one_original_that_is_needed_anyway_saves_nothing(tmp_path: Path) -> None:
    proto = model(
        [node("Gather", "a i", "p"), node("MatMul", "x b", "q")], [tensor("a"), tensor("b")], "p q"
    )
    finding = found(proto, tmp_path)["MD101"]
    assert (finding.bytes, finding.peak_bytes) == (0, SIZE)


def test_copies_folded_of_equal_weights_are_counted(tmp_path: Path) -> None:
    finding = found(TWO_FOLDED, tmp_path)["MD101"]
    assert finding.bytes == SIZE
    assert [(one.kind, one.count) for one in finding.expected] == [("transposed", 2)]


def test_a_weight_used_twice_is_no_finding(tmp_path: Path) -> None:
    proto = model([node("Add", "z a", "p"), node("Mul", "z a", "q")], [tensor("a")], "p q")
    assert found(proto, tmp_path) == {}


def test_another_shape_or_type_of_the_same_bytes_cannot_be_shared(tmp_path: Path) -> None:
    proto = model(
        [
            node("Add", "z a", "p"),
            node("Add", "x b", "q"),
            node("Gather", "n i", "r"),
        ],
        [tensor("a"), tensor("b", VALUES.reshape(-1, ROWS)), tensor("n", VALUES.view(np.int32))],
        "p q",
    )
    assert found(proto, tmp_path) == {}


def test_one_range_of_a_file_that_is_only_mapped_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "shared").write_bytes(VALUES.tobytes())
    weights = []
    for name in ("a", "b"):
        weight = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=VALUES.shape)
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value="shared")
        weights.append(weight)
    proto = model([node("Add", "z a", "p"), node("Mul", "z b", "q")], weights, "p q")
    assert found(proto, tmp_path) == {}


def test_small_weights_count_together(tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((100, 300)).astype(np.float32)
    pairs = [(f"a{row}", f"b{row}") for row in range(100)]
    weights = [tensor(name, values[row]) for row, pair in enumerate(pairs) for name in pair]
    nodes = [node("Relu", weight.name, f"{weight.name}_y") for weight in weights]
    finding = found(model(nodes, weights, "a0_y"), tmp_path)["MD101"]
    assert finding.message.startswith("100 small weights repeat the content of 100 others, 117 KiB")
    few = model(nodes[:40], weights[:40], "a0_y")
    assert found(few, tmp_path) == {}


@pytest.mark.parametrize("place", ["initializer", "constant"])
@pytest.mark.parametrize(
    ("operator", "version", "nbytes"),
    [
        ("MatMul", "1.24.4", SIZE),
        ("MatMul", "1.28.0", SIZE),
        ("MatMul", "1.29.0", 2 * SIZE),
        ("MatMul", "1.31.1", 2 * SIZE),
        ("Add", "1.24.4", SIZE),
        ("Add", "1.31.1", SIZE),
    ],
)
def test_a_weight_of_a_subgraph_stays_stale_and_since_1_29_unfreed(
    tmp_path: Path, operator: str, version: str, nbytes: int, place: str
) -> None:
    source = "x" if operator == "MatMul" else "z"
    nodes = [node(operator, f"{source} w", "o")]
    weights = [tensor("w")]
    if place == "constant":
        nodes.insert(0, node("Constant", "", "w", value=tensor("value")))
        weights = []
    proto = model([choice(branch("b", nodes, weights), plain())], [])
    finding = found(proto, tmp_path, version)["MD104"]
    assert finding.weights == ("y/If/then_branch/w",)
    assert finding.nodes == ("y/If",)
    assert finding.graph == "y/If/then_branch"
    assert finding.bytes == nbytes
    alive = operator == "Add"
    assert finding.expected[0].bytes == nbytes + alive * SIZE


def test_an_external_weight_of_a_subgraph_costs_only_since_1_29(tmp_path: Path) -> None:
    proto = model([choice(branch("b", [node("MatMul", "x w", "o")], [tensor("w")]), plain())], [])
    assert found(proto, tmp_path, "1.24.4", external=True) == {}
    finding = found(proto, tmp_path, "1.31.1", external=True)["MD104"]
    assert (finding.bytes, finding.peak_bytes) == (SIZE, 0)


def test_each_node_around_a_weight_leaves_a_stale_copy(tmp_path: Path) -> None:
    inner = choice(branch("b", [node("Add", "z w", "o")], [tensor("w")]), plain(), "inner")
    proto = model([choice(branch("outer", [inner], []), plain("other"))], [])
    finding = found(proto, tmp_path)["MD104"]
    assert finding.nodes == ("y/If",)
    assert finding.bytes == 2 * SIZE


def test_a_weight_in_a_loop_body_is_found(tmp_path: Path) -> None:
    body = helper.make_graph(
        [node("Add", "state w", "next"), node("Identity", "keep", "going")],
        "body",
        [
            helper.make_tensor_value_info("count", TensorProto.INT64, []),
            helper.make_tensor_value_info("keep", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
        ],
        [tensor("w")],
    )
    loop = helper.make_node("Loop", ["trips", "", "z"], ["y"], name="Loop", body=body)
    proto = model([loop], [tensor("trips", np.array(2))])
    assert found(proto, tmp_path)["MD104"].weights == ("Loop/body/w",)


def test_outer_and_small_weights_of_subgraphs_cost_nothing(tmp_path: Path) -> None:
    outer = model([choice(branch("b", [node("MatMul", "x w", "o")], []), plain())], [tensor("w")])
    assert found(outer, tmp_path) == {}
    small = tensor("w", VALUES[0, :128])
    proto = model([choice(branch("b", [node("Mul", "s w", "o")], [small]), plain())], [])
    assert found(proto, tmp_path) == {}


def _same_in_both(operator: str, source: str) -> ModelProto:
    then = branch("then", [node(operator, f"{source} u", "o")], [tensor("u")])
    other = branch("other", [node(operator, f"{source} w", "r")], [tensor("w")])
    return model([choice(then, other)], [])


@pytest.mark.parametrize(
    ("operator", "source", "version", "originals", "needed"),
    [
        ("MatMul", "x", "1.24.4", 2, 0),
        ("MatMul", "x", "1.31.1", 4, 0),
        ("Add", "z", "1.24.4", 4, 1),
        ("Add", "z", "1.31.1", 4, 1),
    ],
)
def test_equal_weights_of_branches_are_one_rule_s_alone(
    tmp_path: Path, operator: str, source: str, version: str, originals: int, needed: int
) -> None:
    findings = found(_same_in_both(operator, source), tmp_path, version)
    assert list(findings) == ["MD105"]
    finding = findings["MD105"]
    assert set(finding.weights) == {"y/If/then_branch/u", "y/If/else_branch/w"}
    assert finding.bytes == (originals - needed) * SIZE
    assert (finding.expected[0].count, finding.expected[0].bytes) == (originals, originals * SIZE)


def test_external_weights_of_branches_cost_by_version(tmp_path: Path) -> None:
    proto = _same_in_both("MatMul", "x")
    assert found(proto, tmp_path, "1.24.4", external=True)["MD105"].bytes == 0
    assert found(proto, tmp_path, "1.31.1", external=True)["MD105"].bytes == 2 * SIZE


def test_other_weights_of_branches_are_none_of_the_same(tmp_path: Path) -> None:
    then = branch("then", [node("MatMul", "x u", "o")], [tensor("u")])
    other = branch("other", [node("MatMul", "x w", "r")], [tensor("w", VALUES + 1)])
    findings = found(model([choice(then, other)], []), tmp_path)
    assert list(findings) == ["MD104"]
    assert findings["MD104"].bytes == 4 * SIZE


def test_a_weight_with_a_namesake_in_a_later_branch_is_kept(tmp_path: Path) -> None:
    then = branch("then", [node("MatMul", "x w", "o")], [tensor("w")])
    other = branch("other", [node("MatMul", "x w", "r")], [tensor("w", VALUES + 1)])
    proto = model([choice(then, other)], [])
    sizes = {
        version: found(proto, tmp_path, version)["MD104"].bytes // SIZE
        for version in ("1.24.4", "1.28.0", "1.31.1")
    }
    assert sizes == {"1.24.4": 3, "1.28.0": 3, "1.31.1": 4}


def test_a_weight_that_the_main_graph_has_too_is_shared_out_without_overlap(
    tmp_path: Path,
) -> None:
    then = branch("then", [node("Add", "z w", "o")], [tensor("w")])
    proto = model([choice(then, plain()), node("Mul", "z m", "q")], [tensor("m")], "y q")
    findings = found(proto, tmp_path)
    assert {rule: finding.bytes for rule, finding in findings.items()} == {
        "MD101": SIZE,
        "MD104": SIZE,
    }
    assert {finding.expected[0].count for finding in findings.values()} == {3}


TURNED = np.ascontiguousarray(VALUES.T)


@pytest.mark.parametrize(
    ("version", "external", "nbytes"),
    [
        ("1.24.4", False, SIZE),
        ("1.24.4", True, SIZE),
        ("1.31.1", False, SIZE),
        ("1.31.1", True, SIZE),
    ],
)
def test_a_stored_transpose_costs_what_it_keeps(
    tmp_path: Path, version: str, external: bool, nbytes: int
) -> None:
    proto = model(
        [node("Gather", "e i", "p"), node("MatMul", "x w", "q")],
        [tensor("e", TURNED), tensor("w")],
        "p q",
    )
    findings = found(proto, tmp_path, version, external=external)
    assert list(findings) == ["MD102"]
    finding = findings["MD102"]
    assert finding.weights == ("e", "w")
    assert finding.nodes == ("p/op", "q/op")
    assert finding.bytes == nbytes


def test_a_weight_that_is_reshaped_or_changed_is_no_stored_transpose(tmp_path: Path) -> None:
    changed = TURNED.copy()
    changed[-1, 7] += 1
    for other in (VALUES.reshape(COLUMNS, ROWS), changed):
        proto = model(
            [node("Gather", "e i", "p"), node("MatMul", "x w", "q")],
            [tensor("e", other), tensor("w")],
            "p q",
        )
        assert found(proto, tmp_path) == {}


def test_a_small_transpose_is_not_worth_a_word(tmp_path: Path) -> None:
    values = np.ascontiguousarray(VALUES[:100, :100])
    proto = model(
        [node("Gather", "e i", "p"), node("MatMul", "s w", "q")],
        [tensor("e", np.ascontiguousarray(values.T)), tensor("w", values)],
        "p q",
    )
    assert found(proto, tmp_path) == {}
