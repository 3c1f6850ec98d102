import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from memdiag.model.constant_values import MAX_VALUES, condition_value, evaluate_node, integer_value

Arrays = list[NDArray[np.generic]]


def ints(*values: int) -> NDArray[np.generic]:
    return np.array(values, np.int64)


GRID: NDArray[np.generic] = np.arange(12, dtype=np.int64).reshape(3, 4)
ONE: NDArray[np.generic] = np.array(1, np.int64)
CASES: list[tuple[str, Arrays, dict[str, int | list[int]]]] = [
    ("Add", [ints(1, 2), ints(3, 4)], {}),
    ("Div", [ints(7, -7, 7), ints(2, 2, -2)], {}),
    ("Cast", [ints(0, 1, 300)], {"to": TensorProto.BOOL}),
    ("Gather", [GRID, ints(2, 0)], {"axis": 0}),
    ("Gather", [ints(5, 6), np.array(1, np.int64)], {}),
    ("Concat", [ints(1), ints(2, 3)], {"axis": 0}),
    ("Unsqueeze", [ONE, ints(0)], {}),
    ("Squeeze", [ints(5)[None], ints(0)], {}),
    ("Slice", [GRID, ints(0), ints(2), ints(1)], {}),
    ("Slice", [ints(1, 2, 3, 4), ints(-1), ints(-99), ints(0), ints(-1)], {}),
    ("Slice", [ints(1, 2, 3, 4), ints(0), ints(2**63 - 1), ints(0), ints(2)], {}),
    ("Reshape", [GRID, ints(0, 2, -1)], {}),
    ("Expand", [ints(1, 2), ints(3, 2)], {}),
    ("Tile", [ints(1, 2), ints(3)], {}),
    ("Range", [np.array(1, np.int64), np.array(9, np.int64), np.array(3, np.int64)], {}),
    ("Range", [np.array(5, np.int64), np.array(0, np.int64), np.array(-2, np.int64)], {}),
    ("Where", [np.array([True, False]), ints(1, 2), ints(3, 4)], {}),
    ("ReduceProd", [ints(3, 4)], {"keepdims": 0}),
    ("Max", [ints(1, 5), ints(4, 2)], {}),
    ("Equal", [ints(1, 5), ints(1, 2)], {}),
    ("Transpose", [GRID], {"perm": [1, 0]}),
    ("Size", [GRID], {}),
    ("NonZero", [ints(0, 4, 5)], {}),
    ("ConstantOfShape", [ints(2, 3)], {}),
    ("Sqrt", [np.array([4.0, 9.0], np.float32)], {}),
]


@pytest.mark.parametrize(("op_type", "inputs", "attributes"), CASES)
def test_values_are_onnxs(
    op_type: str, inputs: Arrays, attributes: dict[str, int | list[int]]
) -> None:
    names = [f"i{number}" for number in range(len(inputs))]
    node = helper.make_node(op_type, names, ["y"], **attributes)  # type: ignore[arg-type] # attributes of any type
    (expected,) = ReferenceEvaluator(node).run(None, dict(zip(names, inputs, strict=True)))
    found = evaluate_node(node, inputs)
    assert found is not None
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.asarray(expected).dtype


@pytest.mark.parametrize(
    ("op_type", "inputs"),
    [
        ("Expand", [ints(1), ints(2**40, 2**40)]),
        ("Expand", [ints(1), ints(*[1] * 51)]),
        ("Tile", [ints(1), ints(2**62)]),
        ("ConstantOfShape", [ints(2**62, 2**62)]),
        ("ConstantOfShape", [ints(-1)]),
        ("Range", [ONE, np.array(2**62, np.int64), ONE]),
        ("Range", [ONE, ONE, np.array(0, np.int64)]),
        ("Div", [ints(1), ints(0)]),
        ("Gather", [ints(1), ints(5)]),
        ("Reshape", [GRID, ints(5, 5)]),
        ("Add", [np.zeros(MAX_VALUES + 1), np.zeros(1)]),
        ("Softmax", [ints(1)]),
        ("Add", []),
    ],
)
def test_what_is_large_or_makes_no_sense_is_left(op_type: str, inputs: Arrays) -> None:
    node = helper.make_node(op_type, [f"i{number}" for number in range(len(inputs))], ["y"])
    assert evaluate_node(node, inputs) is None


@pytest.mark.parametrize(
    ("source", "to"),
    [(np.complex64, TensorProto.FLOAT), (np.float32, TensorProto.COMPLEX64)],
)
def test_complex_numbers_are_not_cast(source: type[np.generic], to: int) -> None:
    node = helper.make_node("Cast", ["i0"], ["y"], to=to)
    assert evaluate_node(node, [np.array([1], source)]) is None


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (np.array(3), 3),
        (np.array([True]), 1),
        (np.array([0], np.uint8), 0),
        (np.array(np.nan), None),
        (np.array([1.0], np.float16), None),
        (np.array([1, 2]), None),
        (np.array([], np.int64), None),
        (None, None),
    ],
)
def test_numbers_and_conditions_are_integers(
    value: NDArray[np.generic] | None, number: int | None
) -> None:
    assert integer_value(value) == number
    assert condition_value(value) == (None if number is None else number > 0)
