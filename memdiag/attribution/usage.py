"""What the graph says of a weight's use: who reads it, and with which parameters."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from memdiag.attribution.blocks import of_dequantized, of_matmulnbits
from memdiag.attribution.layouts import NBits, Quantization, Uses
from memdiag.graph.graphs import Graphs, integer, integers
from memdiag.graph.nodes import Node
from memdiag.graph.readers import Step, readers
from memdiag.graph.scopes import Scope
from memdiag.records.weights import Weight

_SAME_SHAPE = {"Identity", "Cast", "DequantizeLinear", "Mul"}

# Operators with the weight of a convolution, or of an attention: at which input.
_FILTERS = {
    "Conv": 1,
    "ConvInteger": 1,
    "ConvTranspose": 1,
    "ConvTransposeWithDynamicPads": 1,
    "FusedConv": 1,
    "NhwcConv": 1,
    "NhwcFusedConv": 1,
    "QLinearConv": 3,
}
_ATTENTIONS = {"Attention": 1, "QAttention": 1}

_PRODUCTS = {
    "FusedGemm",
    "FusedMatMul",
    "Gemm",
    "MatMul",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "QGemm",
    "QLinearMatMul",
}


@dataclass(frozen=True)
class Consumer:
    """A node that reads a weight at input `slot`, after the operators in `through`.

    `turned` says of a matrix product whether it multiplies with the transposed weight, by an
    attribute or a Transpose before it; None where that is not known, and for other operators.
    """

    node: str
    op_type: str
    slot: int
    through: tuple[str, ...] = ()
    domain: str = ""
    turned: bool | None = None


class _Read(NamedTuple):
    """A consumer, the node itself in its scope, and the steps between the weight and it."""

    consumer: Consumer
    scope: Scope
    node: Node
    path: tuple[Step, ...]


class Usage:
    """The uses of a model's weights."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs

    def of(self, weight: Weight) -> tuple[Uses, tuple[Consumer, ...]]:
        """Return what the layouts want to know of the use of `weight`, and all its readers."""
        found = list(self._readers(weight))
        uses = Uses(
            permutations=_unique(_permutations(found, len(weight.shape))),
            groups=_unique(_numbers(found, _FILTERS, "group", 1)),
            heads=_unique(_numbers(found, _ATTENTIONS, "num_heads", 0)),
            quantizations=tuple(self._quantizations(weight, found)),
            nbits=tuple(self._nbits(weight, found)),
        )
        return uses, tuple(dict.fromkeys(read.consumer for read in found))

    def _readers(self, weight: Weight) -> Iterator[_Read]:
        for reader in readers(self._graphs, weight):
            node = reader.node
            consumer = Consumer(
                node=self._graphs.label(reader.scope, node),
                op_type=node.op_type,
                slot=reader.slot,
                through=reader.through,
                domain=node.domain,
                turned=_turned(node, reader.through),
            )
            yield _Read(consumer, reader.scope, node, reader.path)

    def _quantizations(self, weight: Weight, found: list[_Read]) -> Iterator[Quantization]:
        for consumer, scope, node, _ in found:
            steps = {step for step in consumer.through if step != "Identity"}
            if node.op_type == "DequantizeLinear" and consumer.slot == 0 and not steps:
                scale = self._graphs.constant(scope, node, 1)
                zero = self._graphs.constant(scope, node, 2)
                if scale is None or (zero is None and _given(node, 2)):
                    continue
                axis = integer(node, "axis", 1)
                points = zero[0] if zero else None
                if points is not None and points.size == scale[0].size == 1:
                    points = points.reshape(scale[0].shape)
                yield Quantization(
                    scale=scale[0],
                    zero_point=points,
                    axis=axis + len(weight.shape) if axis < 0 else axis,
                    block_size=integer(node, "block_size", 0),
                )
            if node.op_type == "Mul" and steps == {"Cast"}:
                factor = self._graphs.constant(scope, node, 1 - consumer.slot)
                if factor is not None and factor[0].ndim <= len(weight.shape):
                    shape = (1,) * (len(weight.shape) - factor[0].ndim) + factor[0].shape
                    yield Quantization(scale=factor[0].reshape(shape))

    def _nbits(self, weight: Weight, found: list[_Read]) -> Iterator[NBits]:
        for consumer, scope, node, path in found:
            made = None
            steps = [step for step in path if step.node.op_type != "Identity"]
            if node.op_type == "MatMulNBits" and consumer.slot == 1 and not steps:
                made = of_matmulnbits(self._graphs, scope, node)
            elif (
                node.op_type in ("MatMul", "Gemm")
                and consumer.slot == 1
                and not integer(node, "transB", 0)
                and [step.node.op_type for step in steps] == ["DequantizeLinear"]
            ):
                made = of_dequantized(self._graphs, *steps[0], weight)
            if made is not None:
                yield made


def _turned(node: Node, through: tuple[str, ...]) -> bool | None:
    """Return whether a product takes a weight, a matrix, the other way round."""
    if node.op_type not in _PRODUCTS or {*through} - {*_SAME_SHAPE, "Transpose"}:
        return None
    return bool(integer(node, "transB", 0)) ^ bool(through.count("Transpose") % 2)


def _permutations(readers: list[_Read], rank: int) -> Iterator[tuple[int, ...]]:
    """Yield those of the Transpose nodes, each together with the ones before it."""
    for _, scope, node, path in readers:
        if node.op_type != "Transpose":
            continue
        order = tuple(range(rank))
        for _, step in (*path, Step(scope, node)):
            if step.op_type == "Transpose":
                perm = integers(step, "perm") or tuple(reversed(range(rank)))
                if sorted(perm) != [*range(rank)]:
                    break
                order = tuple(order[axis] for axis in perm)
            elif step.op_type not in _SAME_SHAPE:
                break  # its axes are others
        else:
            yield order


def _numbers(readers: list[_Read], slots: dict[str, int], name: str, default: int) -> Iterator[int]:
    for consumer, _, node, _ in readers:
        if slots.get(node.op_type) == consumer.slot:
            number = integer(node, name, default)
            if number > 0:
                yield number


def _given(node: Node, slot: int) -> bool:
    return slot < len(node.input) and bool(node.input[slot])


def _unique(values: Iterator[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))
