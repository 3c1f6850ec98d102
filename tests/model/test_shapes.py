import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from memdiag.model import shapes
from memdiag.model.dimensions import MAX_DIMENSION_SIZE
from memdiag.model.graph_index import GraphIndex, Scope
from memdiag.model.model_file import open_model
from memdiag.model.shapes import ModelShapes, infer_shapes
from memdiag.model.tensor_types import MAX_TENSOR_BYTES, TensorType

IF = """
g (bool c, float[n,4] x) => (float[p,q] y) <float[8,4] W = {%s}> {
  y = If(c) <
    then_branch = t () => (float[p,q] a) { wt = Transpose(W) a = MatMul(x, wt) },
    else_branch = e () => (float[p,q] b) { wt = Neg(W) xt = Transpose(x) b = MatMul(wt, xt) }
  >
}
""".replace("%s", ",".join(["1"] * 32))


class Inferred:
    """The shapes of a model, by the path of the graph and the name of the value."""

    def __init__(self, model: onnx.ModelProto, folder: Path, **sizes: int) -> None:
        path = folder / "model.onnx"
        onnx.save(model, path)
        self.notes: list[str] = []
        with open_model(path) as opened:
            self.graphs = GraphIndex(opened)
            self.shapes: ModelShapes = infer_shapes(opened, self.graphs, sizes, self.notes)
            self.as_declared = self.shapes.as_declared
        self._scopes: dict[str, Scope] = {}
        for place, scope in self.graphs:
            self._scopes.setdefault(place, scope)

    def __call__(self, name: str, graph: str = "") -> TensorType | None:
        return self.shapes.of(self._scopes[graph], name)


def text(source: str, *, opset: int = 17, more: str = "") -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["":{opset}{more}]>{source}')


def test_values_of_a_graph(tmp_path: Path) -> None:
    model = text(
        "g (float[n,4] x) => (float[n,8] y) <float[4,8] W> { z = MatMul(x, W) y = Relu(z) }"
    )
    weight = numpy_helper.from_array(np.ones((4, 8), np.float32), "W")
    model.graph.initializer.append(weight)
    of = Inferred(model, tmp_path)
    assert of("z") == of("y") == TensorType("float", (None, 8))
    assert of("W") == TensorType("float", (4, 8))
    assert of("absent") is None
    assert of.notes == []


def test_the_bytes_of_a_type() -> None:
    assert TensorType("float16", (3, 5)).nbytes == 30
    assert TensorType("int4", (3, 5)).nbytes == 8
    assert TensorType("float", ()).nbytes == 4
    assert TensorType("float", (0, 5)).nbytes == 0
    assert TensorType("float", (None, 5)).nbytes is None
    assert TensorType("float", None).nbytes is None


def test_subgraphs_see_outer_values(tmp_path: Path) -> None:
    of = Inferred(text(IF), tmp_path)
    then, other = "If_0/then_branch", "If_0/else_branch"
    assert of("wt", then) == TensorType("float", (4, 8))
    assert of("wt", other) == TensorType("float", (8, 4))
    assert of("W", then) == TensorType("float", (8, 4))
    assert of("a", then) == TensorType("float", (None, 8))


def test_sizes_are_put_in_and_taken_out_again(tmp_path: Path) -> None:
    of = Inferred(text(IF), tmp_path, n=3)
    assert of("a", "If_0/then_branch") == TensorType("float", (3, 8))
    plain = of.as_declared
    assert plain.of(next(iter(of.graphs))[1], "x") == TensorType("float", (None, 4))
    assert plain.as_declared is plain


def test_sizes_of_axes_without_a_name(tmp_path: Path) -> None:
    model = text("g (float[4] x, float[4] z) => (float[4] y) { y = Add(x, z) }")
    model.graph.input[0].type.tensor_type.shape.dim[0].ClearField("dim_value")
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = -1
    of = Inferred(model, tmp_path, **{"x:0": 7, "z:0": 9})
    assert of("x") == TensorType("float", (7,))
    assert of("z") == TensorType("float", (9,))


def test_values_of_shapes_are_carried_along(tmp_path: Path) -> None:
    of = Inferred(
        text(
            "g (float[2,3,4] x) => (float[p,q] y) <int64 one = {1}, int64[1] rest = {-1}, "
            "int64[1] axis = {0}> { s = Shape(x) d = Gather(s, one) u = Unsqueeze(d, axis) "
            "k = Concat<axis=0>(u, rest) y = Reshape(x, k) }"
        ),
        tmp_path,
    )
    assert of("y") == TensorType("float", (3, 8))


