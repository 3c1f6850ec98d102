"""Which kernels pack a constant operand into a layout of their own, and how large it becomes."""

from typing import NamedTuple

from onnx import NodeProto

from memdiag.graph.graphs import Graphs
from memdiag.graph.scopes import Scope
from memdiag.prediction.runtime import Runtime
from memdiag.records.attribution import CopyKind


class Packed(NamedTuple):
    """The buffer of a packed operand: its kind of copy, and its bytes."""

    kind: CopyKind
    nbytes: int


def packed(
    graphs: Graphs,
    runtime: Runtime,
    scope: Scope,
    node: NodeProto,
    slot: int,
    dtype: str,
    shape: tuple[int, ...],
) -> Packed | None:
    """Return what the kernel of `node` packs its constant input `slot` into; None if it does not.

    `dtype` and `shape` are those of the operand as the node reads it.
    """
    return None
