"""Types that follow from the sizes of the inputs, compared with those that onnxruntime computes."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, helper

from memdiag.model import computed_shapes as module
from memdiag.model.graph_index import GraphIndex, Scope
from memdiag.model.loop_iterations import IterateFunction, LoopState, follow_loop
from memdiag.model.model_file import open_model
from memdiag.model.shapes import infer_shapes
from memdiag.model.tensor_types import TensorType
from tests.builders import build, cases, saved

PARTS = {
    # The number of rows of x, as a list of one number and as a number.
    "ROWS": "s = Shape(x) n1 = Slice(s, axis, first) n = Gather(s, zero)",
    "STACKING": "<body = b (int64 i, bool c, float[p, 3] a) => (bool d, float[p, 3] e, float[q] f) "
    "{ d = Identity(c) e = Sin(a) f = ReduceSum<keepdims = 0>(a, first) }>",
    "GROWING": "<body = b (int64 i, bool c, float[p, 3] a) => (bool d, float[q, 3] e) "
    "{ d = Identity(c) e = Concat<axis = 0>",
}
ROWS = PARTS["ROWS"]
DECIDED = cases(
    """
the depth of a OneHot | $ROWS y = OneHot(k, n1, onoff)
a mask | $ROWS r = Range(zero, n, one) q = Unsqueeze(r, first) y = LessOrEqual(r, q)
an expanded value | $ROWS d = Concat<axis = 0>(two, n1) y = Expand(value, d)
repetitions | $ROWS w = Mul(n1, two) v = Neg(value) y = Tile(v, w)
a state of zeros | $ROWS d = Concat<axis = 0>(two, n1, two) y = ConstantOfShape(d)
a rounded quotient
    $ROWS f = Cast<to = 1>(n) q = Div(f, ten) h = Ceil(q) i = Cast<to = 7>(h)
    e = Unsqueeze(i, axis) y = ConstantOfShape(e)
an operator that only the reference computes
    $ROWS w = Mod(n1, two) c = Sub(two, w) t = CumSum(c, zero) y = ConstantOfShape(t)
several outputs | $ROWS a, b = Split<num_outputs = 2, axis = 0>(s) y = ConstantOfShape(a)
the pairs of a triangle
    $ROWS d = Concat<axis = 0>(n1, n1) o = ConstantOfShape<value = float[1] {1}>(d)
    t = Trilu(o) y = NonZero(t)
what is computed behind them
    $ROWS h = OneHot(k, n1, onoff) t = Transpose(h) w = MatMul(t, h) r = Shape(w)
    y = ConstantOfShape(r)
an operator of the runtime behind them
    $ROWS h = OneHot(k, n1, onoff) y = com.microsoft.FastGelu(h)
the branch that is taken
    $ROWS c = Greater(n, one) y = If(c) <
    then_branch = t () => (float[p] a) { a = ConstantOfShape(n1) },
    else_branch = e () => (float[p] b) { w = Mul(n1, two) b = ConstantOfShape(w) }>
what a loop stacks | $ROWS z, y = Loop(n, yes, x) $STACKING
a list that grows | $ROWS u = Slice(x, axis, first) y = Loop(n, yes, u) $GROWING(a, u) }>
a list that doubles | $ROWS u = Slice(x, axis, first) y = Loop(n, yes, u) $GROWING(a, a) }>
a loop that a counter ends
    $ROWS j, y = Loop(, yes, one)
    <body = b (int64 i, bool c, int64 a) => (bool d, int64 e, float[q] f)
    { e = Add(a, one) d = Less(e, n) f = ConstantOfShape(n1) }>
an iteration that depends on its number
    $ROWS u = Slice(x, axis, first) v, y = Loop(n, yes, u)
    <body = b (int64 i, bool c, float[p, 3] a) => (bool d, float[q, 3] e, float g)
    { d = Identity(c) j = Unsqueeze(i, axis) k1 = Add(j, first) h = Slice(x, axis, k1) e = Sin(h)
    g = ReduceSum<keepdims = 0>(e) }>
a loop without iterations | $ROWS z, y = Loop(zero, yes, x) $STACKING
a loop in a loop
    $ROWS z, y = Loop(n, yes, value)
    <body = b (int64 i, bool c, float[p] a) => (bool d, float[p] e, float[q] f)
    { d = Identity(c) e = Sin(a) w, g = Loop(n, yes, a)
    <body = bb (int64 i2, bool c2, float[p] a2) => (bool d2, float[p] e2, float[p] f2)
    { d2 = Identity(c2) e2 = Cos(a2) f2 = Tan(a2) }> f = ReduceMax<keepdims = 0>(g, axis) }>
