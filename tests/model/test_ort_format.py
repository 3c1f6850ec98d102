import random
from pathlib import Path

import pytest
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

from memdiag.errors import ModelError
from memdiag.model.model_file import ModelFile, open_model
from memdiag.model.ort_format import ort_skeleton
from memdiag.model.wire import MIN_LIST_BYTES
from tests.builders import build, noise
from tests.ort.ort_files import convert

WORDS = [b"one", b"two"]
WEIGHT = noise(64, 64)


def the_model() -> ModelProto:
    model = build(
        """(float[batch, 64] x, bool cond) => (float[batch, 64] y, string[2] t) {
            h = MatMul(x, weight)
            y = If (cond) <
                then_branch = a () => (float[batch, 64] then_out) { then_out = Mul(h, inner) },
                else_branch = b () => (float[batch, 64] else_out) { else_out = Relu(h) }>
            t = Identity(words) }""",
        ir=8,
        domains={"ai.onnx.ml": 3},
        weights={"weight": WEIGHT},
    )
    model.producer_name = "exporter"
    words = TensorProto(name="words", data_type=TensorProto.STRING, dims=[2], string_data=WORDS)
    model.graph.initializer.append(words)
    inner = numpy_helper.from_array(WEIGHT[:8], "inner")
    model.graph.node[1].attribute[0].g.initializer.append(inner)
    return model


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(the_model(), tmp_path_factory.mktemp("ort") / "m.ort")


@pytest.fixture(scope="module")
def opened(converted: Path) -> ModelFile:
    return open_model(converted)


def error(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        open_model(path)
    return str(caught.value)


def test_the_graph_is_that_of_the_onnx_model(opened: ModelFile) -> None:
    assert opened.is_ort_format
    assert [node.op_type for node in opened.graph.nodes] == ["MatMul", "If", "Identity"]
    assert opened.graph.inputs == ["x", "cond"]
    assert opened.graph.outputs == ["y", "t"]
    branches = dict(opened.graph.nodes[1].subgraphs)
    assert [node.op_type for node in branches["then_branch"].nodes] == ["Mul"]
    assert [node.op_type for node in branches["else_branch"].nodes] == ["Relu"]
    assert branches["then_branch"].captured_names == {"h"}
    assert opened.proto.producer_name == "exporter"
    assert opened.proto.ir_version == 8
    assert {each.domain: each.version for each in opened.proto.opset_import}["ai.onnx.ml"] == 3


def test_types_of_inputs_and_inner_values_are_declared(opened: ModelFile) -> None:
    x, cond = opened.graph.input_values
    assert [size.dim_param or size.dim_value for size in x.type.tensor_type.shape.dim] == [
        "batch",
        64,
    ]
    assert cond.type.tensor_type.elem_type == TensorProto.BOOL
    assert "h" in {value.name for value in opened.proto.graph.value_info}


def test_weights_are_referred_to_in_the_file(opened: ModelFile, converted: Path) -> None:
    weights = {each.name: each for each in opened.weights}
    weight, words, inner = (weights[name] for name in ("weight", "words", "inner"))
    assert (weight.name, weight.dtype, weight.shape) == ("weight", "float", (64, 64))
    assert (weight.storage, weight.file) == ("raw", "m.ort")
    data = converted.read_bytes()
    assert weight.offset is not None
    expected = WEIGHT.tobytes()
    assert data[weight.offset : weight.offset + weight.nbytes] == expected
    assert bytes(opened.raw_bytes(weight)) == expected
    assert opened.data(words).tolist() == WORDS
    assert inner.graph == "If_1/then_branch"
    assert bytes(opened.raw_bytes(inner)) == expected[: inner.nbytes]


def test_nodes_that_an_optimizer_added_precede_their_readers(tmp_path: Path) -> None:
    model = build(
        """(float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y)
        { a = Conv <pads = [1, 1, 1, 1]> (x, w) b = Relu(a) y = Identity(b) }""",
        ir=8,
        weights={"w": noise(16, 16, 3, 3)},
    )
    file = open_model(convert(model, tmp_path / "m.ort", "ORT_ENABLE_ALL"))
    assert len(file.graph.nodes) > 1
    assert file.graph.is_sorted


def test_long_lists_of_attributes_are_read_on_demand(tmp_path: Path) -> None:
    count = MIN_LIST_BYTES // 4
    node = "y = ai.onnx.ml.LinearRegressor <intercepts = [1.0]> (x)"
    graph = f"(float[1, {count}] x) => (float[1, 1] y) {{ {node} }}"
    model = build(graph, ir=8, domains={"ai.onnx.ml": 3})
    coefficients = [float(number) for number in range(count)]
    model.graph.node[0].attribute.append(helper.make_attribute("coefficients", coefficients))
    file = open_model(convert(model, tmp_path / "m.ort"))
    attributes = {each.name: each for each in file.graph.nodes[0].attribute}
    assert not attributes["coefficients"].floats
    assert list(attributes["intercepts"].floats) == [1.0]
    whole = file.read_attribute(attributes["coefficients"])
    assert whole.type == AttributeProto.FLOATS
    assert list(whole.floats) == coefficients


def test_an_onnx_model_with_the_ending_of_ort_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.ort"
    path.write_bytes(the_model().SerializeToString())
    assert "not a file in ORT format" in error(path)
    path = path.rename(tmp_path / "m.onnx")
    assert not open_model(path).is_ort_format


def test_a_file_that_ends_early_is_refused(converted: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.ort"
    for cut in (100, 1_000, 10_000):
        path.write_bytes(converted.read_bytes()[:-cut])
        assert "cut short" in error(path)


def test_damaged_files_are_refused_in_one_sentence(converted: Path) -> None:
    data = converted.read_bytes()
    rng = random.Random(0)
    problems = []
    cut = [data[:size] for size in range(0, len(data), 97)]
    changed = []
    for _ in range(300):
        copy = bytearray(data)
        for _ in range(rng.choice((1, 4, 40))):
            copy[rng.randrange(8 if rng.random() < 0.1 else len(copy))] = rng.randrange(256)
        changed.append(bytes(copy))
    random_bytes = [data[:8] + rng.randbytes(2000) for _ in range(100)]
    for damaged in (*cut, *changed, *random_bytes):
        try:
            ort_skeleton(damaged, origin="m.ort")
        except ModelError as problem:
            problems.append(str(problem))
    assert all(each.startswith("m.ort: ") and "\n" not in each for each in problems)
    assert len(problems) > len(cut)  # a change of a weight or a name is no damage to the format


def test_graphs_nested_without_end_are_refused(
    monkeypatch: pytest.MonkeyPatch, converted: Path
) -> None:
    monkeypatch.setattr("memdiag.model.ort_format.MAX_MESSAGE_DEPTH", 0)
    with pytest.raises(ModelError, match="damaged"):
        ort_skeleton(converted.read_bytes(), origin="m.ort")


def test_lists_that_name_one_table_many_times_are_bounded(
    monkeypatch: pytest.MonkeyPatch, converted: Path
) -> None:
    monkeypatch.setattr("memdiag.model.ort_format.MAX_MESSAGES", 10)
    with pytest.raises(ModelError, match="more than 10 nodes"):
        ort_skeleton(converted.read_bytes(), origin="m.ort")
