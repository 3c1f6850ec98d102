import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, parser

from memdiag.model import shapes
from memdiag.model.dimensions import MAX_DIMENSION_SIZE
from memdiag.model.graph_index import GraphIndex, Scope
from memdiag.model.model_file import open_model
from memdiag.model.shapes import ModelShapes, infer_shapes
from memdiag.model.tensor_types import MAX_TENSOR_BYTES, TensorType
from tests.builders import build, cases, saved


class Inferred:
    """The types of a model's values as text, by the name of the value and the path of its graph."""

    def __init__(self, model: ModelProto | str, folder: Path, **sizes: int) -> None:
        if isinstance(model, str):
            model = build(model, domains={"f": 1, "my": 1})
        self.notes: list[str] = []
        with open_model(saved(model, folder)) as opened:
            self.graphs = GraphIndex(opened)
            self.shapes: ModelShapes = infer_shapes(opened, self.graphs, sizes, self.notes)
        self._scopes: dict[str, Scope] = {}
        for place, scope in self.graphs:
            self._scopes.setdefault(place, scope)

    def __call__(self, name: str, graph: str = "") -> str:
        kind = self.shapes.of(self._scopes[graph], name)
        if kind is None:
            return "unknown"
        sizes = (
            "..."
            if kind.shape is None
            else ",".join("?" if size is None else str(size) for size in kind.shape)
        )
        return f"{kind.dtype}[{sizes}]"


@contextmanager
def within(seconds: float) -> Iterator[None]:
    started = time.perf_counter()
    yield
    assert time.perf_counter() - started < seconds


ONES = ",".join("1" * 32)
IF = """(bool c, float[n,4] x) => (float[p,q] y) <float[8,4] W = {ONES}> { y = If(c) <
    then_branch = t () => (float[p,q] a) { wt = Transpose(W) a = MatMul(x, wt) },
    else_branch = e () => (float[p,q] b) { wt = Neg(W) xt = Transpose(x) b = MatMul(wt, xt) }> }
""".replace("ONES", ONES)
FUNCTION = '<domain: "f", opset_import: ["":17,"f":1]>'

