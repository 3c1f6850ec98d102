import numpy as np
import pytest
from onnx import ModelProto

from memdiag.model.graph_index import Graph, main_scope
from memdiag.model.index_ranges import IndexLimit, InputConstraints, input_constraints
from tests.builders import build

DOMAINS = {"com.microsoft": 1, "local": 1}


def model(
    body: str, *, inputs: str = "int64[n] ids", functions: str = "", **rows: int
) -> ModelProto:
    """Return a model of the nodes in `body`; `rows` adds float weights [rows, 2] by name."""
    graph = f"({inputs}) => (float[m] y) {{ {body} }}"
    weights = {name: np.zeros((count, 2), np.float32) for name, count in rows.items()}
    return build(graph, opset=18, domains=DOMAINS, functions=functions, weights=weights)


def asked(proto: ModelProto, name: str = "ids", **shapes: tuple[int, ...]) -> InputConstraints:
    return input_constraints(
        main_scope(Graph(proto.graph), map(Graph, proto.functions)), name, shapes
    )


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ("y = Gather (W, ids)", IndexLimit(10, "rows of W")),
        ("y = Gather <axis = 1> (W, ids)", IndexLimit(2, "axis 1 of W")),
        ("y = Gather <axis = -1> (W, ids)", IndexLimit(2, "axis 1 of W")),
        ("y = GatherElements (W, ids)", IndexLimit(10, "rows of W")),
        ("y = ScatterElements (W, ids, W)", IndexLimit(10, "rows of W")),
        ("y = GatherND (W, ids)", IndexLimit(2, "the smallest axis of W")),
        ("y = ScatterND (W, ids, W)", IndexLimit(2, "the smallest axis of W")),
        ("T = Transpose (W) y = Gather (T, ids)", IndexLimit(2, "rows of T")),
        ("T = Transpose <perm = [0, 1]> (W) y = Gather (T, ids)", IndexLimit(10, "rows of T")),
        ("C = Cast <to = 10> (W) y = Gather (C, ids)", IndexLimit(10, "rows of C")),
        ("d = Constant <value = int64[1] {7}> () y = OneHot (ids, d, W)",
         IndexLimit(7, "the depth of a OneHot")),
        ("d = Constant <value_int = 7> () y = OneHot (ids, d, W)",
         IndexLimit(7, "the depth of a OneHot")),
        ("y = com.microsoft.RotaryEmbedding (V, ids, W, W)", IndexLimit(10, "rows of W")),
        ("y = RotaryEmbedding (V, W, W, ids)", IndexLimit(10, "rows of W")),
        ("y = com.microsoft.EmbedLayerNormalization (ids, s, W, V, V, g, b)",
         IndexLimit(10, "rows of W")),
        ("y = com.microsoft.EmbedLayerNormalization (s, ids, V, V, W, g, b)",
         IndexLimit(10, "rows of W")),
        ("y = com.microsoft.GatherBlockQuantized (W, ids, s)", IndexLimit(10, "rows of W")),
        ("y = Gather (unknown, ids)", IndexLimit(None, "rows of unknown")),
    ],
)  # fmt: skip
def test_operators_that_take_an_index(body: str, limit: IndexLimit) -> None:
    assert asked(model(body, W=10, V=50)).smallest == limit


@pytest.mark.parametrize(
    "body",
    [
        "y = Gather (ids, W)",
        "y = Add (ids, ids)",
        "h = Mul (ids, ids) y = Gather (W, h)",
        "y = local.Gather (W, ids)",
        "y = OneHot (other, d, ids)",
    ],
)
def test_what_is_no_index(body: str) -> None:
    assert asked(model(body, W=10)) == InputConstraints((), ())


@pytest.mark.parametrize(
    "steps",
    [
        "i = Cast <to = 6> (ids)",
        "i = Identity (ids)",
        "a = Reshape (ids, s) b = Unsqueeze (a, s) c = Squeeze (b, s) i = Slice (c, s, s)",
        "a = Concat <axis = 0> (other, ids) i = Transpose (a)",
        "a = Flatten (ids) i = Expand (a, s)",
        "a, i = Split (ids)",
        "i = Where (cond, other, ids)",
        "a = Clip (ids) b = Max (other, a) i = Gather (b, s)",
    ],
)
def test_values_that_only_move_keep_their_limit(steps: str) -> None:
    assert asked(model(f"{steps} y = Gather (W, i)", W=10)).smallest == IndexLimit(10, "rows of W")


@pytest.mark.parametrize(
    ("body", "limits"),
    [
        # A condition or a shape is no value that moves.
        ("i = Where (ids, a, b)", []),
        ("i = Reshape (a, ids)", []),
        # What is added to an index lowers its limit.
        ("c = Constant <value_int = 2> () i = Add (c, ids)", [8]),
        ("c = Constant <value_int = 2> () i = Sub (ids, c)", [10]),
        ("c = Constant <value_int = 2> () i = Sub (c, ids)", []),
        ("i = Add (c, ids)", []),
    ],
)
def test_what_else_becomes_of_a_limit(body: str, limits: list[int]) -> None:
    found = asked(model(f"{body} y = Gather (W, i)", W=10)).limits
    assert list(found) == [IndexLimit(limit, "rows of W") for limit in limits]