""",
    **PARTS,
)
# Sizes that the data decides, and the largest shape where an operator limits them.
OPEN = cases(
    """
a depth that is data | n1 = Reshape(m, rest) y = OneHot(k, n1, onoff)
a length that is data | y = Range(zero, m, one)
random elements: 1 5
    $ROWS d = ConstantOfShape(n1) r = RandomUniformLike(d) g = Round(r) y = NonZero(g)
both branches: 10
    $ROWS c = Greater(m, one) y = If(c) <
    then_branch = t () => (float[p] a) { a = ConstantOfShape(n1) },
    else_branch = e () => (float[p] b) { q = Mul(n1, two) b = ConstantOfShape(q) }>
iterations whose number is data | z, y = Loop(m, yes, x) $STACKING
an end that is data: 5 5
    $ROWS z, y = Loop(n, yes, x)
    <body = b (int64 i, bool c, float[p, 3] a) => (bool d, float[p, 3] e, float[q] f)
    { e = Sin(a) f = ReduceSum<keepdims = 0>(a, first) t = ReduceSum<keepdims = 0>(e)
    d = Less(t, ten) }>
a list that grows by data | y = Loop(m, yes, x) $GROWING(a, x) }>
elements that are not 0: 2 15 | y = NonZero(x)
compressed elements: 15 | b = Cast<to = 9>(k) y = Compress(x, b)
compressed rows: 5 3 | b = Cast<to = 9>(k) y = Compress<axis = 0>(x, b)
unique elements: 7 | a, y = Unique(k)
the largest elements: 5 3 | e = Reshape(m, rest) y, i = TopK<axis = 0>(x, e)
a slice: 5 3 | e = Reshape(m, rest) y = Slice(x, axis, e)
a shape of them: 2 15 | p = NonZero(x) r = Shape(p) y = ConstantOfShape(r)
""",
    **PARTS,
)
CONSTANTS = """int64 zero = {0}, int64 one = {1}, int64[1] axis = {0}, int64[1] first = {1},
    int64[1] two = {2}, int64[1] rest = {-1}, float[1] value = {1}, float[2] onoff = {0, 1},
    float ten = {10}, bool yes = {1}"""


class Computed:
    """The types of a model whose x has 5 rows and whose k has 7, or of another graph."""

    def __init__(
        self,
        body: str,
        folder: Path,
        *,
        counts_largest: bool = False,
        opset: int = 18,
        **sizes: int,
    ) -> None:
        if body.startswith("("):
            self.model = build(body, domains={"f": 1})
        else:
            graph = f"(float[rows, 3] x, int64[keys] k, int64 m) => (y) <{CONSTANTS}> {{ {body} }}"
            self.model = build(graph, opset=opset, domains={"com.microsoft": 1})
            sizes = {"rows": 5, "keys": 7}
        with open_model(saved(self.model, folder)) as opened:
            self.graphs = GraphIndex(opened)
            self.shapes = infer_shapes(
                opened, self.graphs, sizes, [], counts_largest=counts_largest
            )

    def __call__(self, name: str) -> TensorType | None:
        return self.shapes.of(self.graphs.main, name)

    def is_known(self, name: str) -> bool:
        kind = self(name)
        return kind is not None and kind.nbytes is not None

    def in_body(self, name: str) -> TensorType | None:
        return self.shapes.of(self.body, name)

    @property
    def body(self) -> Scope:
        (body,) = (scope for path, scope in self.graphs if path.endswith("/body"))
        return body


def shapes_of_run(model: ModelProto) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all values of the graph in a run."""
    names = [name for node in model.graph.node for name in node.output]
    del model.graph.output[:]
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    x = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)
    feeds = {"x": x, "k": np.arange(7), "m": np.array(0)}
    used = {value.name for value in session.get_inputs()}
    values = session.run(None, {name: feeds[name] for name in used})
    return {name: np.shape(value) for name, value in zip(names, values, strict=True)}


@pytest.mark.parametrize("case", DECIDED)
def test_sizes_that_the_inputs_decide_are_those_of_a_run(tmp_path: Path, case: str) -> None:
    of = Computed(DECIDED[case][1], tmp_path)
    shapes = shapes_of_run(of.model)
    kinds = {name: of(name) for name in shapes}
    assert {name: kind.shape for name, kind in kinds.items() if kind is not None} == shapes


