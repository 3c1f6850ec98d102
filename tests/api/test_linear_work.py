"""Checks and estimates of large graphs: the work grows as the graph does, not as its square.

The work is the number of bytecode instructions that Python executes, so that load on the machine
changes nothing. The step from n to 2n nodes is compared with the step from 2n to 4n, which is twice
as large for linear work, and four times for quadratic work.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from memdiag.api.check import RuleSelection, check_models
from memdiag.api.estimate import estimate
from memdiag.model.model_file import open_model
from memdiag.model.shapes import MAX_COPIED_NAMES, copied_name_count

NODES = 40
MAX_GROWTH = 2.4
MATRIX = np.ones((16, 16), np.float32)
FILTER = np.ones((16, 16, 3, 3), np.float32)
PLAIN = ("N", 16)
IMAGE = ("N", 16, "H", "W")
node = helper.make_node


def value(name: str, shape: Sequence[int | str] = PLAIN, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: Sequence[NodeProto],
    weights: Iterable[tuple[str, np.ndarray[Any, Any]]] = (),
    *,
    inputs: Sequence[ValueInfoProto] = (),
    outputs: Sequence[ValueInfoProto] = (),
    shape: Sequence[int | str] = PLAIN,
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        inputs or [value("x", shape)],
        outputs or [value("y", shape)],
        [numpy_helper.from_array(array, name) for name, array in weights],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def chain(count: int, *links: Callable[[str, str, int], NodeProto]) -> list[NodeProto]:
    """Return `count` times the nodes that `links` make of an input, an output and a number."""
    nodes: list[NodeProto] = []
    for number in range(count * len(links)):
        given = f"v{number}" if number else "x"
        made = "y" if number == count * len(links) - 1 else f"v{number + 1}"
        nodes.append(links[number % len(links)](given, made, number))
    return nodes


def add(given: str, made: str, number: int) -> NodeProto:
    return node("Add", [given, f"w{number}"], [made])


def conv(given: str, made: str, number: int) -> NodeProto:
    return node("Conv", [given, "w"], [made], kernel_shape=[3, 3], pads=[1] * 4)


def pool(given: str, made: str, number: int) -> NodeProto:
    return node("MaxPool", [given], [made], kernel_shape=[3, 3], pads=[1] * 4)


def product(given: str, made: str, number: int) -> NodeProto:
    return node("MatMul", [given, "w"], [made])


def bias(given: str, made: str, number: int) -> NodeProto:
    return node("Add", [given, "b"], [made])


def vectors(count: int, prefix: str = "w") -> list[tuple[str, np.ndarray[Any, Any]]]:
    return [(f"{prefix}{number}", MATRIX[number % 16]) for number in range(count)]


def weights_of_one_name(count: int) -> ModelProto:
    nodes = chain(count, lambda given, made, _: node("Add", [given, "w"], [made]))
    return model(nodes, [("w", MATRIX[0])] * count)


def blocks_of_channels(count: int) -> ModelProto:
    return model(chain(count, conv, pool), [("w", FILTER)], shape=IMAGE)


def products_of_one_weight(count: int) -> ModelProto:
    return model(chain(count, product, bias), [("w", MATRIX), ("b", MATRIX[0])])


def many_outputs(count: int) -> ModelProto:
    nodes = [node("Add", ["x", f"w{number}"], [f"y{number}"]) for number in range(count)]
    return model(nodes, vectors(count), outputs=[value(f"y{number}") for number in range(count)])


def values_alive_at_once(count: int) -> ModelProto:
    parts = [f"v{number}" for number in range(count)]
    nodes = [node("Add", ["x", f"w{number}"], [part]) for number, part in enumerate(parts)]
    return model([*nodes, node("Sum", parts, ["y"])], vectors(count))


def outputs_of_one_name(count: int) -> ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["m"]) for _ in range(count)]
    nodes += [node("Add", ["m", "b"], [f"y{number}"]) for number in range(count)]
    return model(nodes, [("w", MATRIX), ("b", MATRIX[0])], outputs=[value("y0")])


def free_dimensions(count: int) -> ModelProto:
    inputs = [value(f"x{number}", ("N", f"D{number}")) for number in range(count)]
    return model([node("Sum", [each.name for each in inputs], ["y"])], inputs=inputs)


def branches(count: int, name: str = "") -> ModelProto:
    """Return a chain of Ifs whose branches have equal weights of their own, of one name."""

    def branch(given: str) -> Any:
        nodes = [node("MatMul", [given, "w"], ["b"])]
        weights = [numpy_helper.from_array(MATRIX, "w")]
        return helper.make_graph(nodes, "g", [], [value("b")], weights)

    def choice(given: str, made: str, _: int) -> NodeProto:
        return node(
            "If",
            ["c"],
            [made],
            name=name,
            then_branch=branch(given),
            else_branch=branch(given),
        )

    inputs = [value("x"), value("c", (), TensorProto.BOOL)]
    return model(chain(count, choice), inputs=inputs)


def branches_of_one_name(count: int) -> ModelProto:
    return branches(count, "If")


def functions(count: int) -> ModelProto:
    """Return a chain of calls of functions of one name, whose overloads differ."""

    def call(given: str, made: str, number: int) -> NodeProto:
        return node("F", [given], [made], domain="local", overload=str(number))

    found = model(chain(count, call))
    weight = numpy_helper.from_array(MATRIX, "w")
    body = [node("Constant", [], ["w"], value=weight), node("MatMul", ["a", "w"], ["b"])]
    for number in range(count):
        found.functions.append(
            helper.make_function(
                "local",
                "F",
                ["a"],
                ["b"],
                body,
                [helper.make_opsetid("", 17)],
                overload=str(number),
            )
        )
    found.ir_version = 10
    return found


def identities(count: int) -> ModelProto:
    return model(chain(count, lambda given, made, _: node("Identity", [given], [made])))


def one_weight_with_many_readers(count: int) -> ModelProto:
    return model(chain(count, lambda given, made, _: node("Add", [given, "w"], [made])), vectors(1))


GRAPHS = (
    weights_of_one_name,
    blocks_of_channels,
    products_of_one_weight,
    many_outputs,
    values_alive_at_once,
    outputs_of_one_name,
    free_dimensions,
    branches,
    branches_of_one_name,
    functions,
    identities,
    one_weight_with_many_readers,
)


def work(run: Callable[[], object]) -> int:
    """Return the number of instructions that Python executes in `run`."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("command", ["check", "estimate"])
