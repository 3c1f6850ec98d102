"""Drafts: what findings name is found in them, and what is written is what was read."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper, parser

from memdiag.errors import ModelError
from memdiag.model.model_file import ModelFile, open_model
from memdiag.remedies.constants import tensor_of
from memdiag.remedies.draft import Draft, tensors
from memdiag.remedies.rewrites import constant_to_initializer, hoist_subgraph_weights
from memdiag.remedies.saving import save
from tests.remedies.rewrites.rewriting import finding

WEIGHT = np.arange(600, dtype=np.float32).reshape(20, 30)


def opened(model: ModelProto, folder: Path) -> ModelFile:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return open_model(path)


def parsed(text: str, *, ir_version: int = 10) -> ModelProto:
    return parser.parse_model(
        f'<ir_version: {ir_version}, opset_import: ["" : 17, "local" : 3]> {text}'
    )


def nested() -> ModelProto:
    """Return a model with weights at all depths, some nodes without names."""
    model = parsed(
        """g (bool c, float[2, 20] x) => (float[2, m] y) {
            y = If (c) <
                then_branch = a () => (float[2, m] p) {
                    k = Constant()
                    p = If (c) <
                        then_branch = aa () => (float[2, m] pp) { pp = MatMul(x, inner) },
                        else_branch = ab () => (float[2, m] pq) { pq = MatMul(x, k) }
                    >
                },
                else_branch = b () => (float[2, m] q) { q = local.F(x) }
            > }
        <domain: "local", opset_import: ["" : 15]>
        F (x) => (y) { k = Constant() y = MatMul(x, k) }"""
    )
    outer = model.graph.node[0].attribute[0].g
    innermost = outer.node[1].attribute[0].g
    innermost.initializer.append(numpy_helper.from_array(WEIGHT, "inner"))
    model.graph.initializer.append(numpy_helper.from_array(WEIGHT, "unread"))
    for body in (outer, model.functions[0]):
        value = body.node[0].attribute.add(name="value", type=AttributeProto.TENSOR)
        value.t.CopyFrom(numpy_helper.from_array(WEIGHT))
    outer.node[1].name = "named"
    return model


def test_weights_are_found_by_the_names_of_findings(tmp_path: Path) -> None:
    with opened(nested(), tmp_path) as file:
        draft = Draft(file)
        for weight in file.weights:
            name = f"{weight.graph}/{weight.name}" if weight.graph else weight.name
            value = draft.value(name)
            assert value is not None, name
            assert value.name == weight.name
        assert draft.value("If_0/then_branch/named/then_branch/inner") is not None
        assert draft.value("local::F/k") is not None
        assert draft.value("inner") is None


def test_nodes_are_found_by_the_names_of_findings(tmp_path: Path) -> None:
    with opened(nested(), tmp_path) as file:
        draft = Draft(file)
        found = draft.node("If_0/then_branch/named/then_branch/MatMul_0")
        assert found is not None
        assert found.inputs[1] is draft.value("If_0/then_branch/named/then_branch/inner")
        in_function = draft.node("local::F/MatMul_1")
        assert in_function is not None
        assert draft.node("If_0/MatMul_0") is None
        assert draft.opset(found) == 17
        assert draft.opset(in_function) == 15
        assert draft.function(found) is None
        function = draft.function(in_function)
        assert function is not None
        assert function.name == "F"


def test_what_was_removed_is_found_no_more(tmp_path: Path) -> None:
    with opened(nested(), tmp_path) as file:
        draft = Draft(file)
        draft.model.graph.initializers.pop("unread")
        assert draft.value("unread") is None
        node = draft.node("If_0/else_branch/F_0")
        assert node is not None
        assert node.graph is not None
        node.graph.remove(node)
        assert draft.node("If_0/else_branch/F_0") is None


def test_a_constant_that_became_an_initializer_keeps_its_name(tmp_path: Path) -> None:
    name = "If_0/then_branch/k"
    with opened(nested(), tmp_path) as file:
        draft = Draft(file)
        before = draft.value(name)
        assert before is not None
        assert constant_to_initializer.apply(draft, finding(name))
        moved = draft.value(name)
        assert moved is not None
        assert moved is not before
        assert moved.is_initializer()
        # Another rewrite finds it there, and moves it on.
        assert hoist_subgraph_weights.apply(draft, finding(name))
        hoisted = draft.value(name)
        assert hoisted is not None
        assert hoisted.graph is draft.model.graph
        assert tensor_of(hoisted) is not None


def test_a_name_that_means_two_things_means_none(tmp_path: Path) -> None:
    model = parsed("g (float[1] x) => (float[1] y, float[1] z) { y = Relu(x) z = Relu(x) }")
    model.graph.node[0].name = model.graph.node[1].name = "same"
    with opened(model, tmp_path) as file:
        assert Draft(file).node("same") is None


def test_new_names_are_nobodys(tmp_path: Path) -> None:
    with opened(nested(), tmp_path) as file:
        draft = Draft(file)
        for taken in ("inner", "x", "pp", "named", "k", "c", "If_0"):
            assert draft.unique_name(taken) == f"{taken}_2"
        assert draft.unique_name("inner") == "inner_3"
        assert draft.unique_name("new") == "new"
        assert draft.unique_name("new") == "new_2"


def test_a_name_is_seen_unless_another_is_called_so(tmp_path: Path) -> None:
    model = parsed(
        """g (bool c, float[2] x) => (float[2] y) {
            w = Relu(x)
            y = If (c) <
                then_branch = a () => (float[2] p) { p = Neg(w) },
                else_branch = b () => (float[2] q) { v = Neg(x) q = Neg(v) }
            > }"""
    )
    hiding = model.graph.node[1].attribute[1].g
    hiding.node[0].output[0] = hiding.node[1].input[0] = "w"
    with opened(model, tmp_path) as file:
        draft = Draft(file)
        relu, plain = draft.node("Relu_0"), draft.node("If_1/then_branch/Neg_0")
        hidden = draft.node("If_1/else_branch/Neg_0")
        assert relu is not None
        assert plain is not None
        assert hidden is not None
        assert draft.sees(relu.graph, relu.outputs[0])
        assert draft.sees(plain.graph, relu.outputs[0])
        assert not draft.sees(hidden.graph, relu.outputs[0])
        assert not draft.sees(relu.graph, plain.outputs[0])
        assert not draft.sees(None, relu.outputs[0])


def test_types_are_declared_or_inferred(tmp_path: Path) -> None:
    model = parsed(
        """g (float[n, 2, 3] x, bool c) => (float[k, l] y) {
            t = Transpose(x)
            y = If (c) <
                then_branch = a () => (float[k, l] p) { f = Flatten(t) p = Relu(f) },
                else_branch = b () => (float[k, l] q) { q = Flatten(x) }
            > }"""
    )
    with opened(model, tmp_path) as file:
        draft = Draft(file)
        flatten = draft.node("If_1/then_branch/Flatten_0")
        assert flatten is not None
        turned = flatten.inputs[0]
        assert turned is not None
        assert draft.type_of(turned) == ("float", (3, 2, None))
        assert draft.type_of(flatten.outputs[0]) == ("float", (3, None))
        assert draft.type_of(ir.Value(name="new")) is None
        known = ir.Value(name="new", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([3]))
        assert draft.type_of(known) == ("int64", (3,))


def test_a_new_node_lies_before_another(tmp_path: Path) -> None:
    with opened(nested(), tmp_path) as file:
        draft = Draft(file)
        node = draft.node("local::F/MatMul_1")
        assert node is not None
        new = draft.insert_before(node, "Relu", [node.inputs[0]], name="k")
        axis = draft.constant_before(node, np.array([7], np.int64), name="axis")
        node.replace_input_with(0, new)
        assert (new.name, axis.name) == ("k_2_output", "axis_output")
        assert node.graph is not None
        assert [one.op_type for one in node.graph] == ["Constant", "Relu", "Constant", "MatMul"]
        draft.require_domain("com.microsoft", node=node)
        written = draft.proto()
        for imports in (written.opset_import, written.functions[0].opset_import):
            assert {one.domain: one.version for one in imports}["com.microsoft"] == 1
        draft.require_domain("local")
        assert {one.domain: one.version for one in draft.proto().opset_import}["local"] == 3


def normalized(model: ModelProto) -> ModelProto:
    """Return a model with the order of what has no order fixed, and without data."""
    copy = ModelProto()
    copy.CopyFrom(model)
    pending = [copy.graph]
    while pending:
        graph = pending.pop()
        for values in (graph.value_info, graph.metadata_props):
            ordered = sorted(values, key=lambda one: one.SerializeToString(deterministic=True))
            del values[:]
            values.extend(ordered)
        for node in graph.node:
            _tidy(node)
            for attribute in node.attribute:
                pending += [attribute.g] if attribute.HasField("g") else []
    for function in copy.functions:
        for node in function.node:
            _tidy(node)
    for tensor in tensors(copy):
        del tensor.external_data[:]
    return copy


def _tidy(node: NodeProto) -> None:
    """Leave out a domain that is there and says nothing."""
    if not node.domain:
        node.ClearField("domain")


def strange() -> ModelProto:
    """Return a model with all that the graph library does not hold."""
    model = nested()
    graph = model.graph
    sparse = graph.sparse_initializer.add(dims=[20, 30])
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(400, np.float32), "sparse"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.arange(400), "sparse_indices"))
    constant = graph.node.add(op_type="Constant", output=["constant"])
    attribute = constant.attribute.add(
        name="sparse_value", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse
    )
    attribute.sparse_tensor.values.name = "held"
    graph.node.add(op_type="Add", input=["sparse", "constant"], output=["sum"])
    graph.output.append(helper.make_tensor_value_info("sum", TensorProto.FLOAT, [20, 30]))
    classes = graph.node.add(op_type="ZipMap", domain="ai.onnx.ml", input=["sum"], output=["map"])
    classes.attribute.append(helper.make_attribute("classlabels_int64s", list(range(30))))
    mapped = graph.output.add(name="map").type.sequence_type.elem_type.map_type
    mapped.key_type = TensorProto.INT64
    mapped.value_type.tensor_type.elem_type = TensorProto.FLOAT
    training = model.training_info.add()
    training.algorithm.node.add(op_type="Relu", input=["x"], output=["r"])
    model.opset_import.add(domain="ai.onnx.ml", version=3)
    model.metadata_props.add(key="author", value="somebody")
    graph.metadata_props.add(key="of the graph", value="1")
    graph.doc_string, graph.node[0].doc_string = "about the graph", "about the node"
    graph.input[1].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    annotation = graph.quantization_annotation.add(tensor_name="x")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="unread")
    return model


@pytest.mark.parametrize("model", [nested(), strange()], ids=["nested", "strange"])
def test_what_is_not_changed_stays_as_it_was(tmp_path: Path, model: ModelProto) -> None:
    with opened(model, tmp_path) as file:
        written = normalized(Draft(file).proto())
        assert written == normalized(file.read_proto())


def test_what_the_library_cannot_hold_still_runs(tmp_path: Path) -> None:
    model = strange()
    with opened(model, tmp_path) as file:
        save(Draft(file), tmp_path / "written.onnx", "embedded")
    feeds = {"c": np.array(True), "x": np.ones((2, 20), np.float32)}
    results = []
    for name in ("model", "written"):
        session = onnxruntime.InferenceSession(
            tmp_path / f"{name}.onnx", providers=["CPUExecutionProvider"]
        )
        assert session.get_outputs()[2].type == "seq(map(int64,tensor(float)))"
        results.append(session.run(None, feeds))
    assert results[0][2] == results[1][2]
    for one, other in zip(results[0][:2], results[1][:2], strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_graph_that_makes_no_sense_is_told(tmp_path: Path) -> None:
    model = parsed("g (float[1] x) => (float[1] y) { y = Relu(x) z = Relu(x) }")
    model.graph.node[1].output[0] = "y"
    with opened(model, tmp_path) as file, pytest.raises(ModelError, match="redeclared") as error:
        Draft(file)
    assert str(error.value).endswith("export the model again.")


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with opened(strange(), tmp_path) as file:
        Draft(file).proto()
    assert capfd.readouterr() == ("", "")


def test_large_weights_are_not_read(tmp_path: Path) -> None:
    model = parsed("g (float[1, 20] x) => (float[1, 30] y) { y = MatMul(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(WEIGHT, "w"))
    with opened(model, tmp_path) as file:
        draft = Draft(file)
        value = draft.value("w")
        assert value is not None
        assert isinstance(value.const_value, ir.ExternalTensor)
        assert Path(value.const_value.path).resolve() == file.path.resolve()
        np.testing.assert_array_equal(value.const_value.numpy(), WEIGHT)
        assert len(draft.proto().SerializeToString()) < 1000