def test_called_functions(tmp_path: Path) -> None:
    source = """
    g (float[n,4] x) => (float[p,q] y) <float[8,4] W = {%s}> { y = f.turn<axes=[1,0]>(W) }
    <domain: "f", opset_import: ["":17,"f":1]> turn <axes> (w) => (o) {
      t = Transpose<perm: ints = @axes>(w)
      o = f.twice(t)
    }
    <domain: "f", opset_import: ["":17]> twice (v) => (o) { o = Concat<axis=0>(v, v) }
    """
    of = Inferred(text(source % ",".join(["1"] * 32), more=',"f":1'), tmp_path)
    assert of("w", "f::turn") == TensorType("float", (8, 4))
    assert of("t", "f::turn") == TensorType("float", (4, 8))
    assert of("o", "f::twice") == TensorType("float", (8, 8))
    assert of("y") == TensorType("float", (8, 8))


@pytest.mark.parametrize(
    "body",
    ["a = f.one(v) o = Neg(a)", "a = f.two(v) o = f.two(a)"],
    ids=["itself", "each other"],
)
def test_functions_without_end_are_taken_out(tmp_path: Path, body: str) -> None:
    source = f"""
    g (float[4] x) => (float[4] y, float[4] z) {{ y = f.one(x) z = Neg(x) }}
    <domain: "f", opset_import: ["":17,"f":1]> one (v) => (o) {{ {body} }}
    <domain: "f", opset_import: ["":17,"f":1]> two (v) => (o) {{ o = f.one(v) }}
    """
    of = Inferred(text(source, more=',"f":1'), tmp_path)
    assert of("z") == TensorType("float", (4,))
    assert "call each other" in of.notes[0]


def test_functions_that_double_are_taken_out(tmp_path: Path) -> None:
    functions = "".join(
        f'<domain: "f", opset_import: ["":17,"f":1]> f{n} (v) => (o) '
        f"{{ a = f.f{n + 1}(v) o = f.f{n + 1}(a) }}"
        for n in range(40)
    )
    last = '<domain: "f", opset_import: ["":17]> f40 (v) => (o) { o = Neg(v) }'
    source = "g (float[4] x) => (float[4] y) { y = f.f0(x) }" + functions + last
    started = time.perf_counter()
    of = Inferred(text(source, more=',"f":1'), tmp_path)
    assert time.perf_counter() - started < 10
    assert of("x") == TensorType("float", (4,))
    assert of.notes


def test_many_nodes_are_no_functions_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "MAX_INLINED_NODES", 2)
    source = "g (float[4] x) => (float[4] y) { a = Neg(x) b = Neg(a) c = Neg(b) y = %s }"
    assert Inferred(text(source % "Neg(c)"), tmp_path).notes == []
    function = '<domain: "f", opset_import: ["":17]> f (v) => (o) { %s }'
    few, many = "o = Neg(v)", "a = Neg(v) b = Neg(a) o = Neg(b)"
    calling = text(source % "f.f(c)" + function % few, more=',"f":1')
    assert Inferred(calling, tmp_path).notes == []
    calling = text(source % "f.f(c)" + function % many, more=',"f":1')
    assert Inferred(calling, tmp_path).notes


def test_large_weights_are_not_opened(tmp_path: Path) -> None:
    # A shape that is stored outside: its values stay unknown, and nothing fails.
    model = text(
        "g (float[2,300] x) => (float[p] y) <int64[200] k> { z = Reshape(x, k) y = Abs(z) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones(200, np.int64), "k"))
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="data", size_threshold=0)
    for embedded in (False, True):
        if embedded:
            onnx.save(model, path)
        with open_model(path) as opened:
            graphs, notes = GraphIndex(opened), list[str]()
            shapes = infer_shapes(opened, graphs, {}, notes)
            main = next(iter(graphs))[1]
            assert shapes.of(main, "k") == TensorType("int64", (200,))
            assert shapes.of(main, "x") == TensorType("float", (2, 300))
            assert notes == []


def test_what_the_model_states_is_known_where_inference_fails(tmp_path: Path) -> None:
    model = text("g (float[4] x) => (float[4] y) { y = Abs(x) }")
    model.graph.node.append(helper.make_node("MatMul", [], ["z"]))
    of = Inferred(model, tmp_path)
    assert of("y") == TensorType("float", (4,))
    assert of("z") is None
    assert "could not be inferred" in of.notes[0]


def test_unknown_operators_are_named(tmp_path: Path) -> None:
    model = text(
        "g (float[4] x) => (float[4] y) { a = my.Own(x) b = Neg(a) y = Abs(x) }", more=',"my":1'
    )
    of = Inferred(model, tmp_path)
    assert of("a") is None
    assert of("y") == TensorType("float", (4,))
    assert "my.Own" in of.notes[0]