@pytest.mark.parametrize("case", OPEN)
def test_sizes_that_the_data_decides_are_known_at_most_at_their_limit(
    tmp_path: Path, case: str
) -> None:
    largest, body = OPEN[case]
    assert not Computed(body, tmp_path).is_known("y")
    limited = Computed(body, tmp_path, counts_largest=True)
    kind = limited("y")
    assert limited.is_known("y") == bool(largest)
    assert not largest or (kind is not None and kind.shape == tuple(map(int, largest.split())))


def test_boxes_are_limited_by_what_is_asked_for(tmp_path: Path) -> None:
    graph = """(float[2, 100, 4] boxes, float[2, 3, 100] scores) => (int64[n, 3] y)
        <int64[1] most = {20}> { y = NonMaxSuppression(boxes, scores, most) }"""
    of = Computed(graph, tmp_path, counts_largest=True)
    assert of("y") == TensorType("int64", (2 * 3 * 20, 3))


def test_the_values_of_a_loop_are_those_of_its_last_iteration(tmp_path: Path) -> None:
    of = Computed(DECIDED["a list that grows"][1], tmp_path)
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
    of = Computed(OPEN["iterations whose number is data"][1], tmp_path)
    assert of.in_body("e") == of("z") == TensorType("float", (5, 3))
    assert of("y") == TensorType("float", (None, 5))
    assert of.body not in of.shapes.runs


@pytest.mark.parametrize(("nodes", "known"), [(6, 2), (5, 1)])
def test_each_call_of_a_function_has_its_own_sizes_up_to_a_limit(
    nodes: int, known: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CALLED", nodes)
    graph = """(float[n, 4] x, float[m, 4] z) => (float[p] y, float[q] w)
    { y = f.zeros(x) w = f.zeros(z) }
    <domain: "f", opset_import: ["": 17]> zeros (v) => (o)
    { s = Shape(v) t = ReduceProd<keepdims = 1>(s) o = ConstantOfShape(t) }"""
    of = Computed(graph, tmp_path, n=3, m=5)
    for index, (name, size) in enumerate((("y", 12), ("w", 20))):
        assert of(name) == TensorType("float", (size if index < known else None,))


def test_values_beyond_the_limits_stay_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triangle = DECIDED["the pairs of a triangle"][1]
    assert Computed(triangle, tmp_path)("y") == TensorType("int64", (2, 15))
    for limit, few in (("MAX_ELEMENTS", 24), ("MAX_COMPUTED", 5), ("MAX_INFERRED", 0)):
        with monkeypatch.context() as patched:
            patched.setattr(module, limit, few)
            assert not Computed(triangle, tmp_path).is_known("y")


@pytest.mark.parametrize(("sizes", "size"), [({"n": 3}, None), ({"n": 3, "a": 1, "b": 1}, 6)])
def test_without_sizes_of_the_inputs_nothing_is_computed(
    tmp_path: Path, sizes: dict[str, Any], size: int | None
) -> None:
    graph = """(float[n] x, float[a, b] z) => (float[m] y) <float two = {2}>
    { s = Shape(x) f = Cast<to = 1>(s) d = Mul(f, two) t = Cast<to = 7>(d)
    y = ConstantOfShape(t) }"""
    assert Computed(graph, tmp_path, **sizes)("y") == TensorType("float", (size,))


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
    assert iterations
    assert not of.is_known("y")


@pytest.mark.parametrize(
    "operator",
    ['Einsum<equation = "a,b,c,d->">(r, r, r, r)', 'Resize<mode = "cubic">(r, , e)'],
)
def test_what_may_take_without_end_is_not_computed(tmp_path: Path, operator: str) -> None:
    body = (
        f"{ROWS} k1 = Mul(n, k2) f = Range(zero, k1, one) r = Cast<to = 1>(f) e = Cast<to = 1>(n1) "
    )
    body += f"h = {operator} i1 = Cast<to = 7>(h) j = Reshape(i1, rest) y = ConstantOfShape(j)"
    assert not Computed(body.replace("k2", "n"), tmp_path).is_known("y")


@pytest.mark.parametrize(("size", "is_known"), [((1 << 31) - 1, True), (1 << 32, False)])
def test_a_count_beyond_int64_is_not_known(tmp_path: Path, size: int, *, is_known: bool) -> None:
    graph = """(float[n, n] x) => (float[m] y) <int64 zero = {0}, int64[1] one = {1}>
    { s = Size(x) d = Mul(s, zero) t = Reshape(d, one) y = ConstantOfShape(t) }"""
    assert Computed(graph, tmp_path, n=size)("y") == TensorType("float", (0 if is_known else None,))
