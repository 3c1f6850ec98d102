"""Types and shapes of values, inferred without running the model or reading its weights."""

from collections.abc import Callable, Mapping
from functools import cached_property

from onnx import defs, helper, numpy_helper
from onnx.shape_inference import infer_node_outputs

from memdiag.graph.graphs import Graphs
from memdiag.graph.inference import Inference
from memdiag.graph.inference_copy import is_safe
from memdiag.graph.native_inference import FAILURES
from memdiag.graph.nodes import Node
from memdiag.graph.reader import ModelFile
from memdiag.graph.scopes import Scope
from memdiag.graph.tensor_data import Array
from memdiag.graph.tensor_types import TensorType
from memdiag.graph.value_tables import ValueTypes

_ONNX = ("", "ai.onnx")


class Shapes:
    """The types of a model's values.

    `opset` is the version of ONNX's own operators that the model imports. `overridable` are the
    initializers that are also listed as inputs of the main graph, so that a caller may give other
    values for them (from IR 4 on; older models list all initializers so). `has_calls` says whether
    calls of functions can be followed: there are some, and they end.
    """

    def __init__(
        self,
        types: ValueTypes,
        *,
        opset: int = 1,
        overridable: frozenset[str] = frozenset(),
        has_calls: bool = False,
        declared: "Callable[[], Shapes] | None" = None,
    ) -> None:
        self._types = types
        self._declared = declared
        self.opset = opset
        self.overridable = overridable
        self.has_calls = has_calls

    def of(self, scope: Scope, name: str) -> TensorType | None:
        """Return the type of the value that `name` is, seen from `scope`; None if not known."""
        home = scope.home(name)
        return self._types.get(home, name) if home is not None else None

    @cached_property
    def as_declared(self) -> "Shapes":
        """The shapes without the sizes that a user gave for free dimensions: as the runtime's.

        They are inferred when they are first asked for, while the model has to be open.
        """
        return self._declared() if self._declared is not None else self

    def of_outputs(
        self, node: Node, types: Mapping[str, TensorType], values: Mapping[str, Array]
    ) -> dict[str, TensorType]:
        """Return the types of the outputs of `node`, an operator of ONNX, as far as they are known.

        `types` are those of its inputs by name, `values` those inputs that are constant and small;
        nothing is known where the type of an input is not.
        """
        whole = all(name in types for name in node.input if name)
        if node.domain not in _ONNX or not whole or not is_safe(node):
            return {}
        try:
            inferred = infer_node_outputs(
                defs.get_schema(node.op_type, self.opset, ""),
                node.proto(),
                {name: kind.proto() for name, kind in types.items()},
                {name: numpy_helper.from_array(value) for name, value in values.items()},
                opset_imports=[helper.make_opsetid("", self.opset)],
            )
        except FAILURES:
            return {}
        known = ((name, TensorType.read(kind)) for name, kind in inferred.items())
        return {name: kind for name, kind in known if kind is not None}


def infer_shapes(
    model: ModelFile, graphs: Graphs, sizes: Mapping[str, int], notes: list[str]
) -> Shapes:
    """Return the types of the values of `model`; `sizes` are those of free dimensions, by name.

    What could not be inferred is missing, and where that is not only because a size is free, a
    sentence is appended to `notes`.
    """
    graph = model.graph
    listed = set(graph.inputs) if model.head.ir_version >= 4 else set()
    inference = Inference(model, graphs, sizes)
    notes.extend(inference.notes)
    return Shapes(
        inference.types,
        opset=next((one.version for one in model.head.opset_import if one.domain in _ONNX), 1),
        overridable=frozenset(name for name in listed if name in graph.initializers),
        has_calls=inference.has_calls,
        declared=(lambda: infer_shapes(model, graphs, {}, [])) if sizes else None,
    )