@pytest.mark.parametrize(
    "first",
    [
        "Shape(x)",
        "Identity(x)",
        pytest.param("Constant<value_ints=[1, 2, 3]>()", marks=pytest.mark.slow),
    ],
)
def test_a_list_that_doubles_without_end_costs_only_the_values_of_shapes(
    tmp_path: Path, first: str
) -> None:
    doubling = " ".join(f"t{step + 1} = Concat<axis=0>(t{step}, t{step})" for step in range(40))
    model = text(f"g (float[4] x) => (float[n] y) {{ t0 = {first} {doubling} y = Abs(x) }}")
    of = Inferred(model, tmp_path)
    assert of("y") == TensorType("float", (4,))
    assert of("t1") is not None
    assert of.notes == []


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "opset"),
    [
        ("Einsum", "xx", {"equation": "......ij,,->>"}, 17),
        ("Einsum", "x", {"equation": "......"}, 17),
        ("Split", "x", {"num_outputs": 2**31}, 18),
        ("RegexFullMatch", ["z"], {"pattern": "a"}, 20),
        ("Conv", "xx", {"strides": [0, 0]}, 17),
        ("Gather", "xx", {"axis": 2**60}, 17),
        ("DepthToSpace", "x", {"blocksize": 0}, 17),
    ],
)
def test_attributes_that_would_hang_the_inference(
    tmp_path: Path, op_type: str, inputs: Sequence[str], attributes: dict[str, object], opset: int
) -> None:
    model = text("g (float[1,4,8,8] x) => (float[1,4,8,8] y) { y = Abs(x) }", opset=opset)
    node = helper.make_node(op_type, list(inputs), ["z"], **attributes)  # type: ignore[arg-type] # attributes of any type
    model.graph.node.append(node)
    started = time.perf_counter()
    of = Inferred(model, tmp_path)
    assert time.perf_counter() - started < 5
    assert of("y") == TensorType("float", (1, 4, 8, 8))


@pytest.mark.parametrize(
    ("op_type", "domain"),
    [("EyeLike", ""), ("DictVectorizer", "ai.onnx.ml"), ("LabelEncoder", "ai.onnx.ml")],
)
@pytest.mark.parametrize("name", ["nowhere", "unknown", ""])
def test_operators_whose_inference_needs_the_type_of_the_input(
    tmp_path: Path, op_type: str, domain: str, name: str
) -> None:
    more = ', "my" : 1, "ai.onnx.ml" : 1'
    source = "g (float[4] x) => (float[4] y) { y = Abs(x) unknown = my.Own(x) }"
    model = text(source, opset=22, more=more)
    model.graph.node.append(helper.make_node(op_type, [name], ["z"], domain=domain))
    of = Inferred(model, tmp_path)
    assert of("y") == TensorType("float", (4,))
    assert of("z") is None
    assert of("") is None


@pytest.mark.parametrize("ml", [2, 3, 4])
@pytest.mark.parametrize("name", ["x", "unknown", "nowhere"])
@pytest.mark.parametrize(
    ("attribute", "labels", "dtype"),
    [
        ("values_strings", ["a"], "string"),
        ("values_int64s", [1], "int64"),
        ("values_floats", [1.0], "float"),
        ("values_tensor", numpy_helper.from_array(np.ones(1, np.int16)), "int16"),
    ],
)
def test_the_type_of_labels(
    tmp_path: Path, ml: int, name: str, attribute: str, labels: object, dtype: str
) -> None:
    source = "g (int64[4] x) => (int64[4] y) { y = Abs(x) unknown = my.Own(x) }"
    model = text(source, more=f', "my" : 1, "ai.onnx.ml" : {ml}')
    settings: Any = {"keys_int64s": [1], attribute: labels}
    node = helper.make_node("LabelEncoder", [name], ["z"], domain="ai.onnx.ml", **settings)
    model.graph.node.append(node)
    of = Inferred(model, tmp_path)
    assert of("y") == TensorType("int64", (4,))
    found = of("z")
    assert found is not None
    assert found.dtype == dtype
    assert found.shape == ((4,) if name == "x" else None)


def test_a_label_encoder_with_a_graph_keeps_it(tmp_path: Path) -> None:
    source = "g (int64[4] x) => (int64[4] y) { y = Abs(x) }"
    model = text(source, more=', "ai.onnx.ml" : 3')
    inner = parser.parse_graph(
        "inner () => (float[2] a) { a = Constant<value_floats = [1.0, 2.0]>() }"
    )
    node = helper.make_node("LabelEncoder", ["x"], ["z"], domain="ai.onnx.ml", body=inner)
    node.attribute.append(helper.make_attribute("values_floats", [1.0]))
    model.graph.node.append(node)
    of = Inferred(model, tmp_path)
    assert of("z") == TensorType("float", (4,))


