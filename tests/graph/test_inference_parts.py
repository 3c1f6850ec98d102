"""A graph that is inferred in parts: the same is known of its values as of the whole."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import NodeProto, TensorProto, TypeProto, helper, numpy_helper, parser

from memdiag.graph import inference, inference_parts
from memdiag.graph.bodies import Node
from memdiag.graph.graphs import Graphs
from memdiag.graph.inference_parts import renamed
from memdiag.graph.reader import open_model
from memdiag.graph.scopes import Scope
from memdiag.graph.shapes import infer_shapes
from memdiag.graph.tensor_types import TensorType

WHOLE = 1 << 30

# Sizes of shapes are computed at the start and used at the end, some of them within branches.
COMPUTED = """
g (float[n, 6, 4] x, bool c) => (float[p, q] y, float[r, s] z) <int64[1] four = {4}> {
  shape = Shape(x)
  zero = Constant <value = int64[1] {0}> ()
  first = Gather(shape, zero)
  six = Constant <value = int64[1] {6}> ()
  product = Mul(six, four)
  wanted = Concat <axis = 0> (first, product)
  a = Relu(x)
  b = Neg(a)
  r1 = Reshape(b, wanted)
  y = Relu(r1)
  z = If (c) <
    then_branch = t () => (float[e, f] d) { d = Reshape(b, wanted) },
    else_branch = o () => (float[e, f] d) { h = Abs(r1) d = Neg(h) }
  >
}
"""


def types(
    model: onnx.ModelProto,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    nodes: int,
    sizes: Mapping[str, int] | None = None,
) -> tuple[dict[tuple[str, str], TensorType | None], list[str]]:
    """Return what is known of all values of `model`, inferred `nodes` at a time, and the notes."""
    monkeypatch.setattr(inference, "NODES", nodes)
    monkeypatch.setattr(inference, "MOST_AT_ONCE", nodes)
    path = folder / "model.onnx"
    onnx.save(model, path)
    notes: list[str] = []
    with open_model(path) as opened:
        graphs = Graphs(opened)
        known = infer_shapes(opened, graphs, sizes or {}, notes)
        found = {
            (place, name): known.of(scope, name)
            for place, scope in graphs
            for name in (*scope.inputs, *scope.producers, *scope.tensors)
        }
    return found, notes


def text(source: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["":17]>{source}')


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("sizes", [{}, {"n": 3}], ids=["free", "given"])
def test_values_of_shapes_are_known_across_parts(
    nodes: int, sizes: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = types(text(COMPUTED), tmp_path, monkeypatch, WHOLE, sizes)
    found, notes = types(text(COMPUTED), tmp_path, monkeypatch, nodes, sizes)
    assert found == whole
    assert notes == []
    rows = sizes.get("n")
    assert found["", "r1"] == TensorType("float", (rows, 24))
    assert found["If_10/else_branch", "h"] == TensorType("float", (rows, 24))
    assert found["If_10/then_branch", "d"] == TensorType("float", (rows, 24))


def test_what_computes_too_much_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference_parts, "_MOST_COMPUTING", 2)
    found, notes = types(text(COMPUTED), tmp_path, monkeypatch, 2)
    assert found["", "r1"] == TensorType("float", (None, None))
    assert notes == []


def chain(length: int) -> onnx.ModelProto:
    names = [f"s{index}" for index in range(length)]
    steps = "\n".join(f"{new} = Mul({old}, {old})" for old, new in pairwise(names))
    return text(
        f"""
    g (float[4] x) => (float[a] y) {{
      s0 = Constant <value = int64[1] {{1}}> ()
      {steps}
      y = Expand(x, {names[-1]})
    }}"""
    )


def test_a_long_chain_is_followed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = types(chain(300), tmp_path, monkeypatch, 50)
    assert found["", "y"] == TensorType("float", (4,))


def test_what_is_too_far_away_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []
    is_computed = inference_parts._is_computed

    def watched(producer: Node, name: str, scope: Scope, known: inference_parts.Types) -> bool:
        looked_at.append(name)
        return is_computed(producer, name, scope, known)

    monkeypatch.setattr(inference_parts, "_is_computed", watched)
    monkeypatch.setattr(inference_parts, "_MOST_COMPUTING", 20)
    types(chain(300), tmp_path, monkeypatch, 50)
    # Of the seven parts all but the first read what an earlier one made.
    assert 6 * 20 <= len(looked_at) <= 6 * (20 + 1)
    assert looked_at[-1] == "s280"


def test_weights_in_all_places_are_seen_by_each_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = text(
        """
        g (float[2, 6] x, float[6, 5] given) => (float[2, 5] y) {
          a = MatMul(x, w) b = MatMul(x, held) c = MatMul(x, given) d = MatMul(x, sparse)
          e = Sum(a, b) f = Sum(c, d) y = Sum(e, f)
        }"""
    )
    graph = model.graph
    constant = helper.make_node(
        "Constant", [], ["held"], value=numpy_helper.from_array(np.ones((6, 5), np.float32), "t")
    )
    graph.node.insert(0, constant)
    for name in ("w", "given"):
        graph.initializer.append(numpy_helper.from_array(np.ones((6, 5), np.float32), name))
    sparse = graph.sparse_initializer.add(dims=[6, 5])
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(3, np.float32), "sparse"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.arange(3), "indices"))
    found, _ = types(model, tmp_path, monkeypatch, 2)
    assert {found["", name] for name in "abcdefy"} == {TensorType("float", (2, 5))}


def test_what_makes_no_sense_spoils_its_own_part_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = text(
        "g (float[2, 6] x) => (float[2, 6] y)"
        " { a = Relu(x) c = Transpose(x) d = Relu(c) y = Abs(x) }"
    )
    model.graph.node.insert(1, helper.make_node("MatMul", [], ["b"]))
    whole, problem = types(model, tmp_path, monkeypatch, WHOLE)
    assert whole["", "c"] is None
    found, notes = types(model, tmp_path, monkeypatch, 2)
    assert found["", "c"] == found["", "d"] == TensorType("float", (6, 2))
    assert found["", "b"] is None
    assert [one.partition("(")[0] for one in notes] == [one.partition("(")[0] for one in problem]


def test_unknown_operators_are_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = text(
        "g (float[2] x) => (float[2] y) { a = odd.One(x) b = odd.One(a) c = odd.Two(b) y = Abs(c) }"
    )
    model.opset_import.append(helper.make_opsetid("odd", 1))
    _, whole = types(model, tmp_path, monkeypatch, WHOLE)
    _, notes = types(model, tmp_path, monkeypatch, 1)
    assert notes == whole
    assert notes[0].startswith("Shapes behind 3 nodes")


def test_sizes_that_were_made_up_differ_between_parts() -> None:
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, ["unk__0", "batch", 3, None])
    first, second = renamed(kind, 0), renamed(kind, 1)
    shapes_of = [[axis.dim_param for axis in one.tensor_type.shape.dim] for one in (first, second)]
    assert shapes_of[0][0] != shapes_of[1][0]
    assert [one[1:] for one in shapes_of] == [["batch", "", ""]] * 2
    sequence = helper.make_sequence_type_proto(kind)
    assert renamed(sequence, 1) == sequence
    assert kind == helper.make_tensor_type_proto(TensorProto.FLOAT, ["unk__0", "batch", 3, None])
    assert renamed(TypeProto(), 1) == TypeProto()


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """Draw a graph in which shapes are computed from shapes, and values reshaped by them."""
    tensors, lists = ["x"], ["l"]
    nodes: list[NodeProto] = [helper.make_node("Shape", ["x"], ["l"])]
    for index in range(draw(st.integers(1, 25))):
        name = f"v{index}"
        operator = draw(
            st.sampled_from(["Relu", "Shape", "Gather", "Concat", "Mul", "Reshape", "Transpose"])
        )
        tensor, one = draw(st.sampled_from(tensors)), draw(st.sampled_from(lists))
        other = draw(st.sampled_from(lists))
        inputs = {
            "Gather": [one, "zero"],
            "Concat": [one, other],
            "Mul": [one, one],
            "Reshape": [tensor, draw(st.sampled_from(["all", one]))],
        }.get(operator, [tensor])
        nodes.append(helper.make_node(operator, inputs, [name]))
        if operator == "Concat":
            nodes[-1].attribute.append(helper.make_attribute("axis", 0))
        (lists if operator in ("Shape", "Gather", "Concat", "Mul") else tensors).append(name)
    nodes.append(helper.make_node("Relu", [tensors[-1]], ["y"]))
    value = helper.make_tensor_value_info
    return helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [value("x", TensorProto.FLOAT, ["n", 3, 4])],
            [value("y", TensorProto.FLOAT, None)],
            [
                numpy_helper.from_array(np.array([0], np.int64), "zero"),
                numpy_helper.from_array(np.array([2, -1], np.int64), "all"),
            ],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(model=models(), nodes=st.integers(1, 10))
def test_any_graph_is_known_as_well_in_parts(
    model: onnx.ModelProto, nodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, problem = types(model, tmp_path, monkeypatch, WHOLE)
    found, _ = types(model, tmp_path, monkeypatch, nodes)
    if not problem:
        assert found == whole
