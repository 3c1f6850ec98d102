import onnx.shape_inference
import pytest

from memdiag.model import node_outputs
from memdiag.model.graph_index import Graph
from memdiag.model.node_outputs import infer_outputs
from memdiag.model.tensor_types import TensorType

JOINED = onnx.helper.make_node("Concat", ["x", "x"], ["y"], axis=0)


@pytest.mark.parametrize(("size", "is_carried"), [(10_000, True), (1 << 40, False)])
def test_values_of_long_lists_are_not_carried(
    size: int, *, is_carried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inference would store each of them, which takes seconds for each node of a chain."""
    asked: list[bool] = []
    infer = onnx.shape_inference.infer_shapes

    def recorded(model: onnx.ModelProto, *, data_prop: bool) -> onnx.ModelProto:
        asked.append(data_prop)
        return infer(model, data_prop=data_prop)

    monkeypatch.setattr(node_outputs, "infer_shapes", recorded)
    types = {"x": TensorType("int64", (size,))}
    (node,) = Graph(onnx.GraphProto(node=[JOINED])).nodes
    assert infer_outputs(node, 17, types, {}) == {"y": TensorType("int64", (2 * size,))}
    assert asked == [is_carried]
