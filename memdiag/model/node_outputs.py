"""Types and numbers of the outputs of one node, from the types and numbers of its inputs."""

from collections.abc import Mapping

import numpy as np
from google.protobuf.message import DecodeError, EncodeError
from onnx import GraphProto, NodeProto, ValueInfoProto, defs, helper, numpy_helper
from onnx.checker import ValidationError
from onnx.shape_inference import InferenceError, infer_shapes

from memdiag.model.constant_values import EVALUATED_OPERATORS, MAX_VALUES, evaluate_node
from memdiag.model.contrib_shapes import CONTRIB_DOMAINS, equivalent_op
from memdiag.model.graph_index import Node
from memdiag.model.inference_input import is_safe
from memdiag.model.tensor_types import Array, TensorType

INFERENCE_FAILURES = (
    *(InferenceError, ValidationError, defs.SchemaError, DecodeError, EncodeError),
    *(RuntimeError, ValueError, TypeError, LookupError, MemoryError),
)
"""What ONNX's native inference raises for nodes that make no sense."""

_MAX_CARRIED_ELEMENTS = 10_000
"""Elements of a list up to which the inference may carry their values: it stores each of them."""

# A version that allows initializers that are not inputs; onnx may write newer ones than it reads.
_IR_VERSION = 8


def infer_outputs(
    node: Node, opset: int, types: Mapping[str, TensorType], values: Mapping[str, Array]
) -> dict[str, TensorType]:
    """Return the known types of the outputs of `node` by name, as ONNX infers them.

    Args:
        node: the node: an operator of ONNX, or one of ONNX Runtime's that has an equivalent.
        opset: the version of ONNX's operators.
        types: the types of its inputs by name. If one is missing, no output is known.
        values: the numbers of inputs that are known.
    """
    if not all(name in types for name in node.input if name) or not is_safe(node):
        return {}
    proto, types = node.proto, dict(types)
    if node.domain in CONTRIB_DOMAINS:
        shapes = {name: kind.shape for name, kind in types.items()}
        equivalent = equivalent_op(proto, lambda name: _complete_shape_or_none(shapes.get(name)))
        if equivalent is None:
            return {}
        proto = NodeProto()
        proto.CopyFrom(node.proto)
        proto.domain, proto.op_type = "", equivalent.op_type
        proto.input[:] = equivalent.inputs
        if equivalent.equation:
            proto.attribute.append(helper.make_attribute("equation", equivalent.equation))
        types |= {
            name: TensorType("float", shape) for name, shape in equivalent.made_up_shapes.items()
        }
    elif not node.is_onnx:
        return {}
    # A model of one node, as some operators are inferred from their functions only.
    graph = GraphProto(name="node", node=[proto])
    for name in dict.fromkeys(filter(None, proto.input)):
        if name in values:
            graph.initializer.append(numpy_helper.from_array(values[name], name))
        else:
            graph.input.add(name=name).type.CopyFrom(types[name].proto())
    graph.output.extend(ValueInfoProto(name=name) for name in filter(None, proto.output))
    model = helper.make_model(
        graph, ir_version=_IR_VERSION, opset_imports=[helper.make_opsetid("", opset)]
    )
    lengths = (kind.shape[0] or 0 for kind in types.values() if kind.shape and len(kind.shape) == 1)
    try:
        inferred = infer_shapes(
            model, data_prop=max(lengths, default=0) <= _MAX_CARRIED_ELEMENTS
        ).graph.output
    except INFERENCE_FAILURES:
        return {}
    outputs = ((value.name, TensorType.read(value.type)) for value in inferred)
    return {name: kind for name, kind in outputs if kind is not None}


VECTORIZED_OPERATORS = EVALUATED_OPERATORS | {
    *("ArgMax", "ArgMin", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"),
    *("CastLike", "Clip", "Compress", "CumSum", "Exp", "EyeLike", "Flatten", "Identity", "IsInf"),
    *("IsNaN", "Log", "Mean", "Mod", "OneHot", "Pow", "Reciprocal", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceSum", "Round", "Sign", "Split", "Sum", "TopK", "Trilu", "Unique", "Xor"),
}
"""Operators whose numbers are computed by the reference implementation with numpy's loops."""

LOOPING_OPERATORS = frozenset({"GatherElements", "GatherND", "Pad", "ScatterElements", "ScatterND"})
"""Operators whose reference implementation loops in Python: for few numbers only."""


def compute_outputs(node: Node, opset: int, values: Mapping[str, Array]) -> dict[str, Array]:
    """Return the numbers of the outputs of `node`, an operator of ONNX, by name; empty if unknown.

    `values` are the numbers of all its inputs by name. What `evaluate_node` does not know, ONNX's
    reference implementation computes for operators that make shapes and masks; others may never
    end.
    """
    if not node.is_onnx or node.op_type not in VECTORIZED_OPERATORS | LOOPING_OPERATORS:
        return {}
    is_long = sum(value.size for value in values.values()) > MAX_VALUES
    if node.op_type in LOOPING_OPERATORS and is_long:
        return {}
    if len(node.output) == 1 and "" not in node.input:
        value = evaluate_node(node, [values[name] for name in node.input])
        if value is not None:
            return {node.output[0]: value}
    # Imported here: it takes a tenth of a second, and most models do not need it.
    from onnx.reference import ReferenceEvaluator

    outputs = [name for name in node.output if name]
    graph = GraphProto(name="node", node=[node.proto])
    for name in values:
        graph.input.add(name=name)
    for name in outputs:
        graph.output.add(name=name)
    try:
        with np.errstate(all="ignore"):
            computed = ReferenceEvaluator(graph, opsets={"": opset}).run(None, dict(values))
    except Exception:  # numpy's and Python's own, whatever an operator meets in damaged numbers
        return {}
    return {
        name: value
        for name, value in zip(outputs, computed, strict=True)
        if isinstance(value, np.ndarray)
    }


def _complete_shape_or_none(shape: tuple[int | None, ...] | None) -> tuple[int, ...] | None:
    if shape is None or None in shape:
        return None
    return tuple(size or 0 for size in shape)