THEN, ELSE = "If_0/then_branch", "If_0/else_branch"
# The types of values by the paths of their graphs. Before them sizes of dimensions, the operator
# set if it is not 17, and words of the note, if there is one.
VALUES = cases(
    """
values of a graph: z=float[?,8] y=float[?,8] W=float[4,8] absent=unknown
    (float[n,4] x) => (float[n,8] y) <float[4,8] W = {$ONES}> { z = MatMul(x, W) y = Relu(z) }
subgraphs see outer values: then/wt=float[4,8] else/wt=float[8,4] then/a=float[?,8] | $IF
sizes are put in: n:3 then/a=float[3,8] then/W=float[8,4] | $IF
values of shapes are carried along: y=float[3,8]
    (float[2,3,4] x) => (float[p,q] y)
    <int64 one = {1}, int64[1] rest = {-1}, int64[1] axis = {0}>
    { s = Shape(x) d = Gather(s, one) u = Unsqueeze(d, axis) k = Concat<axis=0>(u, rest)
    y = Reshape(x, k) }
called functions: f::turn/w=float[8,4] f::turn/t=float[4,8] f::twice/o=float[8,8] y=float[8,8]
    (float[n,4] x) => (float[p,q] y) <float[8,4] W = {$ONES}> { y = f.turn<axes=[1,0]>(W) }
    $F turn <axes> (w) => (o) { t = Transpose<perm: ints = @axes>(w) o = f.twice(t) }
    $F twice (v) => (o) { o = Concat<axis=0>(v, v) }
identity matrices: opset:22 y=float[4,?] t=int64[4,?]
    (float[4, n] x) => (float[4, n] y, int64[4, n] z)
    { y = EyeLike(x) t = EyeLike <dtype = 7, k = 1> (x) z = Identity(t) }
an unknown operator: note:my.Own a=unknown y=float[4]
    (float[4] x) => (float[4] y) { a = my.Own(x) b = Neg(a) y = Abs(x) }
what the model states, where inference fails: note:could_not_be_inferred y=float[4] z=unknown
    (float[4] x) => (float[4] y) { y = Abs(x) z = MatMul() }
a function that calls itself: note:call_each_other z=float[4]
    (float[4] x) => (float[4] y, float[4] z) { y = f.one(x) z = Neg(x) }
    $F one (v) => (o) { a = f.one(v) o = Neg(a) }
functions that call each other: note:call_each_other z=float[4]
    (float[4] x) => (float[4] y, float[4] z) { y = f.one(x) z = Neg(x) }
    $F one (v) => (o) { a = f.two(v) o = f.two(a) } $F two (v) => (o) { o = f.one(v) }
# The inference would take too long with these attributes, or too much memory with these values.
Einsum of many dots: y=$IMAGE | $ABS z = Einsum <equation = "......ij,,->>"> (x, x) }
Einsum of dots alone: y=$IMAGE | $ABS z = Einsum <equation = "......"> (x) }
Split in many: opset:18 y=$IMAGE | $ABS z = Split <num_outputs = 2147483648> (x) }
RegexFullMatch: opset:20 y=$IMAGE | $ABS z = RegexFullMatch <pattern = "a"> (z) }
Conv of no strides: y=$IMAGE | $ABS z = Conv <strides = [0, 0]> (x, x) }
Gather along a far axis: y=$IMAGE | $ABS z = Gather <axis = 1152921504606846976> (x, x) }
DepthToSpace of no blocks: y=$IMAGE | $ABS z = DepthToSpace <blocksize = 0> (x) }
Einsum in a function: y=$IMAGE z=unknown
    $ABS z = f.own<equation = "......">(x) }
    $F own <equation> (a) => (o) { o = Einsum<equation: string = @equation>(a, a) }
Einsum of many dots in a function: y=$IMAGE z=unknown
    $ABS z = f.own<equation = "......ij,,->>">(x) }
    $F own <equation> (a) => (o) { o = Einsum<equation: string = @equation>(a, a) }
Einsum in a subgraph of a function: y=float[4,4] z=unknown
    (bool c, float[4,4] x) => (float[4,4] y) { z = f.own(c, x) y = Abs(x) }
    $F own (c, a) => (o) { o = If(c) <
    then_branch = t () => (p) { p = Einsum<equation = "......ij,,->>">(a, a) },
    else_branch = e () => (q) { q = Abs(a) }> }
a list of absurd length: y=float[2,3] b=float[4611686018427387904]
    (float[2,3] x) => (float[2,3] y) <int64[1] k = {4611686018427387904}>
    { y = Abs(x) a = ConstantOfShape(k) b = Add(a, a) }
""",
    IF=IF.replace("\n", " "),
    ONES=ONES,
    F=FUNCTION,
    IMAGE="float[1,4,8,8]",
    ABS="(float[1,4,8,8] x) => (float[1,4,8,8] y) { y = Abs(x)",
)


@pytest.mark.parametrize("case", VALUES)
def test_types_of_values(case: str, tmp_path: Path) -> None:
    expected, graph = VALUES[case]
    sizes: dict[str, int] = {}
    opset, note = 17, ""
    types = {}
    for token in expected.split():
        if "=" in token:
            value, _, types[value] = token.partition("=")
        elif token.startswith("note:"):
            note = token.removeprefix("note:").replace("_", " ")
        elif token.startswith("opset:"):
            opset = int(token.removeprefix("opset:"))
        else:
            sizes[token[0]] = int(token[2:])
    with within(seconds=10):
        of = Inferred(build(graph, opset=opset, domains={"f": 1, "my": 1}), tmp_path, **sizes)
    found = {}
    for value in types:
        path, _, name = value.rpartition("/")
        found[value] = of(name, {"then": THEN, "else": ELSE}.get(path, path))
    assert found == types
    assert note in of.notes[0] if note else of.notes == []


@pytest.mark.parametrize(
    ("kind", "nbytes"),
    [
        (TensorType("float16", (3, 5)), 30),
        (TensorType("int4", (3, 5)), 8),
        (TensorType("float", ()), 4),
        (TensorType("float", (0, 5)), 0),
        (TensorType("float", (None, 5)), None),
        (TensorType("float", None), None),
        (TensorType("float", (3, 5)), 60),
        (TensorType("float", (1 << 30,) * 40), MAX_TENSOR_BYTES),
    ],
)
def test_the_bytes_of_a_type(kind: TensorType, nbytes: int | None) -> None:
    assert kind.nbytes == nbytes


