"""Checks and estimates of large graphs: the work grows as the graph does, not as its square.

The work is the number of lines that Python executes, so that load on the machine changes nothing.
The step from n to 2n nodes is compared with the step from 2n to 4n, which is twice as large for
linear work, and four times for quadratic work.
"""

import sys
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper, parser

from memdiag.api.check import RuleSelection, check_models
from memdiag.api.estimate import estimate
from memdiag.model.model_file import open_model
from memdiag.model.shapes import MAX_COPIED_NAMES, copied_name_count

NODES = 40
MAX_GROWTH = 2.4
MATRIX = np.ones((16, 16), np.float32)
VECTOR = MATRIX[0]
FILTER = np.ones((16, 16, 3, 3), np.float32)

# Links of a chain: `{given}` and `{made}` are its values, and `{number}` counts.
ADD = "{made} = Add ({given}, w)"
CONV = "{made} = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> ({given}, w)"
POOL = "{made} = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> ({given})"
BRANCH = "b () => (float[N, 16] b) <float[16, 16] w = {{ONES}}> {{ b = MatMul ({given}, w) }}"
BRANCH = BRANCH.replace("ONES", ", ".join(["1"] * MATRIX.size))
CHOICE = f"{{made}} = If (c) <then_branch = {BRANCH}, else_branch = {BRANCH}>"


def model(
    nodes: Iterable[str],
    weights: Iterable[tuple[str, np.ndarray[Any, Any]]] = (),
    inputs: str = "float[N, 16] x",
    outputs: str = "float[N, 16] y",
) -> ModelProto:
    found = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 17, "local": 1]>'
        f"g ({inputs}) => ({outputs}) {{ {' '.join(nodes)} }}"
    )
    found.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights)
    return found


def chain(count: int, *links: str) -> list[str]:
    """Return `count` times the nodes of `links`, each of which reads what the one before made."""
    values = ["x", *(f"v{number}" for number in range(1, count * len(links))), "y"]
    return [
        links[number % len(links)].format(given=given, made=made, number=number)
        for number, (given, made) in enumerate(pairwise(values))
    ]


def vectors(count: int) -> list[tuple[str, np.ndarray[Any, Any]]]:
    return [(f"w{number}", VECTOR) for number in range(count)]


def many_outputs(count: int) -> ModelProto:
    nodes = [f"y{number} = Add (x, w{number})" for number in range(count)]
    outputs = ", ".join(f"float[N, 16] y{number}" for number in range(count))
    return model(nodes, vectors(count), outputs=outputs)


def values_alive_at_once(count: int) -> ModelProto:
    values = [f"v{number}" for number in range(count)]
    nodes = [f"{value} = Add (x, w{number})" for number, value in enumerate(values)]
    return model([*nodes, f"y = Sum ({', '.join(values)})"], vectors(count))


def outputs_of_one_name(count: int) -> ModelProto:
    nodes = ["m = MatMul (x, w)"] * count + [f"y{number} = Add (m, b)" for number in range(count)]
    return model(nodes, [("w", MATRIX), ("b", VECTOR)], outputs="float[N, 16] y0")


def free_dimensions(count: int) -> ModelProto:
    inputs = ", ".join(f"float[N, D{number}] x{number}" for number in range(count))
    return model([f"y = Sum ({', '.join(f'x{number}' for number in range(count))})"], inputs=inputs)


def branches(count: int, name: str = "") -> ModelProto:
    """Return a chain of Ifs whose branches have equal weights of their own, of one name."""
    found = model(chain(count, CHOICE), inputs="float[N, 16] x, bool c")
    for node in found.graph.node:
        node.name = name
    return found


def functions(count: int) -> ModelProto:
    """Return a chain of calls of functions of one name, whose overloads differ."""
    found = model(chain(count, "{made} = local.F ({given})"))
    weight = numpy_helper.from_array(MATRIX, "w")
    body = [
        helper.make_node("Constant", [], ["w"], value=weight),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
    ]
    opset = [helper.make_opsetid("", 17)]
    for number, node in enumerate(found.graph.node):
        node.overload = str(number)
        function = helper.make_function(
            "local", "F", ["a"], ["b"], body, opset, overload=str(number)
        )
        found.functions.append(function)
    return found


GRAPHS: dict[str, Callable[[int], ModelProto]] = {
    "weights of one name": lambda count: model(chain(count, ADD), [("w", VECTOR)] * count),
    "blocks of channels": lambda count: model(
        chain(count, CONV, POOL), [("w", FILTER)], "float[N, 16, H, W] x", "float[N, 16, H, W] y"
    ),
    "products of one weight": lambda count: model(
        chain(count, "{made} = MatMul ({given}, w)", "{made} = Add ({given}, b)"),
        [("w", MATRIX), ("b", VECTOR)],
    ),
    "many outputs": many_outputs,
    "values alive at once": values_alive_at_once,
    "outputs of one name": outputs_of_one_name,
    "free dimensions": free_dimensions,
    "branches": branches,
    "branches of one name": lambda count: branches(count, "If"),
    "functions": functions,
    "identities": lambda count: model(chain(count, "{made} = Identity ({given})")),
    "one weight with many readers": lambda count: model(chain(count, ADD), [("w", VECTOR)]),
}


def work(run: Callable[[], object]) -> int:
    """Return the number of lines that Python executes in `run`, calls and returns included."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("command", ["check", "estimate"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_work_grows_as_the_graph_does(tmp_path: Path, graph: str, command: str) -> None:
    path = tmp_path / "m.onnx"

    def run() -> object:
        if command == "check":
            return check_models([path], selection=RuleSelection())
        return estimate(path)

    steps = []
    for count in (2, NODES, 2 * NODES, 4 * NODES):  # the first imports what is needed
        path.write_bytes(GRAPHS[graph](count).SerializeToString())
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
    for limit, is_noted in ((MAX_COPIED_NAMES, False), (counts[1] - 1, True)):
        monkeypatch.setattr("memdiag.model.shapes.MAX_COPIED_NAMES", limit)
        (checked,) = check_models([path], selection=RuleSelection()).models
        notes = [note for note in checked.notes if "could not be inferred" in note]
        assert bool(notes) == is_noted
        assert all("too many subgraphs or functions" in note for note in notes)
