"""Store the result that a chain of nodes computes from constants, so that no session computes it.

The installed onnxruntime evaluates the chain once, in a separate process, and the result becomes an
initializer. The nodes of the chain are removed, and with them the large values between the nodes
and the constants that nothing else reads.

There is no drawback in a run. The file grows by the result. Another release might have computed
sums in another order.
"""

import math
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from memdiag.errors import MeasurementError
from memdiag.model.constant_values import RANDOM_OPERATORS
from memdiag.model.graph_index import ONNX_DOMAINS
from memdiag.model.tensor_types import Array, known_shape
from memdiag.records.finding import Finding
from memdiag.rewrites.edited_weights import (
    NEW_INPUT_PROBLEM,
    constant_tensor,
    initializers_are_inputs,
    new_initializer,
    remove_weight,
)
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewrite
from memdiag.runner.job import Job, SessionConfig
from memdiag.runner.session_server import SessionServer
from memdiag.session_options import LEVEL_OPTION
from memdiag.temporary_names import own_prefix

REWRITE = Rewrite(
    name="store-folded-result",
    summary="store the result of a chain of nodes that reads only constants as a weight",
    arithmetic="reordered",
)

_MAX_STORED_CHAIN_NODES = 1000
_MAX_EVALUATED_BYTES = 1 << 31
"""Maximum size of all values that are computed in one process, which are in memory at once."""

_RANDOM_OPERATORS = RANDOM_OPERATORS - {"Dropout"}  # a session passes its input on


def check(editor: ModelEditor, finding: Finding) -> str | None:
    """Return why no result can be stored; None if one can."""
    if initializers_are_inputs(editor):
        return NEW_INPUT_PROBLEM
    results = _chain_results(editor, finding)
    if not results:
        return "its nodes were removed"
    problems = [problem for _, problem in results]
    return None if "" in problems else problems[0]


def apply(editor: ModelEditor, finding: Finding) -> bool:
    """Store the results of the nodes' chains; return whether there were any."""
    results = [value for value, problem in _chain_results(editor, finding) if not problem]
    arrays = _evaluated_arrays(editor, results)
    for value, array in arrays.items():
        chain = _value_chain(value)
        graph, name = value.graph, value.name
        assert chain is not None
        assert graph is not None
        stored = new_initializer(
            graph, editor.unique_name(f"{name}_stored"), ir.tensor(array, name=name)
        )
        value.replace_all_uses_with(stored)
        operands = dict.fromkeys(
            operand for node in chain for operand in node.inputs if operand is not None
        )
        for node in reversed(chain):
            if not any(output.uses() or output.is_graph_output() for output in node.outputs):
                graph.remove(node, safe=True)
        for operand in operands:
            is_read = operand.uses() or operand.is_graph_output()
            if constant_tensor(operand) is not None and not is_read:
                remove_weight(editor, operand)
    return bool(arrays)


def _chain_results(editor: ModelEditor, finding: Finding) -> list[tuple[ir.Value, str]]:
    """Return the chains' results, each with the reason it cannot be stored (empty if it can)."""
    pending = [node for node in map(editor.node, finding.nodes) if node is not None]
    visited = set(pending)
    problem_by_result: dict[ir.Value, str] = {}
    while pending:
        for output in pending.pop().outputs:
            for reader, _ in output.uses():
                if _node_chain(reader) is None:
                    problem_by_result[output] = _stored_result_problem(editor, output)
                elif reader not in visited:
                    visited.add(reader)
                    pending.append(reader)
            if output.is_graph_output():
                problem_by_result[output] = "its result is an output"
    return list(problem_by_result.items())


def _stored_result_problem(editor: ModelEditor, value: ir.Value) -> str:
    chain = _value_chain(value)
    if chain is None:
        return "it is not computed from constants alone"
    if any(editor.function(node) is not None for node in chain):
        return "it is in a function, which has no initializers"
    if any(node.graph is not value.graph for node in chain):
        return "it is computed in several graphs"
    sizes = [_max_value_bytes(editor, output) for node in chain for output in node.outputs]
    if None in sizes:
        return "the sizes of the values are not known"
    if sum(size or 0 for size in sizes) > _MAX_EVALUATED_BYTES:
        return "the values are larger than 2 GiB"
    return ""


