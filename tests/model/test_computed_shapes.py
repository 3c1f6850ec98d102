"""Types that follow from the sizes of the inputs, compared with those that onnxruntime computes."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, parser

from memdiag.model import computed_shapes as module
from memdiag.model.graph_index import GraphIndex, Scope
from memdiag.model.loop_iterations import IterateFunction, LoopState, follow_loop
from memdiag.model.model_file import open_model
from memdiag.model.shapes import ModelShapes, infer_shapes
from memdiag.model.tensor_types import TensorType

CONSTANTS = """int64 zero = {0}, int64 one = {1}, int64[1] axis = {0}, int64[1] first = {1},
    int64[1] two = {2}, int64[1] rest = {-1}, float[1] value = {1}, float[2] onoff = {0, 1},
    float ten = {10}, bool yes = {1}"""

# The number of rows of x, as a list of one number and as a number.
ROWS = "s = Shape(x) n1 = Slice(s, axis, first) n = Gather(s, zero) "

LOOP = "<body = b (int64 i, bool c, %s) => (bool d, %s) { d = Identity(c) %s }>"

DECIDED = {
    "the depth of a OneHot": f"{ROWS} y = OneHot(k, n1, onoff)",
    "a mask": f"{ROWS} r = Range(zero, n, one) q = Unsqueeze(r, first) y = LessOrEqual(r, q)",
    "an expanded value": f"{ROWS} d = Concat<axis = 0>(two, n1) y = Expand(value, d)",
    "repetitions": f"{ROWS} w = Mul(n1, two) v = Neg(value) y = Tile(v, w)",
    "a state of zeros": f"{ROWS} d = Concat<axis = 0>(two, n1, two) y = ConstantOfShape(d)",
    "a rounded quotient": f"{ROWS} f = Cast<to = 1>(n) q = Div(f, ten) h = Ceil(q) "
    "i = Cast<to = 7>(h) e = Unsqueeze(i, axis) y = ConstantOfShape(e)",
    "an operator that only the reference computes": f"{ROWS} w = Mod(n1, two) c = Sub(two, w) "
    "t = CumSum(c, zero) y = ConstantOfShape(t)",
    "several outputs": f"{ROWS} a, b = Split<num_outputs = 2, axis = 0>(s) y = ConstantOfShape(a)",
    "the pairs of a triangle": f"{ROWS} d = Concat<axis = 0>(n1, n1) o = ConstantOfShape<value = "
    "float[1] {1}>(d) t = Trilu(o) y = NonZero(t)",
    "what is computed behind them": f"{ROWS} h = OneHot(k, n1, onoff) t = Transpose(h) "
    "w = MatMul(t, h) r = Shape(w) y = ConstantOfShape(r)",
    "an operator of the runtime behind them": f"{ROWS} h = OneHot(k, n1, onoff) "
    "y = com.microsoft.FastGelu(h)",
    "the branch that is taken": f"{ROWS} c = Greater(n, one) y = If(c) <"
    "then_branch = t () => (float[p] a) { a = ConstantOfShape(n1) },"
    "else_branch = e () => (float[p] b) { w = Mul(n1, two) b = ConstantOfShape(w) }>",
    "what a loop stacks": f"{ROWS} z, y = Loop(n, yes, x) "
    + LOOP
    % (
        "float[p, 3] a",
        "float[p, 3] e, float[q] f",
        "e = Sin(a) f = ReduceSum<keepdims = 0>(a, first)",
    ),
    "a list that grows": f"{ROWS} u = Slice(x, axis, first) y = Loop(n, yes, u) "
    + LOOP % ("float[p, 3] a", "float[q, 3] e", "e = Concat<axis = 0>(a, u)"),
    "a list that doubles": f"{ROWS} u = Slice(x, axis, first) y = Loop(n, yes, u) "
    + LOOP % ("float[p, 3] a", "float[q, 3] e", "e = Concat<axis = 0>(a, a)"),
    "a loop that a counter ends": f"{ROWS} j, y = Loop(, yes, one) "
    "<body = b (int64 i, bool c, int64 a) => (bool d, int64 e, float[q] f) "
    "{ e = Add(a, one) d = Less(e, n) f = ConstantOfShape(n1) }>",
    "an iteration that depends on its number": f"{ROWS} u = Slice(x, axis, first) "
    "v, y = Loop(n, yes, u) <body = b (int64 i, bool c, float[p, 3] a) => "
    "(bool d, float[q, 3] e, float g) { d = Identity(c) j = Unsqueeze(i, axis) "
    "k1 = Add(j, first) h = Slice(x, axis, k1) e = Sin(h) g = ReduceSum<keepdims = 0>(e) }>",
    "a loop without iterations": f"{ROWS} z, y = Loop(zero, yes, x) "
    + LOOP
    % (
        "float[p, 3] a",
        "float[p, 3] e, float[q] f",
        "e = Sin(a) f = ReduceSum<keepdims = 0>(a, first)",
    ),
    "a loop in a loop": f"{ROWS} z, y = Loop(n, yes, value) <body = b (int64 i, bool c, "
    "float[p] a) => (bool d, float[p] e, float[q] f) { d = Identity(c) e = Sin(a) "
    "w, g = Loop(n, yes, a) <body = bb (int64 i2, bool c2, float[p] a2) => "
    "(bool d2, float[p] e2, float[p] f2) { d2 = Identity(c2) e2 = Cos(a2) f2 = Tan(a2) }> "
    "f = ReduceMax<keepdims = 0>(g, axis) }>",
}

OPEN = {
    "a depth that is data": "n1 = Reshape(m, rest) y = OneHot(k, n1, onoff)",
    "a length that is data": "y = Range(zero, m, one)",
    "elements that are not 0": "y = NonZero(x)",
    "random elements": f"{ROWS} d = ConstantOfShape(n1) r = RandomUniformLike(d) "
    "g = Round(r) y = NonZero(g)",
    "both branches": f"{ROWS} c = Greater(m, one) y = If(c) <"
    "then_branch = t () => (float[p] a) { a = ConstantOfShape(n1) },"
    "else_branch = e () => (float[p] b) { q = Mul(n1, two) b = ConstantOfShape(q) }>",
    "iterations whose number is data": "z, y = Loop(m, yes, x) "
    + LOOP
    % (
        "float[p, 3] a",
        "float[p, 3] e, float[q] f",
        "e = Sin(a) f = ReduceSum<keepdims = 0>(a, first)",
    ),
    "an end that is data": f"{ROWS} z, y = Loop(n, yes, x) <body = b (int64 i, bool c, "
    "float[p, 3] a) => (bool d, float[p, 3] e, float[q] f) { e = Sin(a) "
    "f = ReduceSum<keepdims = 0>(a, first) t = ReduceSum<keepdims = 0>(e) d = Less(t, ten) }>",
    "a list that grows by data": "y = Loop(m, yes, x) "
    + LOOP % ("float[p, 3] a", "float[q, 3] e", "e = Concat<axis = 0>(a, x)"),
}


class Computed:
    """The types of a model whose x has 5 rows and whose k has 7."""

    def __init__(
        self, body: str, folder: Path, *, counts_largest: bool = False, opset: int = 18
    ) -> None:
        text = f"""<ir_version: 9, opset_import: ["": {opset}, "com.microsoft": 1]>
        g (float[rows, 3] x, int64[keys] k, int64 m) => (y) <{CONSTANTS}> {{ {body} }}"""
        self.model = parser.parse_model(text.replace("(y)", "(float y)"))
        self.model.graph.output[0].type.Clear()
        path = folder / "model.onnx"
        onnx.save(self.model, path)
        with open_model(path) as opened:
            self.graphs = GraphIndex(opened)
            sizes = {"rows": 5, "keys": 7}
            self.shapes: ModelShapes = infer_shapes(
                opened, self.graphs, sizes, [], counts_largest=counts_largest
            )

    def __call__(self, name: str) -> TensorType | None:
        return self.shapes.of(self.graphs.main, name)

    def in_body(self, name: str) -> TensorType | None:
        ((_, body),) = ((path, scope) for path, scope in self.graphs if path.endswith("/body"))
        return self.shapes.of(body, name)

    @property
    def body(self) -> Scope:
        (body,) = (scope for path, scope in self.graphs if path.endswith("/body"))
        return body

    def run(self, count: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all values of the graph in a run with `count` for m."""
        graph = self.model.graph
        names = [name for node in graph.node for name in node.output]
        del graph.output[:]
        graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
        session = onnxruntime.InferenceSession(
            self.model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        feeds = {
            "x": np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3),
            "k": np.arange(7),
            "m": np.array(count),
        }
        used = {each.name for each in session.get_inputs()}
        values = session.run(None, {name: feeds[name] for name in used})
        return {name: np.shape(value) for name, value in zip(names, values, strict=True)}


