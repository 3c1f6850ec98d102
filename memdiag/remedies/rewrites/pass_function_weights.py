"""A function's weights become initializers of the main graph, which each call is given.

A function has no initializers: its weights are Constant nodes, of which every call is inlined with
copies of its own. Here the function gets an input for each, and all calls the same initializer,
those in other functions by way of inputs of these. Small Constants stay.

It hurts nothing that runs the model: the function itself has more inputs then, so that a program
that takes it out of the model has to give them.
"""

import onnx_ir as ir

from memdiag.records.finding import Finding
from memdiag.remedies.constants import is_constant, must_be_inputs, tensor_of
from memdiag.remedies.draft import Draft, bodies
from memdiag.remedies.merging import weights_of
from memdiag.remedies.rewrite import Rewrite

REWRITE = Rewrite(
    name="pass-function-weights",
    summary="make a function's weights initializers of the main graph, and give them to its calls",
    rules=("constant-nodes",),
    arithmetic="same",
)

_SMALLEST = 1 << 10
_Calls = dict[ir.OperatorIdentifier, list[ir.Node]]


def check(draft: Draft, finding: Finding) -> str | None:
    """Return why none of the weights can be given to the calls; None if one can."""
    calls = _calls(draft)
    problems = [_problem(draft, calls, value) for value in weights_of(draft, finding)]
    if not problems:
        return "it names no weight that is there"
    return None if "" in problems else problems[0]


def apply(draft: Draft, finding: Finding) -> bool:
    """Give the weights to the calls of their functions; return whether there were any."""
    calls = _calls(draft)
    values = [one for one in weights_of(draft, finding) if not _problem(draft, calls, one)]
    for value in values:
        _pass(draft, calls, value)
    return bool(values)


def _problem(draft: Draft, calls: _Calls, value: ir.Value) -> str:
    """Return why the Constant `value` cannot become an argument; empty if it can."""
    node, tensor = value.producer(), tensor_of(value)
    function = draft.function(node) if node is not None else None
    if function is None or not is_constant(node):
        return "it is no Constant of a function"
    if tensor is None or tensor.nbytes < _SMALLEST:
        return "it is no dense tensor of numbers, or a small one"
    if value.is_graph_output():
        return "its graph gives it out"
    if must_be_inputs(draft):
        return "before version 4 of the IR a new initializer would be a new input"
    return "" if calls.get(function.identifier()) else "nothing calls the function"


def _pass(draft: Draft, calls: _Calls, value: ir.Value) -> None:
    node, tensor = value.producer(), tensor_of(value)
    assert node is not None
    assert node.graph is not None
    assert tensor is not None
    function = draft.function(node)
    assert function is not None
    name = draft.unique_name(str(value.name))
    weight = _new(name, tensor)
    weight.const_value = tensor
    draft.model.graph.register_initializer(weight)
    given: dict[ir.Function, ir.Value] = {}
    value.replace_all_uses_with(_argument(draft, calls, function, weight, given))
    node.graph.remove(node, safe=True)
    draft.note_move(value, weight)


def _argument(
    draft: Draft,
    calls: _Calls,
    function: ir.Function,
    weight: ir.Value,
    given: dict[ir.Function, ir.Value],
) -> ir.Value:
    """Return the new input of `function` by which all its calls give it `weight`.

    `given` are those of functions that have one already.
    """
    if function not in given:
        assert weight.const_value is not None
        places = len(function.inputs)
        argument = given[function] = _new(str(weight.name), weight.const_value)
        function.inputs.append(argument)
        for call in calls.get(function.identifier(), []):
            caller = draft.function(call)
            value = weight
            if caller is not None:
                value = _argument(draft, calls, caller, weight, given)
            # What a call leaves out at the end it leaves out in the middle now.
            call.resize_inputs(places + 1)
            call.replace_input_with(places, value)
    return given[function]


def _new(name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Return a value of the type and shape of `tensor`."""
    shape = ir.Shape(tensor.shape.numpy())
    return ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape)


def _calls(draft: Draft) -> _Calls:
    """Return the nodes that call each function of the model."""
    found: _Calls = {}
    functions = draft.model.functions
    pending: list[ir.Graph | ir.Function] = [draft.model.graph, *functions.values()]
    while pending:
        for node in pending.pop():
            if node.op_identifier() in functions:
                found.setdefault(node.op_identifier(), []).append(node)
            pending += (body for _, body in bodies(node))
    return found
