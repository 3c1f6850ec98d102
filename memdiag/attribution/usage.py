"""What the graph says of a weight's use: who reads it, and with which parameters."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, NodeProto, helper

from memdiag.attribution.layouts import NBits, Quantization, Uses
from memdiag.graph.reader import ModelFile
from memdiag.graph.scopes import Scope, Use, main_scope
from memdiag.graph.weights import node_label, subgraphs
from memdiag.records.weights import Weight

Array = NDArray[Any]

_TRANSPARENT = {"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"}
_FOLLOWED = {*_TRANSPARENT, "Transpose", "Cast", "DequantizeLinear"}
_DEEPEST = 8
_PRODUCTS = {"MatMul", "Gemm"}
_BIASED = {"int4": 8, "int8": 128}
_BITS = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8}


@dataclass(frozen=True)
class Consumer:
    """A node that reads a weight at input `slot`, after the operators in `through`."""

    node: str
    op_type: str
    slot: int
    through: tuple[str, ...] = ()


class Graphs:
    """The scopes of a model's graphs by their path, and the weights in them."""

    def __init__(self, model: ModelFile) -> None:
        self._model = model
        self._scopes = dict(_by_path(main_scope(model.proto), ""))
        self._labels = {
            id(node): node_label(node, index)
            for scope in self._scopes.values()
            for index, node in enumerate(scope.nodes)
        }
        self._paths = {id(scope): path for path, scope in self._scopes.items()}
        self._weights = {(weight.graph, weight.name): weight for weight in model.weights}

    def consumers(self, weight: Weight) -> tuple[tuple[Consumer, Use], ...]:
        """Return all readers of `weight`, also those behind operators that only reshape or cast."""
        scope = self._scopes.get(weight.graph)
        return tuple(self._follow(scope, weight.name, ())) if scope else ()

    def uses(self, weight: Weight) -> Uses:
        """Return what the layouts want to know of the use of `weight`."""
        found = self.consumers(weight)
        nodes = [use.node for _, use in found]
        return Uses(
            permutations=_unique(
                _permutation(use.node, len(weight.shape))
                for consumer, use in found
                if use.node.op_type == "Transpose" and not {*consumer.through} - _TRANSPARENT
            ),
            groups=_unique(_number(n, "group", 1) for n in nodes if "Conv" in n.op_type),
            heads=_unique(_number(n, "num_heads", 0) for n in nodes if "Attention" in n.op_type),
            quantizations=tuple(self._quantizations(weight, found)),
            nbits=tuple(self._nbits(weight, found)),
        )

    def _follow(
        self, scope: Scope, name: str, through: tuple[str, ...]
    ) -> Iterator[tuple[Consumer, Use]]:
        for use in scope.uses(name):
            node = use.node
            label = self._labels.get(id(node), node.name or node.op_type)
            yield Consumer(label, node.op_type, use.slot, through), use
            if len(through) < _DEEPEST and self._keeps_the_weight(use):
                yield from self._follow(use.scope, node.output[0], (*through, node.op_type))

    def _keeps_the_weight(self, use: Use) -> bool:
        """Return whether the node's output is still the weight, moved, cast or scaled."""
        if use.node.op_type == "Mul":
            return self._constant(use.scope, use.node, 1 - use.slot) is not None
        return use.node.op_type in _FOLLOWED and use.slot == 0

    def _constant(self, scope: Scope, node: NodeProto, slot: int) -> tuple[Array, Weight] | None:
        """Return the constant at an input of `node`: small ones only are read."""
        if slot >= len(node.input) or not node.input[slot]:
            return None
        home = scope.home(node.input[slot])
        path = self._paths.get(id(home))
        weight = None if path is None else self._weights.get((path, node.input[slot]))
        return None if weight is None else (self._model.data(weight), weight)

    def _quantizations(
        self, weight: Weight, found: tuple[tuple[Consumer, Use], ...]
    ) -> Iterator[Quantization]:
        for consumer, use in found:
            if use.node.op_type == "DequantizeLinear" and use.slot == 0:
                scale = self._constant(use.scope, use.node, 1)
                zero = self._constant(use.scope, use.node, 2)
                if scale is not None:
                    axis = _number(use.node, "axis", 1)
                    yield Quantization(
                        scale=scale[0],
                        zero_point=zero[0] if zero else None,
                        axis=axis + len(weight.shape) if axis < 0 else axis,
                        block_size=_number(use.node, "block_size", 0),
                    )
            if use.node.op_type == "Mul" and consumer.through == ("Cast",):
                factor = self._constant(use.scope, use.node, 1 - use.slot)
                if factor is not None and factor[0].ndim <= len(weight.shape):
                    shape = (1,) * (len(weight.shape) - factor[0].ndim) + factor[0].shape
                    yield Quantization(scale=factor[0].reshape(shape))

    def _nbits(self, weight: Weight, found: tuple[tuple[Consumer, Use], ...]) -> Iterator[NBits]:
        for consumer, use in found:
            if use.node.op_type == "MatMulNBits" and use.slot == 1:
                yield self._of_operator(use)
            if use.node.op_type in _PRODUCTS and consumer.through == ("DequantizeLinear",):
                dequantize = use.scope.producers.get(use.node.input[use.slot])
                made = self._of_dequantized(weight, use.scope, dequantize)
                if made is not None:
                    yield made

    def _of_operator(self, use: Use) -> NBits:
        node = use.node
        bits, columns = _number(node, "bits", 4), _number(node, "N", 0)
        depth, block_size = _number(node, "K", 0), _number(node, "block_size", 32)
        blocks = -(-depth // block_size)
        scales = self._constant(use.scope, node, 2)
        zeros = self._constant(use.scope, node, 3)
        unpacked = None
        if zeros is not None and zeros[0].dtype == np.uint8:
            rows = zeros[0].reshape(columns, -1)
            unpacked = _unpack(rows, bits)[:, :blocks]
        return NBits(
            columns=columns,
            depth=depth,
            block_size=block_size,
            bits=bits,
            scales=scales[0].reshape(columns, blocks) if scales else None,
            zero_points=unpacked,
        )

    def _of_dequantized(self, weight: Weight, scope: Scope, node: NodeProto | None) -> NBits | None:
        block_size = _number(node, "block_size", 0) if node else 0
        bits = _BITS.get(weight.dtype)
        if node is None or not block_size or bits is None or len(weight.shape) != 2:
            return None
        depth, columns = weight.shape
        blocks = -(-depth // block_size)
        scales = self._constant(scope, node, 1)
        zeros = self._constant(scope, node, 2)
        signed = weight.dtype in _BIASED
        points = np.zeros((columns, blocks), np.uint8) if not signed else None
        if zeros is not None:
            values = zeros[0].reshape(1, -1).view(np.uint8)
            flat = _unpack(values, bits)[0, : blocks * columns].astype(np.int64)
            half = _BIASED.get(weight.dtype, 0)
            flat = (flat + half) % (2 * half) if half else flat
            points = flat.astype(np.uint8).reshape(blocks, columns).T
        return NBits(
            columns=columns,
            depth=depth,
            block_size=block_size,
            bits=bits,
            by_row=True,
            signed=signed,
            scales=scales[0].reshape(blocks, columns).T if scales else None,
            zero_points=points,
        )


def _by_path(scope: Scope, path: str) -> Iterator[tuple[str, Scope]]:
    yield path, scope
    prefix = f"{path}/" if path else ""
    for index, node in enumerate(scope.nodes):
        bodies = scope.bodies.get(id(node), ())
        for (attribute, _), body in zip(subgraphs(node), bodies, strict=False):
            yield from _by_path(body, f"{prefix}{node_label(node, index)}/{attribute}")


def _attributes(node: NodeProto) -> Mapping[str, Any]:
    kinds = (AttributeProto.INT, AttributeProto.INTS)
    return {
        one.name: helper.get_attribute_value(one) for one in node.attribute if one.type in kinds
    }


def _number(node: NodeProto, name: str, default: int) -> int:
    return int(_attributes(node).get(name, default))


def _permutation(node: NodeProto, rank: int) -> tuple[int, ...]:
    return tuple(_attributes(node).get("perm", reversed(range(rank))))


def _unique(values: Iterator[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))


def _unpack(rows: Array, bits: int) -> Array:
    """Return the values of rows of packed bytes, those in the low bits first."""
    if bits == 8:
        return rows
    return np.stack((rows & 15, rows >> 4), axis=-1).reshape(len(rows), -1)
