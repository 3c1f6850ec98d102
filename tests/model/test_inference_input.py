"""Lists that would double without end are seen before the inference makes them; others may be."""

import numpy as np
import pytest
from onnx import FunctionProto, GraphProto, ModelProto, helper, numpy_helper, parser

from memdiag.model.inference_input import is_bounded


def model(body: str, inputs: str = "float[8] x, bool c") -> ModelProto:
    proto: ModelProto = parser.parse_model(
        f'<ir_version: 10, opset_import: ["":17]> g ({inputs}) => (float[n] y) {{ {body} }}'
    )
    return proto


def doubling(first: str, *, times: int = 40, axis: int = 0) -> str:
    """Return nodes that join the value t0, which `first` makes, with itself again and again."""
    steps = (f"t{step + 1} = Concat<axis={axis}>(t{step}, t{step})" for step in range(times))
    return " ".join([first, *steps, f"y = Identity(t{times})"])


ENDLESS = {
    "of a shape": model(doubling("t0 = Shape(x)")),
    "of an input": model(doubling("t0 = Identity(x)")),
    "of what an operator makes": model(doubling("t0 = Relu(x)")),
    "of a constant": model(doubling("t0 = Constant<value = float[3] {1, 2, 3}>()")),
    "with casts between": model(
        " ".join(
            f"s{step} = Cast<to=7>(t{step}) t{step + 1} = Concat<axis=-1>(s{step}, s{step})"
            for step in range(40)
        )
        + " y = Cast<to=1>(t40)",
        "float[8] t0",
    ),
    "in a branch": model(
        f"y = If(c) <then_branch = a () => (float[n] k) {{ {doubling('t0 = Shape(x)')} "
        "k = Cast<to=1>(y) }, else_branch = b () => (float[n] l) { l = Neg(x) }>"
    ),
}
SHORT = {
    "a few doublings": model(doubling("t0 = Shape(x)", times=10)),
    "along another axis": model(doubling("t0 = Relu(x)", axis=1), "float[8, 8] x"),
    "of matrices": model(doubling("t0 = Identity(x)"), "float[8, 8] x"),
    "many short ones": model(
        " ".join(f"s{n} = Shape(x) t{n} = Concat<axis=0>(s{n}, s{n})" for n in range(5000))
    ),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_doubles_without_end_is_seen(name: str) -> None:
    assert not is_bounded([ENDLESS[name].graph])


@pytest.mark.parametrize("name", SHORT)
def test_near_misses(name: str) -> None:
    assert is_bounded([SHORT[name].graph])


def test_weights_of_one_axis_have_lists_of_any_type() -> None:
    proto = model(doubling("", times=20), "float[8] x")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((8, 1), np.float32), "t0"))
    assert is_bounded([proto.graph])
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones(8, np.float32), "t0"))
    assert not is_bounded([proto.graph])


def test_functions_count_too_and_all_together() -> None:
    main = model("y = Neg(x)").graph
    endless = FunctionProto(name="f", node=ENDLESS["of what an operator makes"].graph.node)
    assert not is_bounded([main, endless])
    one = GraphProto(node=[helper.make_node("Concat", ["w"] * 3, ["v"], axis=0)])
    one.input.append(helper.make_tensor_value_info("w", 1, [200_000]))
    assert is_bounded([one])
    assert not is_bounded([one, one])
