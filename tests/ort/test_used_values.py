from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnx.parser

from memdiag.model.graph_index import GraphIndex, Scope
from memdiag.model.model_file import open_model
from memdiag.ort.used_values import UsedValues

HEAD = '<ir_version: 10, opset_import: ["" : 20, "local" : 1]>'


@contextmanager
def graphs(text: str, folder: Path) -> Iterator[GraphIndex]:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + text), path)
    with open_model(path) as model:
        yield GraphIndex(model)


def among(found: GraphIndex, wanted: Callable[[tuple[Scope, str]], bool]) -> set[str]:
    return {
        name
        for _, scope in found
        for name in (*scope.inputs, *scope.producers, *scope.graph.tensors)
        if wanted((scope, name))
    }


def test_what_only_dead_nodes_read_is_read_but_not_wanted(tmp_path: Path) -> None:
    text = """
    main (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}, float[2] d = {3.0, 4.0}> {
      y = Add(x, w)
      t = Mul(x, d)
      u = Relu(t)
    }"""
    with graphs(text, tmp_path) as found:
        result = UsedValues(found)
        assert among(found, result.is_needed) == {"x", "w", "y"}
        assert among(found, result.is_read) == {"x", "w", "y", "d", "t"}


def test_subgraphs_want_outer_values_where_their_own_outputs_do(tmp_path: Path) -> None:
    text = """
    main (bool c, float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}, float[2] d = {3.0, 4.0}> {
      y = If (c) <
        then_branch = one () => (float[2] a) { a = Add(x, w) dead = Mul(x, d) },
        else_branch = two () => (float[2] b) { b = Identity(x) }
      >
    }"""
    with graphs(text, tmp_path) as found:
        result = UsedValues(found)
        assert among(found, result.is_needed) == {"c", "x", "w", "a", "b", "y"}
        assert "d" in among(found, result.is_read)


def test_a_subgraph_of_a_dead_node_wants_nothing(tmp_path: Path) -> None:
    text = """
    main (bool c, float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> {
      y = Identity(x)
      unused = If (c) <
        then_branch = one () => (float[2] a) { a = Add(x, w) },
        else_branch = two () => (float[2] b) { b = Identity(x) }
      >
    }"""
    with graphs(text, tmp_path) as found:
        result = UsedValues(found)
        assert among(found, result.is_needed) == {"x", "y"}


def test_a_name_of_an_inner_graph_is_not_that_of_the_outer_one(tmp_path: Path) -> None:
    text = """
    main (bool c, float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> {
      y = If (c) <
        then_branch = one () => (float[2] a) <float[2] w = {5.0, 6.0}> { a = Add(x, w) },
        else_branch = two () => (float[2] b) { b = Identity(x) }
      >
    }"""
    with graphs(text, tmp_path) as found:
        result = UsedValues(found)
        owners = [(path, scope) for path, scope in found if scope.graph.defines("w")]
        paths = {path for path, scope in owners if result.is_read((scope, "w"))}
    assert paths == {"If_0/then_branch"}


def test_functions_want_what_their_outputs_do(tmp_path: Path) -> None:
    text = """
    main (float[2] x) => (float[2] y) { y = local.F(x) }
    <domain: "local", opset_import: ["" : 20]>
    F (a) => (b) {
      k = Constant <value = float[2] {1.0, 2.0}> ()
      dead = Mul(a, k)
      b = Relu(a)
    }"""
    with graphs(text, tmp_path) as found:
        result = UsedValues(found)
        assert among(found, result.is_needed) == {"x", "y", "a", "b"}


def test_a_circle_of_nodes_ends(tmp_path: Path) -> None:
    text = "main (float[2] x) => (float[2] y) { y = Add(x, z) z = Relu(y) }"
    with graphs(text, tmp_path) as found:
        assert among(found, UsedValues(found).is_needed) == {"x", "y", "z"}
