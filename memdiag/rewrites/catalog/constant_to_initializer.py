"""Turn Constant nodes into initializers of their graph, under the same name.

A Constant's tensor exists twice at the end of parsing, an initializer's only while it is converted.
Small Constants stay, and so do the Constants of functions, which have no initializers.

There is no drawback: the runtime turns Constant nodes into initializers itself, only later.
onnx_ir's LiftConstantsToInitializersPass does this for a whole model, and does not check for names
that hide the weight.
"""

import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.rewrites.edited_weights import (
    NEW_INPUT_PROBLEM,
    constant_tensor,
    initializers_are_inputs,
    is_constant,
    move_problem,
    move_to_initializer,
)
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite

REWRITE = Rewrite(
    name="constant-to-initializer",
    summary="make initializers of large Constant nodes",
    arithmetic="same",
)

_MIN_MOVED_CONSTANT_BYTES = 1 << 10


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why none of the Constants can become an initializer."""
    values, reason = _movable_constants(editor, finding)
    return None if values else reason


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Turn the Constants that can be moved into initializers."""
    values, _ = _movable_constants(editor, finding)
    for value in values:
        assert value.graph is not None
        assert value.name is not None
        move_to_initializer(editor, value, value.graph, value.name)
    return bool(values)


def _movable_constants(editor: ModelEditor, finding: Finding) -> tuple[list[ir.Value], str]:
    """Return the Constants that can become initializers, and why others cannot."""
    if initializers_are_inputs(editor):
        return [], NEW_INPUT_PROBLEM
    constants = [value for value in editor.weights(finding) if is_constant(value.producer())]
    problems = {value: move_problem(editor, value) for value in constants}
    movable = [
        value for value, problem in problems.items() if not problem and _is_large_constant(value)
    ]
    reason = next(filter(None, problems.values()), "none of it is a large Constant node")
    return movable, reason


def _is_large_constant(value: ir.Value) -> bool:
    tensor = constant_tensor(value)
    return tensor is not None and tensor.nbytes >= _MIN_MOVED_CONSTANT_BYTES
