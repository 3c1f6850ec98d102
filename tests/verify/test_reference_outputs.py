"""Interfaces compared: what a program would notice is told, what the runtime infers is not."""

from typing import Any

import pytest

from memdiag.verify.reference_outputs import interface_change


def signature(
    *outputs: tuple[str, str, list[Any]],
    inputs: tuple[tuple[str, str, list[Any]], ...] = (),
    **meta: str,
) -> dict[str, Any]:
    return {
        "inputs": [list(each) for each in inputs],
        "outputs": [list(each) for each in outputs],
        "metadata": meta,
    }


FLOATS = "tensor(float)"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([None, 512], ["n", 512]),
        (["n", 512], [None, None]),
        ([], ["n", 512]),
        (["n", 512], []),
        (["n"], ["m"]),
        ([4, 512], [4, 512]),
    ],
)
def test_shapes_that_one_of_both_does_not_state_are_no_change(
    before: list[Any], after: list[Any]
) -> None:
    assert (
        interface_change(signature(("y", FLOATS, before)), signature(("y", FLOATS, after))) is None
    )


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            signature(("y", FLOATS, [None, 512])),
            signature(("y", FLOATS, [512])),
            "output 'y' changed from float32[?, 512] to float32[512]",
        ),
        (
            signature(("y", FLOATS, ["n", 512])),
            signature(("y", FLOATS, ["n", 256])),
            "output 'y' changed from float32[n, 512] to float32[n, 256]",
        ),
        (
            signature(("y", FLOATS, [])),
            signature(("y", "tensor(double)", [])),
            "output 'y' changed from float32 to float64",
        ),
        (
            signature(("y", "seq(tensor(int64))", [])),
            signature(("y", "tensor(int64)", [])),
            "output 'y' changed from seq(tensor(int64)) to int64",
        ),
        (signature(("y", FLOATS, [])), signature(("z", FLOATS, [])), "output 'y' is missing"),
        (
            signature(("y", FLOATS, [])),
            signature(("y", FLOATS, []), ("z", FLOATS, [])),
            "output 'z' was added",
        ),
        (
            signature(("y", FLOATS, []), ("z", FLOATS, [])),
            signature(("z", FLOATS, []), ("y", FLOATS, [])),
            "outputs changed their order from y, z to z, y",
        ),
        (
            signature(inputs=(("x", FLOATS, ["n", 3]),)),
            signature(inputs=(("x", FLOATS, ["n", 4]),)),
            "input 'x' changed from float32[n, 3] to float32[n, 4]",
        ),
        (signature(task="a"), signature(task="b"), "metadata 'task' changed"),
        (signature(task="a"), signature(), "metadata 'task' changed"),
    ],
)
def test_a_change_names_the_value_and_the_difference(
    before: dict[str, Any], after: dict[str, Any], expected: str
) -> None:
    assert interface_change(before, after) == expected


def test_metadata_may_be_added() -> None:
    assert interface_change(signature(task="a"), signature(task="a", tool="b")) is None