@pytest.mark.parametrize("case", DECIDED)
def test_sizes_that_the_inputs_decide_are_those_of_a_run(tmp_path: Path, case: str) -> None:
    of = Computed(DECIDED[case], tmp_path)
    shapes = of.run(0)
    kinds = {name: of(name) for name in shapes}
    assert {name: kind.shape for name, kind in kinds.items() if kind is not None} == shapes


@pytest.mark.parametrize("case", OPEN)
def test_sizes_that_the_data_decides_are_not_known(tmp_path: Path, case: str) -> None:
    kind = Computed(OPEN[case], tmp_path)("y")
    assert kind is None or kind.nbytes is None


@pytest.mark.parametrize(
    ("body", "largest"),
    [
        ("y = NonZero(x)", (2, 15)),
        ("b = Cast<to = 9>(k) y = Compress(x, b)", (15,)),
        ("b = Cast<to = 9>(k) y = Compress<axis = 0>(x, b)", (5, 3)),
        ("a, y = Unique(k)", (7,)),
        ("e = Reshape(m, rest) y, i = TopK<axis = 0>(x, e)", (5, 3)),
        ("e = Reshape(m, rest) y = Slice(x, axis, e)", (5, 3)),
        ("p = NonZero(x) r = Shape(p) y = ConstantOfShape(r)", (2, 15)),
        (OPEN["both branches"], (10,)),
        (OPEN["an end that is data"], (5, 5)),
    ],
)
def test_sizes_that_an_operator_limits_may_be_counted_at_the_limit(
    tmp_path: Path, body: str, largest: tuple[int, ...]
) -> None:
    unknown = Computed(body, tmp_path)("y")
    assert unknown is None or unknown.nbytes is None
    kind = Computed(body, tmp_path, counts_largest=True)("y")
    assert kind is not None
    assert kind.shape == largest