def test_sizes_are_taken_out_again(tmp_path: Path) -> None:
    of = Inferred(IF, tmp_path, n=3)
    plain = of.shapes.as_declared
    assert plain.of(next(iter(of.graphs))[1], "x") == TensorType("float", (None, 4))
    assert plain.as_declared is plain


def test_sizes_of_axes_without_a_name(tmp_path: Path) -> None:
    model = build("(float[4] x, float[4] z) => (float[4] y) { y = Add(x, z) }")
    model.graph.input[0].type.tensor_type.shape.dim[0].ClearField("dim_value")
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = -1
    of = Inferred(model, tmp_path, **{"x:0": 7, "z:0": 9})
    assert (of("x"), of("z")) == ("float[7]", "float[9]")


def test_functions_that_double_are_taken_out(tmp_path: Path) -> None:
    functions = "".join(
        f"{FUNCTION} f{n} (v) => (o) {{ a = f.f{n + 1}(v) o = f.f{n + 1}(a) }}" for n in range(40)
    )
    last = f"{FUNCTION} f40 (v) => (o) {{ o = Neg(v) }}"
    with within(seconds=10):
        of = Inferred(
            f"(float[4] x) => (float[4] y) {{ y = f.f0(x) }} {functions} {last}", tmp_path
        )
    assert of("x") == "float[4]"
    assert of.notes


@pytest.mark.parametrize(
    ("last", "function", "is_noted"),
    [
        ("Neg(c)", "o = Neg(v)", False),
        ("f.f(c)", "o = Neg(v)", False),
        ("f.f(c)", "a = Neg(v) b = Neg(a) o = Neg(b)", True),
    ],
)
def test_many_nodes_are_no_functions_without_end(
    last: str, function: str, is_noted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "MAX_INLINED_NODES", 2)
    graph = f"(float[4] x) => (float[4] y) {{ a = Neg(x) b = Neg(a) c = Neg(b) y = {last} }}"
    functions = f"{FUNCTION} f (v) => (o) {{ {function} }}" if "f.f" in last else ""
    assert bool(Inferred(f"{graph} {functions}", tmp_path).notes) == is_noted


@pytest.mark.parametrize("external", [True, False])
def test_large_weights_are_not_opened(tmp_path: Path, external: bool) -> None:
    # A shape that is stored outside: its values stay unknown, and nothing fails.
    graph = "(float[2,300] x) => (float[p] y) { z = Reshape(x, k) y = Abs(z) }"
    model = build(graph, weights={"k": np.ones(200, np.int64)})
    with open_model(saved(model, tmp_path, external=external)) as opened:
        graphs, notes = GraphIndex(opened), list[str]()
        main = next(iter(graphs))[1]
        types = infer_shapes(opened, graphs, {}, notes)
        assert types.of(main, "k") == TensorType("int64", (200,))
        assert types.of(main, "x") == TensorType("float", (2, 300))
        assert notes == []


def with_node(node: NodeProto, graph: str = "", **options: Any) -> ModelProto:
    """Return a model of an Abs and of `node`."""
    model = build(graph or "(float[4] x) => (float[4] y) { y = Abs(x) }", **options)
    model.graph.node.append(node)
    return model


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
    of = Inferred(
        f"(float[4] x) => (float[n] y) {{ t0 = {first} {doubling} y = Abs(x) }}", tmp_path
    )
    assert of("y") == "float[4]"
    assert of("t1") != "unknown"
    assert of.notes == []


@pytest.mark.parametrize(
    ("op_type", "domain"),
    [("EyeLike", ""), ("DictVectorizer", "ai.onnx.ml"), ("LabelEncoder", "ai.onnx.ml")],
)
@pytest.mark.parametrize("name", ["nowhere", "own", ""])
def test_operators_whose_inference_needs_the_type_of_the_input(
    tmp_path: Path, op_type: str, domain: str, name: str
) -> None:
    graph = "(float[4] x) => (float[4] y) { y = Abs(x) own = my.Own(x) }"
    node = helper.make_node(op_type, [name], ["z"], domain=domain)
    of = Inferred(with_node(node, graph, opset=22, domains={"my": 1, "ai.onnx.ml": 1}), tmp_path)
    assert (of("y"), of("z"), of("")) == ("float[4]", "unknown", "unknown")


