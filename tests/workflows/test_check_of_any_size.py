"""A check takes less than 150 MB whatever it is given: it looks at a model, or refuses it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
)

from memdiag.errors import ModelError, UsageError
from memdiag.graph.room import (
    CALL_BYTES,
    FUNCTION_BYTES,
    HEAD_BYTES,
    INITIALIZER_BYTES,
    LARGE,
    LARGE_INITIALIZER_BYTES,
    NAME_BYTES,
    NODE_BYTES,
    OWN_BYTES,
    PARSED_BYTES,
    SUBGRAPH_BYTES,
    WIDE_NAME_BYTES,
)
from memdiag.workflows.check import DEFAULT_MAX_MEMORY, check
from tests.workflows.check_peaks import peak_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the peak is read of /proc")

MOST = DEFAULT_MAX_MEMORY
ROOM = MOST - OWN_BYTES

Build = Callable[[int], ModelProto]


def value(name: str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4])


def model(
    nodes: list[NodeProto],
    weights: Iterator[TensorProto] | tuple[()] = (),
    functions: tuple[FunctionProto, ...] = (),
    inputs: int = 0,
) -> ModelProto:
    given = [value("x"), *(value(f"x{i}") for i in range(inputs))]
    last = [value(nodes[-1].output[0])] if nodes else []
    graph = helper.make_graph(nodes, "g", given, last, list(weights))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=10)


def chain(count: int, op: str = "Relu", domain: str = "") -> list[NodeProto]:
    names = ["x", *(f"v{i}" for i in range(count))]
    return [helper.make_node(op, [names[i]], [names[i + 1]], domain=domain) for i in range(count)]


def initializers(count: int) -> ModelProto:
    return model([], (helper.make_tensor(f"w{i}", 1, [1], [i]) for i in range(count)))


def products(count: int) -> ModelProto:
    """One weight in two equals the one before it."""
    nodes = chain(count, "MatMul")
    for i, node in enumerate(nodes):
        node.input.append(f"w{i}")
    return model(
        nodes, (helper.make_tensor(f"w{i}", 1, [4, 4], [i // 2] * 16) for i in range(count))
    )


def transposed(count: int) -> ModelProto:
    """Each weight is folded, as far as there is room for what folding makes."""
    nodes = []
    for i in range(count):
        nodes.append(helper.make_node("Transpose", [f"w{i}"], [f"t{i}"], perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", [f"v{i}" if i else "x", f"t{i}"], [f"v{i + 1}"]))
    return model(nodes, (helper.make_tensor(f"w{i}", 1, [4, 4], [i] * 16) for i in range(count)))


def external(count: int) -> ModelProto:
    """Large weights, all of the same bytes of a file."""
    nodes, weights = chain(count, "MatMul"), []
    for i, node in enumerate(nodes):
        node.input.append(f"w{i}")
        weights.append(
            TensorProto(name=f"w{i}", data_type=1, dims=[256, 256], data_location="EXTERNAL")
        )
        weights[i].external_data.add(key="location", value="weights.bin")
    return model(nodes, iter(weights))


def branch(op: str, output: str) -> GraphProto:
    return helper.make_graph([helper.make_node(op, ["x"], [output])], op, [], [value(output)])


def subgraphs(count: int) -> ModelProto:
    nodes = []
    for i in range(count // 2):
        node = helper.make_node("If", ["c"], [f"y{i}"], then_branch=branch("Relu", f"t{i}"))
        node.attribute.append(helper.make_attribute("else_branch", branch("Neg", f"e{i}")))
        nodes.append(node)
    made = model(nodes)
    made.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    return made


def function(name: str) -> FunctionProto:
    neg = helper.make_node("Neg", ["a"], ["b"])
    return helper.make_function("own", name, ["a"], ["b"], [neg], [helper.make_opsetid("", 17)])


def functions(count: int) -> ModelProto:
    nodes = chain(count, "F", "own")
    for i, node in enumerate(nodes):
        node.op_type = f"F{i}"
    return model(nodes, functions=tuple(function(f"F{i}") for i in range(count)))


def calls(count: int) -> ModelProto:
    return model(chain(count, "F", "own"), functions=(function("F"),))


def strings(count: int) -> ModelProto:
    held = [b"%09d" % i for i in range(count)]
    return model([], iter([TensorProto(name="w", data_type=8, dims=[count], string_data=held)]))


def attributes(count: int) -> ModelProto:
    (node,) = chain(1)
    node.attribute.extend(helper.make_attribute(f"a{i}", i) for i in range(count))
    return model([node])


_RELU = NODE_BYTES + 2 * NAME_BYTES
_MATMUL = NODE_BYTES + 3 * NAME_BYTES

# What there can be many of, and what one takes by the estimate.
KINDS: dict[str, tuple[Build, float]] = {
    "subgraphs": (subgraphs, SUBGRAPH_BYTES + _RELU + _MATMUL),
    "functions": (functions, FUNCTION_BYTES + 2 * _RELU),
    "calls": (calls, CALL_BYTES + _RELU),
    "inputs": (lambda count: model(chain(1), inputs=count), 27 * HEAD_BYTES),
    "strings": (strings, 11 * PARSED_BYTES),
    "attributes": (attributes, WIDE_NAME_BYTES),
}
SLOW: dict[str, tuple[Build, float]] = {
    "nodes": (lambda count: model(chain(count)), _RELU),
    "initializers": (initializers, INITIALIZER_BYTES),
    "products": (products, _MATMUL + INITIALIZER_BYTES),
    "transposed": (transposed, _RELU + NAME_BYTES + _MATMUL + INITIALIZER_BYTES),
    "external": (external, _MATMUL + LARGE_INITIALIZER_BYTES),
}


@pytest.mark.parametrize(
    "kind", [*KINDS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW)]
)
def test_the_largest_model_that_is_looked_at_stays_below_150_mb(kind: str, tmp_path: Path) -> None:
    build, each = (KINDS | SLOW)[kind]
    (tmp_path / "weights.bin").write_bytes(bytes(4 * 256 * 256))
    path = tmp_path / "model.onnx"
    onnx.save(build(int(0.95 * ROOM / each)), path)
    peak, error = peak_of(path)
    assert not error
    assert peak < MOST


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "calls"])
def test_a_larger_one_is_refused_before_it_takes_more(kind: str, tmp_path: Path) -> None:
    build, each = KINDS[kind]
    path = tmp_path / "model.onnx"
    onnx.save(build(int(3 * ROOM / each)), path)
    peak, error = peak_of(path)
    assert error.endswith("would take too much memory; allow more than 143 MiB with --max-memory.")
    assert peak < MOST


def test_more_memory_may_be_allowed(tmp_path: Path) -> None:
    build, each = KINDS["attributes"]
    path = tmp_path / "model.onnx"
    onnx.save(build(int(1.2 * ROOM / each)), path)
    with pytest.raises(ModelError, match="allow more than 143 MiB with --max-memory"):
        check(path)
    check(path, max_memory_bytes=MOST + ROOM)
    with pytest.raises(UsageError, match="--max-memory must be more than"):
        check(path, max_memory_bytes=OWN_BYTES)


def test_large_weights_are_those_that_findings_are_about() -> None:
    # Rules leave out those below 64 KiB, of which one has at least so many elements.
    assert LARGE == (64 << 10) // 4