def test_no_operator_limits_the_others(tmp_path: Path) -> None:
    for case in ("a depth that is data", "a length that is data", "a list that grows by data"):
        kind = Computed(OPEN[case], tmp_path, counts_largest=True)("y")
        assert kind is None or kind.nbytes is None


def test_boxes_are_limited_by_what_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    text = """<ir_version: 9, opset_import: ["": 17]> g (float[2, 100, 4] boxes,
        float[2, 3, 100] scores) => (int64[n, 3] y) <int64[1] most = {20}>
        { y = NonMaxSuppression(boxes, scores, most) }"""
    onnx.save(parser.parse_model(text), path)
    with open_model(path) as opened:
        graphs = GraphIndex(opened)
        shapes = infer_shapes(opened, graphs, {}, [], counts_largest=True)
        assert shapes.of(graphs.main, "y") == TensorType("int64", (2 * 3 * 20, 3))


def test_the_values_of_a_loop_are_those_of_its_last_iteration(tmp_path: Path) -> None:
    of = Computed(DECIDED["a list that grows"], tmp_path)
    assert of.shapes.runs[of.body] == 5
    assert of.in_body("a") == TensorType("float", (5, 3))
    assert of.in_body("e") == TensorType("float", (6, 3))
    assert of.shapes.first_iterations[of.body]["e"] == TensorType("float", (2, 3))
    # The runtime knows the sizes of no iteration when it plans.
    assert "e" not in of.shapes.axes_of_scope(of.body)


def test_a_loop_that_shrinks_has_its_largest_values_in_the_first_iteration(tmp_path: Path) -> None:
    body = (
        f"{ROWS} y = Loop(n, yes, x) <body = b (int64 i, bool c, float[p, 3] a) => "
        "(bool d, float[q, 3] e) { d = Identity(c) j = Unsqueeze(i, axis) h = Slice(x, j, n1) "
        "g = Cos(h) e = Slice(g, axis, first) }>"
    )
    of = Computed(body, tmp_path)
    assert of.in_body("g") == TensorType("float", (5, 3))
    assert of.body not in of.shapes.first_iterations


def test_what_does_not_change_is_known_without_the_number_of_iterations(tmp_path: Path) -> None:
    of = Computed(OPEN["iterations whose number is data"], tmp_path)
    assert of.in_body("e") == of("z") == TensorType("float", (5, 3))
    assert of("y") == TensorType("float", (None, 5))
    assert of.body not in of.shapes.runs