def _max_value_bytes(editor: ModelEditor, value: ir.Value) -> int | None:
    shape = known_shape(editor.type_of(value))
    return None if shape is None else math.prod(shape) * 8


def _value_chain(value: ir.Value) -> list[ir.Node] | None:
    """Return the nodes that compute `value` from constants alone, in order; else None."""
    producer = value.producer()
    return None if producer is None else _node_chain(producer)


def _node_chain(last: ir.Node) -> list[ir.Node] | None:
    chain: dict[ir.Node, None] = {}
    pending = [(last, False)]
    while pending:
        node, is_done = pending.pop()
        if is_done:
            chain[node] = None
            continue
        if node in chain:
            continue
        graphs = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
        has_graph = any(
            attribute.type in graphs or attribute.is_ref() for attribute in node.attributes.values()
        )
        if node.domain not in ONNX_DOMAINS or node.op_type in _RANDOM_OPERATORS or has_graph:
            return None
        pending.append((node, True))
        for value in node.inputs:
            if value is None or (constant_tensor(value) is not None and not value.is_graph_input()):
                continue
            producer = value.producer()
            if producer is None or len(chain) + len(pending) > _MAX_STORED_CHAIN_NODES:
                return None
            pending.append((producer, False))
    return list(chain)


def _evaluated_arrays(editor: ModelEditor, results: list[ir.Value]) -> dict[ir.Value, Array]:
    """Return the arrays of `results`, without those that the runtime cannot evaluate.

    Those of one graph are evaluated in one process, unless all values are too large together.
    """
    array_by_value: dict[ir.Value, Array] = {}
    graphs = dict.fromkeys(value.graph for value in results)
    for group in [[value for value in results if value.graph is graph] for graph in graphs]:
        nodes = _chain_nodes(group)
        sizes = [_max_value_bytes(editor, output) or 0 for node in nodes for output in node.outputs]
        if len(group) > 1 and sum(sizes) <= _MAX_EVALUATED_BYTES:
            with suppress(MeasurementError):
                array_by_value |= _run_chains(editor, group)
                continue
        for value in group:
            with suppress(MeasurementError):
                array_by_value |= _run_chains(editor, [value])
    return array_by_value


def _chain_nodes(results: list[ir.Value]) -> list[ir.Node]:
    """Return the nodes of the chains of `results`, each once, in order."""
    return list(dict.fromkeys(node for value in results for node in _value_chain(value) or ()))


def _run_chains(editor: ModelEditor, results: list[ir.Value]) -> dict[ir.Value, Array]:
    """Return the arrays that the chains of `results`, which are in one graph, compute.

    Raises:
        MeasurementError: the runtime fails.
    """
    nodes = _chain_nodes(results)
    weights = {
        operand.name: tensor
        for node in nodes
        for operand in node.inputs
        if operand is not None and (tensor := constant_tensor(operand)) is not None
    }
    graph = onnx.helper.make_graph(
        [ir.serde.serialize_node(node) for node in nodes],
        "chains",
        [],
        [onnx.ValueInfoProto(name=value.name) for value in results],
        [onnx.numpy_helper.from_array(tensor.numpy(), name) for name, tensor in weights.items()],
    )
    opsets = [onnx.helper.make_opsetid("", editor.opset(nodes[-1]))]
    model = onnx.helper.make_model(
        graph, opset_imports=opsets, ir_version=editor.model.ir_version or 10
    )
    with tempfile.TemporaryDirectory(prefix=own_prefix()) as folder:
        path = Path(folder, "chains.onnx")
        onnx.save(model, path, save_as_external_data=True, location="data")
        session = SessionConfig(options={LEVEL_OPTION: "disable_all"})
        job = Job(model=path, runs=None, session=session)
        with SessionServer(job, [()]) as server:
            files = server.save(0, Path(folder, "results"))
        return {value: np.load(files[value.name or ""][0]) for value in results}
