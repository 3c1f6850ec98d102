"""Editing models: the names of findings are found, and an unchanged model is written unchanged."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from memdiag.errors import ModelError
from memdiag.model.model_file import ModelFile, open_model
from memdiag.rewrites.catalog import constant_to_initializer, hoist_subgraph_weights
from memdiag.rewrites.edited_weights import constant_tensor
from memdiag.rewrites.model_editor import ModelEditor, model_tensors
from tests.model_text import text_model, with_weights
from tests.rewrites.rewriting import finding

WEIGHT = np.arange(600, dtype=np.float32).reshape(20, 30)


def opened(model: ModelProto, folder: Path) -> ModelFile:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return open_model(path)


def nested() -> ModelProto:
    """Return a model with weights at all depths, some nodes without names."""
    text = """g (bool c, float[2, 20] x) => (float[2, m] y) <float[20, 30] unread> {
            y = If (c) <
                then_branch = a () => (float[2, m] p) {
                    k = Constant()
                    p = If (c) <
                        then_branch = aa () => (float[2, m] pp) <float[20, 30] inner> {
                            pp = MatMul(x, inner) },
                        else_branch = ab () => (float[2, m] pq) { pq = MatMul(x, k) }
                    >
                },
                else_branch = b () => (float[2, m] q) { q = local.F(x) }
            > }
        <domain: "local", opset_import: ["" : 15]>
        F (x) => (y) { k = Constant() y = MatMul(x, k) }"""
    model = text_model(text, unread=WEIGHT, inner=WEIGHT, k=WEIGHT)
    model.opset_import[1].version = 3
    outer = model.graph.node[0].attribute[0].g
    outer.node[1].name = "named"
    return model


def test_weights_are_found_by_the_names_of_findings(tmp_path: Path) -> None:
    with opened(nested(), tmp_path) as file:
        editor = ModelEditor(file)
        for weight in file.weights:
            name = f"{weight.graph}/{weight.name}" if weight.graph else weight.name
            value = editor.value(name)
            assert value is not None, name
            assert value.name == weight.name
        assert editor.value("If_0/then_branch/named/then_branch/inner") is not None
        assert editor.value("local::F/k") is not None
        assert editor.value("inner") is None


def test_nodes_are_found_by_the_names_of_findings(tmp_path: Path) -> None:
    with opened(nested(), tmp_path) as file:
        editor = ModelEditor(file)
        found = editor.node("If_0/then_branch/named/then_branch/MatMul_0")
        assert found is not None
        assert found.inputs[1] is editor.value("If_0/then_branch/named/then_branch/inner")
        in_function = editor.node("local::F/MatMul_1")
        assert in_function is not None
        assert editor.node("If_0/MatMul_0") is None
        assert editor.opset(found) == 17
        assert editor.opset(in_function) == 15
        assert editor.function(found) is None
        function = editor.function(in_function)
        assert function is not None
        assert function.name == "F"


def test_what_was_removed_is_found_no_more(tmp_path: Path) -> None:
    with opened(nested(), tmp_path) as file:
        editor = ModelEditor(file)
        editor.model.graph.initializers.pop("unread")
        assert editor.value("unread") is None
        node = editor.node("If_0/else_branch/F_0")
        assert node is not None
        assert node.graph is not None
        node.graph.remove(node)
        assert editor.node("If_0/else_branch/F_0") is None


def test_a_constant_that_became_an_initializer_keeps_its_name(tmp_path: Path) -> None:
    name = "If_0/then_branch/k"
    with opened(nested(), tmp_path) as file:
        editor = ModelEditor(file)
        before = editor.value(name)
        assert before is not None
        assert constant_to_initializer.apply(editor, finding(name))
        moved = editor.value(name)
        assert moved is not None
        assert moved is not before
        assert moved.is_initializer()
        # Another rewrite finds it there, and moves it on.
        assert hoist_subgraph_weights.apply(editor, finding(name))
        hoisted = editor.value(name)
        assert hoisted is not None
        assert hoisted.graph is editor.model.graph
        assert constant_tensor(hoisted) is not None


def test_a_name_that_means_two_things_means_none(tmp_path: Path) -> None:
    model = text_model("g (float[1] x) => (float[1] y, float[1] z) { y = Relu(x) z = Relu(x) }")
    model.graph.node[0].name = model.graph.node[1].name = "same"
    with opened(model, tmp_path) as file:
        assert ModelEditor(file).node("same") is None


def test_new_names_are_nobodys(tmp_path: Path) -> None:
    with opened(nested(), tmp_path) as file:
        editor = ModelEditor(file)
        for taken in ("inner", "x", "pp", "named", "k", "c", "If_0"):
            assert editor.unique_name(taken) == f"{taken}_2"
        assert editor.unique_name("inner") == "inner_3"
        assert editor.unique_name("new") == "new"
        assert editor.unique_name("new") == "new_2"


def test_a_name_is_seen_unless_another_is_called_so(tmp_path: Path) -> None:
    model = text_model(
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
        editor = ModelEditor(file)
        relu, plain = editor.node("Relu_0"), editor.node("If_1/then_branch/Neg_0")
        hidden = editor.node("If_1/else_branch/Neg_0")
        assert relu is not None
        assert plain is not None
        assert hidden is not None
        assert editor.is_visible(relu.outputs[0], relu.graph)
        assert editor.is_visible(relu.outputs[0], plain.graph)
        assert not editor.is_visible(relu.outputs[0], hidden.graph)
        assert not editor.is_visible(plain.outputs[0], relu.graph)
        assert not editor.is_visible(relu.outputs[0], None)


def test_types_are_declared_or_inferred(tmp_path: Path) -> None:
    model = text_model(
        """g (float[n, 2, 3] x, bool c) => (float[k, l] y) {
            t = Transpose(x)
            y = If (c) <
                then_branch = a () => (float[k, l] p) { f = Flatten(t) p = Relu(f) },
                else_branch = b () => (float[k, l] q) { q = Flatten(x) }
            > }"""
    )
    with opened(model, tmp_path) as file:
        editor = ModelEditor(file)
        flatten = editor.node("If_1/then_branch/Flatten_0")
        assert flatten is not None
        turned = flatten.inputs[0]
        assert turned is not None
        assert editor.type_of(turned) == ("float", (3, 2, None))
        assert editor.type_of(flatten.outputs[0]) == ("float", (3, None))
        assert editor.type_of(ir.Value(name="new")) is None
        known = ir.Value(name="new", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([3]))
        assert editor.type_of(known) == ("int64", (3,))


def test_a_new_node_lies_before_another(tmp_path: Path) -> None:
    with opened(nested(), tmp_path) as file:
        editor = ModelEditor(file)
        node = editor.node("local::F/MatMul_1")
        assert node is not None
        new = editor.insert_before(node, "Relu", [node.inputs[0]], name="k")
        axis = editor.constant_before(node, np.array([7], np.int64), name="axis")
        node.replace_input_with(0, new)
        assert (new.name, axis.name) == ("k_2_output", "axis_output")
        assert node.graph is not None
        assert [one.op_type for one in node.graph] == ["Constant", "Relu", "Constant", "MatMul"]
        editor.require_domain("com.microsoft", node=node)
        written = editor.proto()
        for imports in (written.opset_import, written.functions[0].opset_import):
            assert {one.domain: one.version for one in imports}["com.microsoft"] == 1
        editor.require_domain("local")
        assert {one.domain: one.version for one in editor.proto().opset_import}["local"] == 3


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
    for tensor, _ in model_tensors(copy):
        del tensor.external_data[:]
    return copy


def _tidy(node: NodeProto) -> None:
    """Leave out a domain that is there and says nothing."""
    if not node.domain:
        node.ClearField("domain")


def annotated() -> ModelProto:
    """Return a model with metadata of all kinds."""
    model = nested()
    graph = model.graph
    model.metadata_props.add(key="author", value="somebody")
    graph.metadata_props.add(key="of the graph", value="1")
    graph.doc_string, graph.node[0].doc_string = "about the graph", "about the node"
    graph.input[1].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    annotation = graph.quantization_annotation.add(tensor_name="x")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="unread")
    return model


@pytest.mark.parametrize("model", [nested(), annotated()], ids=["nested", "annotated"])
def test_what_is_not_changed_stays_as_it_was(tmp_path: Path, model: ModelProto) -> None:
    with opened(model, tmp_path) as file:
        written = normalized(ModelEditor(file).proto())
        assert written == normalized(file.read_proto())


def sparse_weight(model: ModelProto) -> None:
    sparse = model.graph.sparse_initializer.add(dims=[20, 30])
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(400, np.float32), "sparse"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.arange(400), "sparse_indices"))


def sparse_constant(model: ModelProto) -> None:
    sparse_weight(model)
    sparse = model.graph.sparse_initializer.pop()
    constant = model.graph.node.add(op_type="Constant", output=["constant"])
    constant.attribute.add(
        name="sparse_value", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse
    )


def maps(model: ModelProto) -> None:
    classes = model.graph.node.add(op_type="ZipMap", domain="ai.onnx.ml", input=["y"])
    classes.output.append("map")
    classes.attribute.append(helper.make_attribute("classlabels_int64s", list(range(30))))
    mapped = model.graph.output.add(name="map").type.sequence_type.elem_type.map_type
    mapped.key_type = TensorProto.INT64
    mapped.value_type.tensor_type.elem_type = TensorProto.FLOAT
    model.opset_import.add(domain="ai.onnx.ml", version=3)


def training(model: ModelProto) -> None:
    model.training_info.add().algorithm.node.add(op_type="Relu", input=["x"], output=["r"])


@pytest.mark.parametrize(
    ("add", "problem"),
    [
        (sparse_weight, "sparse weights cannot be rewritten. Store them as dense ones first."),
        (sparse_constant, "sparse weights cannot be rewritten."),
        (maps, "maps cannot be rewritten. Export the model without ZipMap."),
        (training, "graphs for training cannot be rewritten. Export the model for inference."),
    ],
)
def test_what_the_library_does_not_support_is_refused(
    tmp_path: Path, add: Callable[[ModelProto], None], problem: str
) -> None:
    model = nested()
    add(model)
    with opened(model, tmp_path) as file, pytest.raises(ModelError) as error:
        ModelEditor(file)
    assert str(error.value).startswith(f"{tmp_path / 'model.onnx'}: {problem}")


def test_a_graph_that_makes_no_sense_is_told(tmp_path: Path) -> None:
    model = text_model("g (float[1] x) => (float[1] y) { y = Relu(x) z = Relu(x) }")
    model.graph.node[1].output[0] = "y"
    with opened(model, tmp_path) as file, pytest.raises(ModelError, match="redeclared") as error:
        ModelEditor(file)
    assert str(error.value).endswith("Export the model again.")


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with opened(annotated(), tmp_path) as file:
        ModelEditor(file).proto()
    assert capfd.readouterr() == ("", "")


def test_large_weights_are_not_read(tmp_path: Path) -> None:
    model = with_weights("g (float[1, 20] x) => (float[1, 30] y) { y = MatMul(x, w) }", w=WEIGHT)
    with opened(model, tmp_path) as file:
        editor = ModelEditor(file)
        value = editor.value("w")
        assert value is not None
        assert isinstance(value.const_value, ir.ExternalTensor)
        assert Path(value.const_value.path).resolve() == file.path.resolve()
        np.testing.assert_array_equal(value.const_value.numpy(), WEIGHT)
        assert len(editor.proto().SerializeToString()) < 1000