@pytest.mark.parametrize(
    ("size", "expected"), [(MAX_DIMENSION_SIZE, MAX_DIMENSION_SIZE), (MAX_DIMENSION_SIZE + 1, None)]
)
def test_a_size_that_no_tensor_can_have_stays_free(
    tmp_path: Path, size: int, expected: int | None
) -> None:
    of = Inferred(text("g (float[n] x) => (float[n] y) { y = Abs(x) }"), tmp_path, n=size)
    assert of("y") == TensorType("float", (expected,))


def test_the_shape_of_an_identity_matrix(tmp_path: Path) -> None:
    source = """g (float[4, n] x) => (float[4, n] y, int64[4, n] z) {
        y = EyeLike(x) t = EyeLike <dtype = 7, k = 1> (x) z = Identity(t)
    }"""
    of = Inferred(text(source, opset=22), tmp_path)
    assert of("y") == TensorType("float", (4, None))
    assert of("t") == TensorType("int64", (4, None))


@pytest.mark.parametrize("equation", ["......ij,,->>", "......"])
@pytest.mark.parametrize(
    "body",
    [
        "o = Einsum<equation: string = @equation>(a, a)",
        """o = If(c) <
             then_branch = t () => (p) { p = Einsum<equation = "%s">(a, a) },
             else_branch = e () => (q) { q = Abs(a) }
           >""",
    ],
    ids=["given by a call", "in a subgraph"],
)
def test_attributes_inside_functions_that_would_hang_the_inference(
    tmp_path: Path, body: str, equation: str
) -> None:
    body = body.replace("%s", equation)
    source = f"""
    g (bool c, float[4,4] x) => (float[4,4] y) {{
      z = f.own<equation = "{equation}">(c, x) y = Abs(x)
    }}
    <domain: "f", opset_import: ["":17]> own <equation> (c, a) => (o) {{ {body} }}
    """
    started = time.perf_counter()
    of = Inferred(text(source, more=',"f":1'), tmp_path)
    assert time.perf_counter() - started < 5
    assert of("y") == TensorType("float", (4, 4))
    assert of("z") is None


def test_a_list_of_absurd_length(tmp_path: Path) -> None:
    model = text(
        "g (float[2,3] x) => (float[2,3] y) <int64[1] k = {4611686018427387904}> "
        "{ y = Abs(x) a = ConstantOfShape(k) b = Add(a, a) }"
    )
    started = time.perf_counter()
    of = Inferred(model, tmp_path)
    assert time.perf_counter() - started < 20
    assert of("y") == TensorType("float", (2, 3))
    assert of("b") == TensorType("float", (2**62,))


def test_deep_subgraphs(tmp_path: Path) -> None:
    body = "o0 = Neg(x)"
    for depth in range(25):
        inner = f"b{depth} () => (float[4] o{depth}) {{ {body} }}"
        other = f"c{depth} () => (float[4] q{depth}) {{ q{depth} = Abs(x) }}"
        body = f"o{depth + 1} = If(c) <then_branch = {inner}, else_branch = {other}>"
    started = time.perf_counter()
    of = Inferred(text(f"g (bool c, float[4] x) => (float[4] o25) {{ {body} }}"), tmp_path)
    assert time.perf_counter() - started < 5
    assert of("o25") == TensorType("float", (4,))


def test_a_large_graph_takes_little_time(tmp_path: Path) -> None:
    names = ["x", *(f"v{number}" for number in range(20_000))]
    nodes = [
        helper.make_node(
            "Add" if number % 4 else "MatMul", [names[number], f"w{number // 4}"], [name]
        )
        for number, name in enumerate(names[1:])
    ]
    value = np.zeros((8, 8), np.float32)
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info(names[-1], TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, f"w{number}") for number in range(5000)],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    with open_model(path) as model:
        graphs = GraphIndex(model)
        started = time.process_time()
        shapes = infer_shapes(model, graphs, {}, [])
        # A quarter of a second on an idle machine.
        assert time.process_time() - started < 1.5
        assert shapes.of(next(iter(graphs))[1], names[-1]) == TensorType("float", (8, 8))


def test_the_inference_raises_its_first_exception_before_memory_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Without memory for the first one glibc ends the process: 2 of 4 estimates of a graph network.
    shapes._raise_once.cache_clear()
    limits: list[int] = []

    def infer(serialized: bytes, **options: bool) -> onnx.ModelProto:
        limits.append(resource.getrlimit(resource.RLIMIT_AS)[0])
        raise RuntimeError("no model")

    monkeypatch.setattr(shapes, "infer_model", infer)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            shapes.infer_limited(b"")
    assert [limit == resource.RLIM_INFINITY for limit in limits] == [True, False, False]


@pytest.mark.parametrize(("sizes", "nbytes"), [((3, 5), 60), ((1 << 30,) * 40, MAX_TENSOR_BYTES)])
def test_no_tensor_is_larger_than_any_machine(sizes: tuple[int, ...], nbytes: int) -> None:
    assert TensorType("float", sizes).nbytes == nbytes