@pytest.mark.parametrize("build", GRAPHS, ids=lambda build: build.__name__)
def test_work_grows_as_the_graph_does(
    tmp_path: Path, build: Callable[[int], ModelProto], command: str
) -> None:
    path = tmp_path / "m.onnx"

    def run() -> object:
        if command == "check":
            return check_models([path], selection=RuleSelection())
        return estimate(path)

    steps = []
    for count in (2, NODES, 2 * NODES, 4 * NODES):  # the first imports what is needed
        path.write_bytes(build(count).SerializeToString())
        steps.append(work(run))
    _, one, two, four = steps
    assert (four - two) / (two - one) < MAX_GROWTH


@pytest.mark.parametrize("build", [branches, functions])
def test_what_the_native_inference_repeats_is_limited(
    tmp_path: Path, build: Callable[[int], ModelProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    counts = []
    for count in (10, 20):
        path.write_bytes(build(count).SerializeToString())
        with open_model(path) as opened:
            counts.append(copied_name_count(opened.graph, opened.functions))
    assert counts[1] > 3 * counts[0]
    assert counts[1] < MAX_COPIED_NAMES
    (found,) = check_models([path], selection=RuleSelection()).models
    assert not any("could not be inferred" in note for note in found.notes)
    monkeypatch.setattr("memdiag.model.shapes.MAX_COPIED_NAMES", counts[1] - 1)
    (found,) = check_models([path], selection=RuleSelection()).models
    assert any("too many subgraphs or functions" in note for note in found.notes)
