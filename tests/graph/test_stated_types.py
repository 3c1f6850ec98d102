from pathlib import Path

import onnx
import pytest
from onnx import TypeProto, helper, parser

from memdiag.graph import inference
from memdiag.graph.bodies import Body
from memdiag.graph.graphs import Graphs
from memdiag.graph.reader import open_model
from memdiag.graph.scopes import Scope, main_scope
from memdiag.graph.shapes import infer_shapes
from memdiag.graph.stated_types import stated, states_all
from memdiag.graph.tensor_types import TensorType

WHOLE = """<ir_version: 9, opset_import: ["":17]>
g (float[n,4] x, bool c) => (float[n,8] y) <float[4,8] w, float[n,8] m, float[n,8] a> {
  k = Constant <value = float {2}> ()
  m = MatMul(x, w)
  a = Mul(m, k)
  y = If(c) <
    then_branch = t () => (float[n,8] p) { p = Neg(a) },
    else_branch = e () => (float[n,8] q) <float[n,8] r> { r = Abs(a) q = Relu(r) }
  >
}
"""


def model(text: str = WHOLE) -> onnx.ModelProto:
    found = parser.parse_model(text)
    found.graph.initializer.append(helper.make_tensor("w", 1, [4, 8], [1.0] * 32))
    return found


def scopes(found: onnx.ModelProto) -> list[Scope]:
    main = main_scope(Body.of(found.graph))
    return [main, *(body for bodies in main.bodies.values() for body in bodies)]


def test_all_is_stated_where_each_output_of_a_node_has_a_whole_shape() -> None:
    assert states_all(scopes(model()))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (", float[n,8] a>", ">"),  # nothing said of a value
        ("float[n,8] a>", "float[n,?] a>"),  # no size
        ("float[n,8] a>", "float[k,8] a>"),  # a size that no input has
        ("=> (float[n,8] p)", "=> (float[n,l] p)"),  # in a subgraph
        ("<float[n,8] r>", ""),
        ("=> (float[n,8] y)", "=> (float[n,z] y)"),
        ("float[n,8] a>", "float[n,8] a, float[n,?] y>"),  # said twice, once not whole
    ],
)
def test_what_is_not_wholly_stated_has_to_be_inferred(old: str, new: str) -> None:
    assert old in WHOLE
    assert not states_all(scopes(model(WHOLE.replace(old, new))))


def test_a_size_below_zero_is_none_nor_is_a_type_without_a_shape() -> None:
    negative, shapeless = model(), model()
    negative.graph.value_info[1].type.tensor_type.shape.dim[1].dim_value = -1
    assert not states_all(scopes(negative))
    shapeless.graph.value_info[1].type.tensor_type.ClearField("shape")
    assert not states_all(scopes(shapeless))


def test_an_input_of_a_subgraph_has_to_be_stated_too() -> None:
    text = """<ir_version: 9, opset_import: ["":17]>
    g (float[4] x, int64 t, bool c) => (float[4] y) {
      y = Loop(t, c, x) <
        body = b (int64 i, bool on, float[4] v) => (bool off, float[4] z) {
          off = Identity(on) z = Relu(v)
        }
      >
    }"""
    found = parser.parse_model(text)
    assert states_all(scopes(found))
    found.graph.node[0].attribute[0].g.input[2].ClearField("type")
    assert not states_all(scopes(found))


def test_of_what_is_no_tensor_the_kind_is_all() -> None:
    text = """<ir_version: 9, opset_import: ["":17]>
    g (float[4] x) => (seq(float[2]) y) { y = SplitToSequence(x) }"""
    found = parser.parse_model(text)
    assert states_all(scopes(found))
    found.graph.output[0].type.CopyFrom(TypeProto())
    assert not states_all(scopes(found))


def test_sizes_are_put_in_copies_of_what_is_stated() -> None:
    [main, *_] = scopes(model())
    for size, wanted in ((5, 5), (7, 7)):
        found = {value.name: value for value in stated(main, {"n": size})}
        assert found.keys() == {"x", "c", "w", "m", "a", "y"}
        assert found["x"].type.tensor_type.shape.dim[0].dim_value == wanted
        assert found["a"].type.tensor_type.shape.dim[0].dim_value == wanted


@pytest.mark.parametrize("sizes", [{}, {"n": 3}], ids=["free", "given"])
def test_what_is_stated_is_what_would_be_inferred(
    sizes: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(), path)

    def types() -> dict[tuple[str, str], TensorType | None]:
        with open_model(path) as file:
            graphs, notes = Graphs(file), list[str]()
            known = infer_shapes(file, graphs, sizes, notes)
            assert notes == []
            return {
                (place, name): known.of(scope, name)
                for place, scope in graphs
                for name in (*scope.inputs, *scope.producers, *scope.tensors)
            }

    def refuse(*given: object) -> None:
        raise AssertionError("nothing is to be inferred")

    with monkeypatch.context() as patched:
        patched.setattr(inference, "infer", refuse)
        found = types()
    monkeypatch.setattr(inference, "states_all", lambda scopes: False)
    assert found == types()
