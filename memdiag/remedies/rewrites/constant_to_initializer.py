"""Constant nodes become initializers of the graph that they are in, under the same name.

A Constant's tensor is there twice at the end of parsing, an initializer's only while it is
converted. Small Constants stay, and those of functions, which have no initializers.

It hurts nothing: the runtime makes initializers of Constant nodes itself, only later.
"""

import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.remedies.constants import (
    is_constant,
    must_be_inputs,
    obstacle,
    put_in,
    take_out,
    tensor_of,
)
from memdiag.remedies.draft import Draft
from memdiag.remedies.merging import weights_of
from memdiag.remedies.nesting import Nesting
from memdiag.remedies.rewrite import Rewrite

REWRITE = Rewrite(
    name="constant-to-initializer",
    summary="make initializers of large Constant nodes",
    rules=("constant-nodes",),
    arithmetic="same",
)

_SMALLEST = 1 << 10


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why none of the Constants can become an initializer."""
    values, reason = _movable(draft, Nesting(draft), finding)
    return None if values else reason


def apply(draft: Draft, finding: Finding) -> bool:
    """Make initializers of what can be one."""
    nesting = Nesting(draft)
    values, _ = _movable(draft, nesting, finding)
    for value in values:
        graph, tensor, name = value.graph, tensor_of(value), value.name
        assert graph is not None
        assert tensor is not None
        assert name is not None
        take_out(nesting, value)
        put_in(draft, graph, value, tensor, name)
    return bool(values)


def _movable(draft: Draft, nesting: Nesting, finding: Finding) -> tuple[list[ir.Value], str]:
    constants = [one for one in weights_of(draft, finding) if is_constant(one.producer())]
    if must_be_inputs(draft):
        return [], "before version 4 of the IR a new initializer would be a new input"
    reasons = {value: obstacle(draft, nesting, value) for value in constants}
    found = [value for value, reason in reasons.items() if reason is None and _is_large(value)]
    large = next(filter(None, reasons.values()), "none of it is a large Constant node")
    return found, large


def _is_large(value: ir.Value) -> bool:
    tensor = tensor_of(value)
    return tensor is not None and tensor.nbytes >= _SMALLEST