def test_the_smallest_of_several_limits_counts() -> None:
    proto = model("a = Gather (W, ids) b = Gather (V, ids) c = Gather (u, ids)", W=10, V=7)
    assert asked(proto).smallest == IndexLimit(7, "rows of V")
    assert len(asked(proto).limits) == 3


def test_a_table_that_is_another_input() -> None:
    proto = model("y = Gather (x, ids)", inputs="int64[n] ids, float[k, 3] x")
    assert asked(proto, x=(6, 3)).smallest == IndexLimit(6, "rows of x")
    assert asked(proto).smallest == IndexLimit(None, "rows of x")


def test_into_the_branches_of_an_if_and_out_again() -> None:
    proto = model(
        "i = If (cond) <then_branch = t () => (int64[n] a) { a = Identity (ids) },"
        " else_branch = e () => (int64[n] b) { b = Identity (other) }>"
        " y = Gather (W, i)",
        W=10,
    )
    assert asked(proto).smallest == IndexLimit(10, "rows of W")
    inside = model(
        "y = If (cond) <then_branch = t () => (float[n] a) { a = Gather (W, ids) },"
        " else_branch = e () => (float[n] b) { b = Identity (V) }>",
        W=10,
    )
    assert asked(inside).smallest == IndexLimit(10, "rows of W")


def test_a_name_of_the_subgraphs_own_is_another_value() -> None:
    proto = model(
        "y = If (cond) <then_branch = t () => (float[n] a) { ids = Abs (z) a = Gather (W, ids) },"
        " else_branch = e () => (float[n] b) { b = Identity (V) }>",
        W=10,
    )
    assert asked(proto).limits == ()


def test_around_the_iterations_of_a_loop() -> None:
    proto = model(
        "f, z = Loop (m, c, other, ids) <body = b (int64 k, bool c0, int64[n] p, int64[n] q)"
        " => (bool c1, int64[n] q1, int64[n] p1)"
        " { c1 = Identity (c0) q1 = Identity (q) p1 = Identity (p) }>"
        " y = Gather (W, f) w = Gather (V, z)",
        W=10,
        V=5,
    )
    # ids is q; its value becomes p of the next iteration, and comes out as f.
    assert {limit.table for limit in asked(proto).limits} == {"rows of W", "rows of V"}
    assert asked(proto, "other").smallest == IndexLimit(5, "rows of V")
    assert asked(proto, "m").limits == ()


def test_through_a_scan() -> None:
    proto = model(
        "s, z = Scan <num_scan_inputs = 1, body = b (float[n] p, int64 q)"
        " => (float[n] p1, float[n] o) { p1 = Identity (p) o = Gather (W, q) }> (x, ids)",
        W=10,
    )
    assert asked(proto).smallest == IndexLimit(10, "rows of W")


def test_into_a_function_and_out_again() -> None:
    functions = (
        '<domain: "local", opset_import: ["": 18]> Embed (table, i) => (r, i2)'
        " { r = Gather (table, i) i2 = Identity (i) }"
    )
    proto = model("y, j = local.Embed (W, ids) z = Gather (V, j)", functions=functions, W=10, V=4)
    assert set(asked(proto).limits) == {IndexLimit(10, "rows of table"), IndexLimit(4, "rows of V")}


def test_functions_that_call_each_other_come_to_an_end() -> None:
    functions = (
        '<domain: "local", opset_import: ["local": 1]> F (i) => (r)'
        " { a = local.F (i) r = local.F (a) }"
    )
    assert asked(model("y = local.F (ids)", functions=functions)).limits == ()


@pytest.mark.parametrize(
    ("body", "equals"),
    [
        ("c = Constant <value_int = 16000> () e = Equal (ids, c)", (16000.0,)),
        ("c = Constant <value = int64[2] {8, 16}> () e = Equal (c, ids)", (8.0, 16.0)),
        ("c = Constant <value_int = 9> () d = Unsqueeze (c, s) e = Equal (ids, d)", (9.0,)),
        ("c = Constant <value_int = 9> () d = Identity (ids) e = Equal (d, c)", (9.0,)),
        ("c = Constant <value_int = 9> () e = Less (ids, c)", ()),
        ("e = Equal (ids, other)", ()),
        ("c = Constant <value_string = \"a\"> () e = Equal (ids, c)", ()),
    ],
)  # fmt: skip
def test_constants_that_a_value_is_compared_with(body: str, equals: tuple[float, ...]) -> None:
    assert asked(model(body)).equals == equals


def test_a_value_with_many_uses_is_followed_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memdiag.model.index_ranges.MAX_VISITS", 5)
    chain = " ".join(f"v{step + 1} = Identity (v{step})" for step in range(9))
    proto = model(f"v0 = Identity (ids) {chain} y = Gather (W, v9)", W=10)
    assert asked(proto).limits == ()
    monkeypatch.setattr("memdiag.model.index_ranges.MAX_VISITS", 50)
    assert asked(proto).smallest == IndexLimit(10, "rows of W")
