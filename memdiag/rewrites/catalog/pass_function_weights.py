"""Make a function's weights initializers of the main graph, and pass them to each call.

A function has no initializers: its weights are Constant nodes, and every inlined call has its own
copies. Here the function gets an input for each weight, and all calls pass the same initializer.
Calls in other functions pass on an input of those functions. Small Constants stay.

There is no drawback for running the model. The function itself has more inputs, which a program
that extracts it from the model has to pass.
"""

import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.rewrites.edited_weights import (
    NEW_INPUT_PROBLEM,
    constant_tensor,
    initializers_are_inputs,
    is_constant,
    new_initializer,
)
from memdiag.rewrites.model_editor import ModelEditor, nodes_with_subgraphs
from memdiag.rewrites.rewrite import Rewrite
from memdiag.units import format_size

REWRITE = Rewrite(
    name="pass-function-weights",
    summary="make a function's weights initializers of the main graph, and give them to its calls",
    arithmetic="same",
)

_MIN_PASSED_WEIGHT_BYTES = 1 << 10
_CallsByFunction = dict[ir.OperatorIdentifier, list[ir.Node]]


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why none of the weights can be passed to the calls; None if one can."""
    calls = _calls_by_function(editor)
    problems = [_passed_constant_problem(editor, calls, value) for value in editor.weights(finding)]
    if not problems:
        return "the weights were removed"
    return None if "" in problems else problems[0]


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Pass the weights to the calls of their functions; return whether there were any."""
    calls = _calls_by_function(editor)
    values = [
        value
        for value in editor.weights(finding)
        if not _passed_constant_problem(editor, calls, value)
    ]
    for value in values:
        _pass_weight_to_calls(editor, calls, value)
    return bool(values)


def _passed_constant_problem(editor: ModelEditor, calls: _CallsByFunction, value: ir.Value) -> str:
    """Return why the Constant `value` cannot become an argument; empty if it can."""
    node, tensor = value.producer(), constant_tensor(value)
    function = editor.function(node) if node is not None else None
    if function is None or not is_constant(node):
        return "it is no Constant of a function"
    if tensor is None or tensor.nbytes < _MIN_PASSED_WEIGHT_BYTES:
        return (
            "it is not a dense tensor of numbers, or is smaller than "
            f"{format_size(_MIN_PASSED_WEIGHT_BYTES)}"
        )
    if value.is_graph_output():
        return "it is an output of its graph"
    if initializers_are_inputs(editor):
        return NEW_INPUT_PROBLEM
    return "" if calls.get(function.identifier()) else "nothing calls the function"


def _pass_weight_to_calls(editor: ModelEditor, calls: _CallsByFunction, value: ir.Value) -> None:
    node, tensor = value.producer(), constant_tensor(value)
    assert node is not None
    assert node.graph is not None
    assert tensor is not None
    function = editor.function(node)
    assert function is not None
    name = editor.unique_name(str(value.name))
    weight = new_initializer(editor.model.graph, name, tensor)
    arguments: dict[ir.Function, ir.Value] = {}
    value.replace_all_uses_with(_function_weight_input(editor, calls, function, weight, arguments))
    node.graph.remove(node, safe=True)
    editor.record_replacement(value, weight)


def _function_weight_input(
    editor: ModelEditor,
    calls: _CallsByFunction,
    function: ir.Function,
    weight: ir.Value,
    arguments: dict[ir.Function, ir.Value],
) -> ir.Value:
    """Return the new input of `function` in which all calls pass `weight`.

    `arguments` are the inputs of functions that have one already.
    """
    if function not in arguments:
        tensor = weight.const_value
        assert tensor is not None
        position = len(function.inputs)
        shape = ir.Shape(tensor.shape.numpy())
        argument = ir.Value(name=weight.name, type=ir.TensorType(tensor.dtype), shape=shape)
        arguments[function] = argument
        function.inputs.append(argument)
        for call in calls.get(function.identifier(), []):
            caller = editor.function(call)
            value = weight
            if caller is not None:
                value = _function_weight_input(editor, calls, caller, weight, arguments)
            # Optional inputs that the call omits come before the new one.
            call.resize_inputs(position + 1)
            call.replace_input_with(position, value)
    return arguments[function]


def _calls_by_function(editor: ModelEditor) -> _CallsByFunction:
    calls: _CallsByFunction = {}
    functions = editor.model.functions
    for graph in (editor.model.graph, *functions.values()):
        for node in nodes_with_subgraphs(graph):
            if node.op_identifier() in functions:
                calls.setdefault(node.op_identifier(), []).append(node)
    return calls