@pytest.mark.parametrize("ml", [2, 3, 4])
@pytest.mark.parametrize(("name", "sizes"), [("x", "4"), ("own", "..."), ("nowhere", "...")])
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
    tmp_path: Path, ml: int, name: str, sizes: str, attribute: str, labels: Any, dtype: str
) -> None:
    graph = "(int64[4] x) => (int64[4] y) { y = Abs(x) own = my.Own(x) }"
    settings: Any = {"keys_int64s": [1], attribute: labels}
    node = helper.make_node("LabelEncoder", [name], ["z"], domain="ai.onnx.ml", **settings)
    of = Inferred(with_node(node, graph, domains={"my": 1, "ai.onnx.ml": ml}), tmp_path)
    assert (of("y"), of("z")) == ("int64[4]", f"{dtype}[{sizes}]")


def test_a_label_encoder_with_a_graph_keeps_it(tmp_path: Path) -> None:
    inner = parser.parse_graph(
        "inner () => (float[2] a) { a = Constant<value_floats = [1.0, 2.0]>() }"
    )
    node = helper.make_node("LabelEncoder", ["x"], ["z"], domain="ai.onnx.ml", body=inner)
    node.attribute.append(helper.make_attribute("values_floats", [1.0]))
    assert Inferred(with_node(node, domains={"ai.onnx.ml": 3}), tmp_path)("z") == "float[4]"


@pytest.mark.parametrize(
    ("size", "expected"), [(MAX_DIMENSION_SIZE, MAX_DIMENSION_SIZE), (MAX_DIMENSION_SIZE + 1, "?")]
)
def test_a_size_that_no_tensor_can_have_stays_free(
    tmp_path: Path, size: int, expected: int | str
) -> None:
    of = Inferred("(float[n] x) => (float[n] y) { y = Abs(x) }", tmp_path, n=size)
    assert of("y") == f"float[{expected}]"


def test_deep_subgraphs(tmp_path: Path) -> None:
    body = "o0 = Neg(x)"
    for depth in range(25):
        inner = f"b{depth} () => (float[4] o{depth}) {{ {body} }}"
        other = f"c{depth} () => (float[4] q{depth}) {{ q{depth} = Abs(x) }}"
        body = f"o{depth + 1} = If(c) <then_branch = {inner}, else_branch = {other}>"
    with within(seconds=5):
        of = Inferred(f"(bool c, float[4] x) => (float[4] o25) {{ {body} }}", tmp_path)
    assert of("o25") == "float[4]"


def test_a_large_graph_takes_little_time(tmp_path: Path) -> None:
    names = ["x", *(f"v{number}" for number in range(20_000))]
    nodes = [
        helper.make_node("Add" if number % 4 else "MatMul", [before, f"w{number // 4}"], [name])
        for number, (before, name) in enumerate(pairwise(names))
    ]
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info(names[-1], TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.zeros((8, 8), np.float32), f"w{n}") for n in range(5000)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with open_model(saved(model, tmp_path)) as opened:
        graphs = GraphIndex(opened)
        started = time.process_time()
        types = infer_shapes(opened, graphs, {}, [])
        # A quarter of a second on an idle machine.
        assert time.process_time() - started < 1.5
        assert types.of(next(iter(graphs))[1], names[-1]) == TensorType("float", (8, 8))


def test_the_inference_raises_its_first_exception_before_memory_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Without memory for the first one glibc ends the process: 2 of 4 estimates of a graph network.
    shapes._raise_once.cache_clear()
    limits: list[int] = []

    def infer(serialized: bytes, **options: bool) -> ModelProto:
        limits.append(resource.getrlimit(resource.RLIMIT_AS)[0])
        raise RuntimeError("no model")

    monkeypatch.setattr(shapes, "infer_model", infer)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            shapes.infer_limited(b"")
    assert [limit == resource.RLIM_INFINITY for limit in limits] == [True, False, False]
