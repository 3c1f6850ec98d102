"""List a weight also among the graph's inputs, so that onnxruntime neither folds nor packs it.

An initializer that is listed as an input is only a default that a caller could set. So it is not a
constant for the runtime, which uses it unchanged, even in a mapped file. Callers do not have to set
it, and the inputs that a session reports stay the same. A Transpose before a product is fused into
it.

The drawback is that products by a packed weight were faster, mostly for inputs of many rows, and
each load writes a warning to the log. Below the optimization level "extended" a Transpose is not
fused but computed in every run.
"""

import onnx_ir as ir

from memdiag.model.graph_index import MICROSOFT_DOMAIN
from memdiag.records.finding import Finding
from memdiag.rewrites.edited_weights import (
    ALREADY_INPUTS_PROBLEM,
    initializers_are_inputs,
    is_main_initializer,
)
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite, first_problem

REWRITE = Rewrite(
    name="overridable-weight",
    summary="list the weight as an input too, so that it is neither folded nor packed",
    arithmetic="reordered",
)

_UNCONVERTED_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_PRODUCT_OPERATORS = ("MatMul", "Gemm", "FusedMatMul")
_KNOWN_READER_DOMAINS = ("", MICROSOFT_DOMAIN)
_READS_UNCHANGED = frozenset(
    {
        *_PRODUCT_OPERATORS,
        *("Gather", "GatherElements", "GatherND", "Slice", "Concat", "Shape", "Size"),
        *("Add", "Sub", "Mul", "Div", "Where"),
        *("Conv", "ConvTranspose", "LSTM", "GRU", "RNN", "Attention"),
        *("If", "Loop", "Scan"),
    }
)


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why none of the weights can be listed as an input; None if one can."""
    problems = (listing_problem(editor, editor.value(name)) for name in finding.weights)
    return first_problem(problems, otherwise="it names no weight")


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Append the weights to the inputs; return whether any was new."""
    changed = False
    for name in finding.weights:
        weight = editor.value(name)
        if weight is not None and not listing_problem(editor, weight):
            editor.model.graph.inputs.append(weight)
            changed = True
    return changed


def listing_problem(editor: ModelEditor, weight: ir.Value | None) -> str:
    """Return why `weight` cannot be listed; empty if it can."""
    if initializers_are_inputs(editor):
        return ALREADY_INPUTS_PROBLEM
    if weight is None or not weight.is_initializer():
        return "the weight is not an initializer"
    if not is_main_initializer(editor, weight):
        return "the weight is owned by a subgraph"
    if weight.is_graph_input():
        return "the weight is listed as an input already"
    if weight.is_graph_output():
        return "the weight is an output"
    if weight.dtype not in _UNCONVERTED_TYPES:
        return "onnxruntime would convert the weight in every run"
    return _unfolded_reader_problem(weight)


def _unfolded_reader_problem(weight: ir.Value) -> str:
    """Return which reader would compute something from the weight in every run; empty if none."""
    pending, visited = [weight], {weight}
    while pending:
        value = pending.pop()
        for node, input_index in value.uses():
            if node.domain not in _KNOWN_READER_DOMAINS:
                return f"{node.op_type} may require a constant"
            if node.op_type == "Transpose" and not node.domain:
                problem = _unfused_transpose_problem(node)
                if problem:
                    return problem
            elif node.op_type == "Identity" and node.outputs[0] not in visited:
                visited.add(node.outputs[0])
                pending.append(node.outputs[0])
            elif node.op_type not in _READS_UNCHANGED:
                return f"{node.op_type} of the weight would be computed in every run"
            elif node.op_type in ("LSTM", "GRU", "RNN") and input_index > 2:
                return f"{node.op_type} may require a constant"
    return ""


def _unfused_transpose_problem(node: ir.Node) -> str:
    """Return why a Transpose would be computed in every run; empty if it is fused."""
    output = node.outputs[0]
    if output.is_graph_output():
        return "the transposed weight is an output"
    for reader, _ in output.uses():
        if reader.domain not in _KNOWN_READER_DOMAINS or reader.op_type not in _PRODUCT_OPERATORS:
            return f"Transpose would be computed in every run, for {reader.op_type}"
        if reader.graph is not node.graph:
            return "Transpose would be computed in every run, for a product in a subgraph"
    return ""
