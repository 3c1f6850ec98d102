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
from memdiag.graph.graphs import Graphs
from memdiag.graph.inference_parts import renamed
from memdiag.graph.nodes import Node
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


LISTS = ("Shape", "Gather", "Concat", "Mul")
TENSORS = ("Relu", "Reshape", "Transpose", "If", "Loop", "Turned")


class Drawing:
    """Draws nodes that compute shapes from shapes, and reshape values by them, in subgraphs too."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._count = 0

    def name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def nodes(self, tensors: list[str], lists: list[str], most: int, depth: int) -> list[NodeProto]:
        """Draw up to `most` nodes; what they make is appended to `tensors` and `lists`."""
        made = []
        for _ in range(self._draw(st.integers(1, most))):
            deepest = ("If", "Loop") if depth == 2 else ()
            operators = [one for one in (*LISTS, *TENSORS) if one not in deepest]
            operator = self._draw(st.sampled_from(operators))
            made.append(self._node(operator, tensors, lists, depth))
            (lists if operator in LISTS else tensors).append(made[-1].output[0])
        return made

    def _node(self, operator: str, tensors: list[str], lists: list[str], depth: int) -> NodeProto:
        tensor, one, other = (
            self._draw(st.sampled_from(names)) for names in (tensors, lists, lists)
        )
        name = self.name()
        if operator == "If":
            branches = {
                f"{way}_branch": self._body(tensors, lists, depth, []) for way in ("then", "else")
            }
            return helper.make_node("If", ["flag"], [name], **branches)
        if operator == "Loop":
            trip, go_on, state = (self.name() for _ in range(3))
            value = helper.make_tensor_value_info
            given = [value(trip, TensorProto.INT64, []), value(go_on, TensorProto.BOOL, [])]
            given.append(onnx.ValueInfoProto(name=state))
            body = self._body([*tensors, state], lists, depth, given)
            body.output.insert(0, value(go_on, TensorProto.BOOL, []))
            return helper.make_node("Loop", ["trips", "flag", tensor], [name], body=body)
        if operator == "Turned":
            return helper.make_node("Turned", [tensor, one], [name], domain="own")
        inputs = {
            "Gather": [one, "zero"],
            "Concat": [one, other],
            "Mul": [one, one],
            "Reshape": [tensor, self._draw(st.sampled_from(["all", one]))],
        }.get(operator, [tensor])
        node = helper.make_node(operator, inputs, [name])
        if operator == "Concat":
            node.attribute.append(helper.make_attribute("axis", 0))
        return node

    def _body(
        self, tensors: list[str], lists: list[str], depth: int, inputs: list[onnx.ValueInfoProto]
    ) -> onnx.GraphProto:
        seen = list(tensors)
        nodes = self.nodes(seen, list(lists), 6, depth + 1)
        last = self.name()
        nodes.append(helper.make_node("Relu", [seen[-1]], [last]))
        return helper.make_graph(nodes, "body", inputs, [onnx.ValueInfoProto(name=last)])


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """Draw a model whose shapes are computed across its graphs, and in a function."""
    drawing = Drawing(draw)
    tensors, lists = ["x"], ["l"]
    nodes = [helper.make_node("Shape", ["x"], ["l"]), *drawing.nodes(tensors, lists, 20, 0)]
    nodes.append(helper.make_node("Relu", [tensors[-1]], ["y"]))
    value, opsets = helper.make_tensor_value_info, [helper.make_opsetid("", 17)]
    turned = helper.make_function(
        *("own", "Turned", ["a", "b"], ["e"]),
        [helper.make_node("Relu", ["a"], ["c"]), helper.make_node("Transpose", ["c"], ["e"])],
        opsets,
    )
    return helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [
                value("x", TensorProto.FLOAT, ["n", 3, 4]),
                value("flag", TensorProto.BOOL, []),
                value("trips", TensorProto.INT64, []),
            ],
            [value("y", TensorProto.FLOAT, None)],
            [
                numpy_helper.from_array(np.array([0], np.int64), "zero"),
                numpy_helper.from_array(np.array([2, -1], np.int64), "all"),
            ],
        ),
        functions=[turned],
        opset_imports=[*opsets, helper.make_opsetid("own", 1)],
        ir_version=9,
    )


def tells_as_much(whole: TensorType | None, found: TensorType | None) -> bool:
    """Return whether what is `found` says at least what the `whole` tells."""
    if whole is None or found is None or whole.shape is None or found.shape is None:
        return whole is None or (
            (found is not None and found.dtype == whole.dtype) and (whole.shape is None)
        )
    pairs = zip(whole.shape, found.shape, strict=True)
    return whole.dtype == found.dtype and all(one in (None, other) for one, other in pairs)


@settings(
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(model=models(), nodes=st.integers(1, 10))
def test_any_graph_is_known_as_well_in_parts(
    model: onnx.ModelProto, nodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, problem = types(model, tmp_path, monkeypatch, WHOLE)
    found, _ = types(model, tmp_path, monkeypatch, nodes)
    if not problem:
        less = {
            key: (whole[key], found[key])
            for key in whole
            if not tells_as_much(whole[key], found[key])
        }
        assert less == {}
