"""List a weight among the graph's inputs as well, so that onnxruntime neither folds nor packs it.

An initializer that is listed as an input is only a default: a caller could give another. So it
is no constant to the runtime, which leaves it as it lies, in a mapped file even; nothing has to be
given for it, and the inputs that a session shows stay the same. A Transpose before a product is
fused into it.

It hurts where a packed weight made products faster, mostly for inputs of many rows, and each
load writes a warning to the log. Below the optimization level "extended" a Transpose is not fused
but computed in every run.
"""

import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.remedies.draft import Draft
from memdiag.remedies.rewrite import Rewrite

REWRITE = Rewrite(
    name="overridable-weight",
    summary="list the weight as an input too, so that it is neither folded nor packed",
    rules=(
        "shared-weight-transposed",
        "stored-transpose",
        "original-kept",
        "packed-mapped-weights",
    ),
    arithmetic="reordered",
)

_DEFAULTS_SINCE = 4
_DTYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_PRODUCTS = ("MatMul", "Gemm", "FusedMatMul")
_DOMAINS = ("", "com.microsoft")
_READ_AS_IT_IS = frozenset(
    {
        *_PRODUCTS,
        *("Gather", "GatherElements", "GatherND", "Slice", "Concat", "Shape", "Size"),
        *("Add", "Sub", "Mul", "Div", "Where"),
        *("Conv", "ConvTranspose", "LSTM", "GRU", "RNN", "Attention"),
        *("If", "Loop", "Scan"),
    }
)


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why none of the weights can be listed as an input; None if one can."""
    reasons = [problem(draft, draft.value(name)) for name in finding.weights]
    if not reasons:
        return "it names no weight"
    return None if "" in reasons else reasons[0]


def apply(draft: Draft, finding: Finding) -> bool:
    """List the weights as inputs, behind those that there are; return whether any was new."""
    changed = False
    for name in finding.weights:
        weight = draft.value(name)
        if weight is not None and not problem(draft, weight):
            draft.model.graph.inputs.append(weight)
            changed = True
    return changed


def problem(draft: Draft, weight: ir.Value | None) -> str:
    """Return why `weight` cannot be listed; empty if it can."""
    if (draft.model.ir_version or 0) < _DEFAULTS_SINCE:
        return (
            "the model has IR version 3, where every initializer is listed as an input, so listing"
            " it does not keep onnxruntime from treating it as a constant"
        )
    if weight is None or not weight.is_initializer():
        return "the weight is no initializer"
    if weight.graph is not draft.model.graph:
        return "the weight is owned by a subgraph"
    if weight.is_graph_input():
        return "the weight is listed as an input already"
    if weight.is_graph_output():
        return "the weight is an output"
    if weight.dtype not in _DTYPES:
        return "onnxruntime would convert the weight in every run"
    return _readers_problem(weight)


def _readers_problem(weight: ir.Value) -> str:
    """Return which reader would compute something of the weight in every run; empty if none."""
    pending, seen = [weight], {weight}
    while pending:
        value = pending.pop()
        for node, slot in value.uses():
            if node.domain not in _DOMAINS:
                return f"{node.op_type} may want a constant"
            if node.op_type == "Transpose" and not node.domain:
                why = _transpose_problem(node)
                if why:
                    return why
            elif node.op_type == "Identity" and node.outputs[0] not in seen:
                seen.add(node.outputs[0])
                pending.append(node.outputs[0])
            elif node.op_type not in _READ_AS_IT_IS:
                return f"{node.op_type} of the weight would be computed in every run"
            elif node.op_type in ("LSTM", "GRU", "RNN") and slot > 2:
                return f"{node.op_type} may want a constant"
    return ""


def _transpose_problem(node: ir.Node) -> str:
    """Return why a Transpose would be computed in every run; empty if it is fused."""
    output = node.outputs[0]
    if output.is_graph_output():
        return "the transposed weight is an output"
    for reader, _ in output.uses():
        if reader.domain not in _DOMAINS or reader.op_type not in _PRODUCTS:
            return f"Transpose would be computed in every run, for {reader.op_type}"
        if reader.graph is not node.graph:
            return "Transpose would be computed in every run, for a product in a subgraph"
    return ""