@pytest.mark.parametrize(("nodes", "known"), [(6, 2), (5, 1)])
def test_each_call_of_a_function_has_its_own_sizes_up_to_a_limit(
    nodes: int, known: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CALLED", nodes)
    text = """
    <ir_version: 9, opset_import: ["": 17, "f": 1]>
    g (float[n, 4] x, float[m, 4] z) => (float[p] y, float[q] w)
    { y = f.zeros(x) w = f.zeros(z) }
    <domain: "f", opset_import: ["": 17]> zeros (v) => (o)
    { s = Shape(v) t = ReduceProd<keepdims = 1>(s) o = ConstantOfShape(t) }
    """
    path = tmp_path / "model.onnx"
    onnx.save(parser.parse_model(text), path)
    with open_model(path) as opened:
        graphs = GraphIndex(opened)
        shapes = infer_shapes(opened, graphs, {"n": 3, "m": 5}, [])
        for index, (name, size) in enumerate((("y", 12), ("w", 20))):
            expected = size if index < known else None
            assert shapes.of(graphs.main, name) == TensorType("float", (expected,))


def test_values_beyond_the_limits_stay_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triangle = DECIDED["the pairs of a triangle"]
    assert Computed(triangle, tmp_path)("y") == TensorType("int64", (2, 15))
    for limit, few in (("MAX_ELEMENTS", 24), ("MAX_COMPUTED", 5), ("MAX_INFERRED", 0)):
        with monkeypatch.context() as patched:
            patched.setattr(module, limit, few)
            kind = Computed(triangle, tmp_path)("y")
            assert kind is None or kind.nbytes is None


def test_without_sizes_of_the_inputs_nothing_is_computed(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    text = """<ir_version: 9, opset_import: ["": 17]> g (float[n] x, float[a, b] z) => (float[m] y)
    <float two = {2}> { s = Shape(x) f = Cast<to = 1>(s) d = Mul(f, two) t = Cast<to = 7>(d)
    y = ConstantOfShape(t) }"""
    onnx.save(parser.parse_model(text), path)
    with open_model(path) as opened:
        graphs = GraphIndex(opened)
        unknown = infer_shapes(opened, graphs, {"n": 3}, [])
        assert unknown.of(graphs.main, "y") == TensorType("float", (None,))
        known = infer_shapes(opened, graphs, {"n": 3, "a": 1, "b": 1}, [])
        assert known.of(graphs.main, "y") == TensorType("float", (6,))


@pytest.mark.parametrize(("end", "size"), [("n", 5), ("m", None)])
def test_a_comparison_of_an_older_opset_has_a_size(
    tmp_path: Path, end: str, size: int | None
) -> None:
    body = f"{ROWS} r = Range(zero, {end}, one) y = GreaterOrEqual(r, zero)"
    assert Computed(body, tmp_path, opset=14)("y") == TensorType("bool", (size,))


def test_loops_in_loops_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    iterations = 0

    def counted(
        iterate: IterateFunction, first: LoopState, limit: int | None
    ) -> tuple[int | None, LoopState]:
        def one(index: int | None, state: LoopState) -> tuple[bool | None, LoopState]:
            nonlocal iterations
            iterations += 1
            assert iterations < 2000
            return iterate(index, state)

        return follow_loop(one, first, limit)

    monkeypatch.setattr(module, "MAX_VISITED", 2000)
    monkeypatch.setattr(module, "follow_loop", counted)
    body = "e = Concat<axis = 0>(a, a1)"
    for depth in range(8):
        inner = f"<body = b{depth} (int64 i{depth}, bool c{depth}, float[p] a{depth}) => "
        inner += f"(bool d{depth}, float[q] e) {{ d{depth} = Identity(c{depth}) {body} }}>"
        body = f"e = Loop(n, yes, a{depth + 1}) {inner}"
    of = Computed(
        f"{ROWS} a8 = Neg(value) a1 = Neg(value) {body.replace('e = Loop', 'y = Loop', 1)}",
        tmp_path,
    )
    kind = of("y")
    assert iterations
    assert kind is None or kind.nbytes is None


@pytest.mark.parametrize(
    "operator",
    ['Einsum<equation = "a,b,c,d->">(r, r, r, r)', 'Resize<mode = "cubic">(r, , e)'],
)
def test_what_may_take_without_end_is_not_computed(tmp_path: Path, operator: str) -> None:
    body = (
        f"{ROWS} k1 = Mul(n, k2) f = Range(zero, k1, one) r = Cast<to = 1>(f) e = Cast<to = 1>(n1) "
    )
    body += f"h = {operator} i1 = Cast<to = 7>(h) j = Reshape(i1, rest) y = ConstantOfShape(j)"
    kind = Computed(body.replace("k2", "n"), tmp_path)("y")
    assert kind is None or kind.nbytes is None


@pytest.mark.parametrize(("size", "is_known"), [((1 << 31) - 1, True), (1 << 32, False)])
def test_a_count_beyond_int64_is_not_known(tmp_path: Path, size: int, *, is_known: bool) -> None:
    path = tmp_path / "model.onnx"
    text = """<ir_version: 9, opset_import: ["": 17]> g (float[n, n] x) => (float[m] y)
    <int64 zero = {0}, int64[1] one = {1}> { s = Size(x) d = Mul(s, zero) t = Reshape(d, one)
    y = ConstantOfShape(t) }"""
    onnx.save(parser.parse_model(text), path)
    with open_model(path) as opened:
        graphs = GraphIndex(opened)
        found = infer_shapes(opened, graphs, {"n": size}, []).of(graphs.main, "y")
    assert found == TensorType("float", (0 if is_known else None,))
