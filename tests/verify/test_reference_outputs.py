"""Interfaces compared: what a program would notice is told, what the runtime infers is not."""

from typing import Any

import pytest

from memdiag.verify.reference_outputs import interface_change

Value = tuple[str, str, list[Any]]


def signature(*outputs: Value, inputs: tuple[Value, ...] = (), **meta: str) -> dict[str, Any]:
    listed = {"inputs": [[*value] for value in inputs], "outputs": [[*value] for value in outputs]}
    return {**listed, "metadata": meta}


def floats(name: str, *shape: int | str | None) -> Value:
    return name, "tensor(float)", [*shape]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (floats("y", None, 512), floats("y", "n", 512)),
        (floats("y", "n", 512), floats("y", None, None)),
        (floats("y"), floats("y", "n", 512)),
        (floats("y", "n", 512), floats("y")),
        (floats("y", "n"), floats("y", "m")),
        (floats("y", 4, 512), floats("y", 4, 512)),
    ],
)
def test_shapes_that_one_of_both_does_not_state_are_no_change(before: Value, after: Value) -> None:
    assert interface_change(signature(before), signature(after)) is None


X3, X4, Y, Z = floats("x", "n", 3), floats("x", "n", 4), floats("y"), floats("z")
INTEGERS: Value = ("y", "tensor(int64)", [])
DOUBLES: Value = ("y", "tensor(double)", [])
SEQUENCE: Value = ("y", "seq(tensor(int64))", [])


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            signature(floats("y", None, 512)),
            signature(floats("y", 512)),
            "output 'y' changed from float32[?, 512] to float32[512]",
        ),
        (
            signature(floats("y", "n", 512)),
            signature(floats("y", "n", 256)),
            "output 'y' changed from float32[n, 512] to float32[n, 256]",
        ),
        (signature(Y), signature(DOUBLES), "output 'y' changed from float32 to float64"),
        (
            signature(SEQUENCE),
            signature(INTEGERS),
            "output 'y' changed from seq(tensor(int64)) to int64",
        ),
        (signature(Y), signature(Z), "output 'y' is missing"),
        (signature(Y), signature(Y, Z), "output 'z' was added"),
        (signature(Y, Z), signature(Z, Y), "outputs changed their order from y, z to z, y"),
        (
            signature(inputs=(X3,)),
            signature(inputs=(X4,)),
            "input 'x' changed from float32[n, 3] to float32[n, 4]",
        ),
        (signature(task="a"), signature(task="b"), "metadata 'task' changed"),
        (signature(task="a"), signature(), "metadata 'task' changed"),
        (signature(task="a"), signature(task="a", tool="b"), None),
    ],
)
def test_a_change_names_the_value_and_the_difference(
    before: dict[str, Any], after: dict[str, Any], expected: str | None
) -> None:
    assert interface_change(before, after) == expected
