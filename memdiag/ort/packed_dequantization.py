"""Dequantized weights that are merged with the product behind them into one MatMulNBits.

Measured for the releases that tests/rules/test_dequantized_matmul.py names.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Sequence
from functools import cached_property
from itertools import islice

from memdiag.model.graph_index import GraphIndex, Node, Scope, Use, integer_attribute
from memdiag.model.index_ranges import small_constant
from memdiag.model.readers import PathStep, WeightReader, find_readers
from memdiag.model.shapes import ModelShapes
from memdiag.ort.fusions import becomes_gemm
from memdiag.ort.releases import DEQUANTIZE_FUSED_MORE_SINCE, DEQUANTIZE_SHARED_UNFUSED_SINCE
from memdiag.ort.runtime import Runtime
from memdiag.records.weights import Weight

PACKED_DTYPE_BITS = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8, "int2": 2, "uint2": 2}
"""The types of quantized weights, and their bits."""

BLOCKS = (16, 32, 64, 128, 256)
"""The numbers of values in a block, which share a scale, that MatMulNBits accepts."""

FUSED_LEVEL = 4
"""The accuracy of a product that is fused: session.qdq_matmulnbits_accuracy_level."""


class PackedDequantization:
    """The DequantizeLinear nodes of weights that one release merges into the products behind them.

    Args:
        graphs, shapes, runtime: the model and the release.
    """

    def __init__(self, graphs: GraphIndex, shapes: ModelShapes, runtime: Runtime) -> None:
        self._graphs, self._shapes, self._runtime = graphs, shapes, runtime

    def includes(self, scope: Scope, node: Node) -> bool:
        """Return whether `node`, a DequantizeLinear of `scope`, is such a node."""
        if len(node.input) < 2:
            return False
        weight, scale = (self._graphs.weight(scope, name) for name in node.input[:2])
        if weight is None or scale is None or weight.dtype not in PACKED_DTYPE_BITS:
            return False
        readers: list[WeightReader] = []
        for reader in find_readers(self._graphs, weight):
            steps = [step for step in reader.path if step.node.op_type != "Identity"]
            if steps and steps[0].node is node and reader.node.op_type not in _LAYOUT_STEPS:
                if any(step.node.op_type != "Transpose" for step in steps[1:]):
                    return False
                readers.append(reader)
        if not readers or not all(map(computes_floats, readers)):
            return False
        step = PathStep(scope, node)
        return not unfused_reason(
            self._graphs,
            self._shapes,
            self._runtime,
            weight,
            step,
            readers,
            scale,
            self._weights_sharing_scales,
        )

    @cached_property
    def _weights_sharing_scales(self) -> frozenset[Weight]:
        return shared_scales(self._graphs)


_LAYOUT_STEPS = ("Identity", "Transpose")


def computes_floats(reader: WeightReader) -> bool:
    """Return whether a reader is a product or a Gather that is not computed in integers."""
    node, scope = reader.node, reader.scope
    if not node.is_onnx:
        return False
    if node.op_type == "Gather" and reader.input_index == 0:
        return not any(use.node.op_type == "QuantizeLinear" for use in scope.uses(node.output[0]))
    if node.op_type not in ("MatMul", "Gemm") or reader.input_index != 1:
        return False
    defining = scope.defining_scope(node.input[0])
    producer = defining.producers.get(node.input[0]) if defining is not None else None
    return producer is None or producer.op_type != "DequantizeLinear"


def shared_scales(graphs: GraphIndex) -> frozenset[Weight]:
    """Return the weights that are the scales of several weights.

    Scalars with equal values count as one, as the runtime merges them at load.
    """
    scales_by_content: dict[Hashable, list[Weight]] = defaultdict(list)
    for _, scope in graphs:
        for node in scope.nodes:
            if node.op_type != "DequantizeLinear" or len(node.input) < 2 or not node.input[1]:
                continue
            scale = graphs.weight(scope, node.input[1])
            if scale is None:
                continue
            is_number = scale.dtype == "float" and scale.shape == ()
            number = small_constant(scope, node.input[1]) if is_number else None
            content = scale if number is None else number.tobytes()
            scales_by_content[content].append(scale)
    shared = (scales for scales in scales_by_content.values() if len(scales) > 1)
    return frozenset(scale for scales in shared for scale in scales)


def unfused_reason(
    graphs: GraphIndex,
    shapes: ModelShapes,
    runtime: Runtime,
    weight: Weight,
    dequantize: PathStep,
    readers: Sequence[WeightReader],
    scale: Weight,
    shared: Collection[Weight],
) -> str:
    """Return why a DequantizeLinear is not fused with its readers; empty if it is."""
    fuses_more = runtime >= DEQUANTIZE_FUSED_MORE_SINCE
    operators = {reader.node.op_type for reader in readers}
    blocks = integer_attribute(dequantize.node, "block_size", 0)
    shape = weight.shape
    if "Gather" in operators:
        return "a Gather reads it"
    if len(shape) != 2:
        return "the weight is not a matrix"
    if any("Transpose" in reader.through for reader in readers):
        return "a Transpose is between them"
    if any(integer_attribute(reader.node, "transB", 0) for reader in readers):
        return "Gemm reads it with transB"
    if PACKED_DTYPE_BITS[weight.dtype] != 4 and not fuses_more:
        return f"{PACKED_DTYPE_BITS[weight.dtype]} bits are fused since 1.25"
    if scale.dtype != "float" and not (fuses_more and scale.dtype == "float16"):
        return "the scales are not fp32"
    if "Gemm" in operators and not fuses_more:
        return "Gemm is fused since 1.25"
    if not blocks and (not fuses_more or scale.shape not in ((), (shape[1],))):
        return "it is not quantized in blocks"
    is_by_column = not blocks and scale.shape == (shape[1],)
    axis = integer_attribute(dequantize.node, "axis", 1)
    if (is_by_column and axis in (0, -2)) or (blocks and axis in (1, -1)):
        return "its scales belong to rows" if is_by_column else "its blocks are along the last axis"
    if (is_by_column or blocks) and axis < 0:
        return f"its axis is written as {axis}"
    if blocks and blocks not in BLOCKS:
        return f"its blocks are of {blocks} values"
    if len(readers) > 1 and runtime >= DEQUANTIZE_SHARED_UNFUSED_SINCE:
        return "several nodes share the DequantizeLinear"
    if runtime >= DEQUANTIZE_SHARED_UNFUSED_SINCE and scale in shared:
        return "several weights share their scales"
    reasons = (_following_node_reason(graphs, shapes, runtime, reader) for reader in readers)
    return next(filter(None, reasons), "")


def _following_node_reason(
    graphs: GraphIndex, shapes: ModelShapes, runtime: Runtime, reader: WeightReader
) -> str:
    """Return why the node after a product prevents the fusion; empty if it does not."""
    scope, output = reader.scope, reader.node.output[0]
    uses = list(islice(scope.uses(output), 2))
    if len(uses) != 1 or output in scope.output_names:
        return ""
    use = uses[0]
    operator = use.node.op_type
    if operator in ("Relu", "Clip"):
        is_output = use.node.output[0] in use.scope.output_names
        return "" if is_output else f"a {operator} takes the product"
    if becomes_gemm(graphs, shapes, scope, reader.node):
        fuses = runtime >= DEQUANTIZE_FUSED_MORE_SINCE and _adds_constant(graphs, use)
        return "" if fuses else "an Add makes the product a Gemm"
    return ""


def _adds_constant(graphs: GraphIndex, use: Use) -> bool:
    constant = graphs.constant_weight(use.scope, use.node, 1 - use.input_index)
    return constant is not None and len(constant.shape) == 1
