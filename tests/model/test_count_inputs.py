"""Counts as free dimensions: how they are found, given, chosen and estimated."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import memdiag
from memdiag.errors import UsageError
from memdiag.model.axis_roles import axis_roles
from memdiag.model.count_inputs import USUAL_BOXES, USUAL_ITERATIONS, count_inputs
from memdiag.model.graph_index import GraphIndex
from memdiag.model.inputs import make_array, plan_inputs
from memdiag.model.model_file import open_model
from memdiag.model.shapes import infer_shapes
from tests.builders import build, saved

FORMS = {
    "a scalar": ("int64 steps", ""),
    "one element": ("int64[1] steps", "count = Squeeze (steps)"),
    "of 32 bits": ("int32 steps", "count = Cast <to=7> (steps)"),
}


def loop(folder: Path, declared: str, nodes: str) -> Path:
    """Write a loop that runs `count` times, or as often as the input says."""
    count = "count" if nodes else "steps"
    graph = f"""({declared}, float[batch, 64] x)
        => (float[batch, 64] y, float[n, batch, 64] rows) {{
        true = Constant <value = bool {{1}}> () {nodes} y, rows = Loop ({count}, true, x)
        <body = b (int64 i, bool c, float[batch, 64] a)
        => (bool d, float[batch, 64] e, float[batch, 64] row)
        {{ d = Identity (c) e = Erf (a) row = Sin (a) }}> }}"""
    return saved(build(graph), folder)


@pytest.mark.parametrize("form", FORMS)
def test_an_input_that_says_how_often_a_loop_runs_is_a_dimension(tmp_path: Path, form: str) -> None:
    path = loop(tmp_path, *FORMS[form])
    with open_model(path) as file:
        assert [*count_inputs(file.graph)] == ["steps"]
        role = axis_roles(file.graph)["steps"]
        assert (role.name, role.size) == ("iterations", USUAL_ITERATIONS)
        plan, _ = plan_inputs(file, dims={"steps": 40}, given={})
        assert np.all(make_array(plan, 0) == 40)
        assert make_array(plan, 0).size == 1


@pytest.mark.parametrize(
    ("declared", "nodes"),
    [
        ("int64[m] steps", "count = ReduceMax <keepdims=0> (steps)"),
        ("int64 steps", "count = Constant <value = int64 {3}> () unused = Identity (steps)"),
        ("float steps", "count = Cast <to=7> (steps)"),
    ],
)
def test_other_inputs_are_no_counts(tmp_path: Path, declared: str, nodes: str) -> None:
    with open_model(loop(tmp_path, declared, nodes)) as file:
        assert count_inputs(file.graph) == {}


BOXES = "(float[1, n, 4] x, float[1, 2, n] s, int64 most) => (int64[m, 3] y)"
LARGEST = "(float[n] x, int64[1] k) => (float[m] y)"


@pytest.mark.parametrize(
    ("graph", "name", "size", "shape"),
    [
        (f"{LARGEST} {{ y, i = TopK (x, k) }}", "k", 1, (5,)),
        (
            f"{BOXES} {{ b = Squeeze (most) y = NonMaxSuppression (x, s, b) }}",
            *("most", USUAL_BOXES, (10, 3)),
        ),
        # It is no K, but a limit of it.
        (f"{LARGEST} <int64[1] all = {{9}}> {{ l = Min (k, all) y, i = TopK (x, l) }}", "", 0, ()),
        (f"{BOXES} {{ y = NonMaxSuppression (x, s) z = Add (most, most) }}", "", 0, ()),
    ],
)
def test_an_input_that_says_how_many_values_a_node_puts_out_is_a_dimension(
    tmp_path: Path, graph: str, name: str, size: int, shape: tuple[int, ...]
) -> None:
    with open_model(saved(build(graph), tmp_path)) as file:
        assert [*count_inputs(file.graph)] == ([name] if name else [])
        if name:
            role = axis_roles(file.graph)[name]
            assert (role.name, role.size) == ("count", size)
            graphs, sizes = GraphIndex(file), {"n": 30, name: 5}
            found = infer_shapes(file, graphs, sizes, [], counts_largest=True)
            kind = found.of(graphs.main, "y")
            assert kind is not None
            assert kind.shape == shape


def test_an_array_of_the_user_sets_the_count(tmp_path: Path) -> None:
    path = loop(tmp_path, *FORMS["a scalar"])
    with open_model(path) as file:
        plan_inputs(file, dims={}, given={"steps": np.array(5)})
        with pytest.raises(UsageError, match="both as an array and as a size"):
            plan_inputs(file, dims={"steps": 4}, given={"steps": np.array(5)})
    profile = memdiag.profile(path, inputs={"steps": np.array(5)}, runs=1, xray="none")
    assert {each.name: each.size for each in profile.dimensions}["steps"] == 5


def test_estimates_and_profiles_take_it_by_name_and_by_role(tmp_path: Path) -> None:
    path = loop(tmp_path, *FORMS["a scalar"])
    sizes = {"batch": 1024, "iterations": 100}
    found = memdiag.estimate(path, dims=sizes).point
    assert found.dims == {"batch": 1024, "steps": 100}
    assert found.unknown_values == 0
    # Each iteration puts out 256 KiB, which are put together at the end.
    less = memdiag.estimate(path, dims={**sizes, "iterations": 50}).point
    assert found.peak_bytes - less.peak_bytes > 50 * (256 << 10)
    profile = memdiag.profile(path, dims=sizes, runs=2, xray="none")
    assert profile.estimate is not None
    assert profile.estimate.peak_bytes == pytest.approx(found.peak_bytes, rel=0.01)
    measured = profile.peak_rss_bytes - profile.baseline_rss_bytes
    assert found.low_bytes < measured < found.high_bytes


@pytest.mark.parametrize("damage", ["an input without a name", "a body without some outputs"])
def test_damaged_loops_are_read(tmp_path: Path, damage: str) -> None:
    path = loop(tmp_path, *FORMS["a scalar"])
    model = onnx.load(path)
    (node,) = (node for node in model.graph.node if node.op_type == "Loop")
    if damage.startswith("an input"):
        model.graph.input[0].name = node.input[0] = ""
    else:
        del node.attribute[0].g.output[1:]
    with open_model(saved(model, tmp_path)) as file:
        found = count_inputs(file.graph)
        assert [*found] == ([] if damage.startswith("an input") else ["steps"])
        infer_shapes(file, GraphIndex(file), {"batch": 1}, [])
