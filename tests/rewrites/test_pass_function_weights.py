from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, ModelProto, numpy_helper

from memdiag.model.model_file import open_model
from memdiag.rewrites.catalog import pass_function_weights
from memdiag.rewrites.edited_weights import constant_tensor
from memdiag.rewrites.model_editor import ModelEditor
from tests.rewrites.rewriting import (
    Array,
    assert_same_outputs,
    finding,
    random,
    refusal,
    rewrite,
    runs_on,
    saved,
    taken,
    text_model,
)

MIB = 1 << 20
K = random((40, 16))


def filled(model: ModelProto, **values: Array) -> ModelProto:
    """Return the model with values for the Constants of its functions, at any depth, by name."""
    pending = [*model.functions]
    while pending:
        for node in pending.pop().node:
            if node.op_type == "Constant" and node.output[0] in values and not node.attribute:
                value = node.attribute.add(name="value", type=AttributeProto.TENSOR)
                value.t.CopyFrom(numpy_helper.from_array(values[node.output[0]]))
            pending += [one.g for one in node.attribute if one.HasField("g")]
    return model


def twice(ir: int = 10, *, k: Array = K) -> ModelProto:
    """Return a model with two calls of a function that gathers from its own weight."""
    text = """g (int64[n] ids) => (float[n, 16] y, float[n, 16] z)
        { y = local.F(ids) z = local.F(ids) }
        <domain: "local", opset_import: ["" : 17]>
        F (ids) => (y) { k = Constant() y = Gather(k, ids) }"""
    return filled(text_model(text, ir), k=k)


def arguments(path: Path) -> dict[str, list[str]]:
    return {one.name: list(one.input) for one in onnx.load(path).functions}


def test_all_calls_are_given_one_initializer(tmp_path: Path) -> None:
    path = rewrite(pass_function_weights, twice(), finding("local::F/k"), tmp_path)
    loaded = onnx.load(path)
    assert [one.name for one in loaded.graph.initializer] == ["k_2"]
    assert [list(node.input) for node in loaded.graph.node] == [["ids", "k_2"]] * 2
    assert arguments(path) == {"F": ["ids", "k_2"]}
    assert_same_outputs(tmp_path / "original.onnx", path, {"ids": np.array([0, 3])})


def test_functions_that_call_it_hand_the_weight_on(tmp_path: Path) -> None:
    model = text_model(
        """g (int64[n] ids, bool c) => (float[n, 16] y, float[n, 16] z) {
            y = If (c) <
                then_branch = a () => (float[n, 16] p) { p = local.G(ids) },
                else_branch = b () => (float[n, 16] q) { q = local.F(ids) }
            >
            z = local.G(ids)
        }
        <domain: "local", opset_import: ["" : 17, "local" : 1]>
        F (ids) => (y) { k = Constant() y = Gather(k, ids) }
        <domain: "local", opset_import: ["" : 17, "local" : 1]>
        G (ids) => (y) {
            l = Constant()
            e = local.F(ids)
            f = local.F(ids)
            s = Add(e, f)
            y = Add(s, l)
        }"""
    )
    model = filled(model, k=K, l=random((16,), 1))
    path = rewrite(pass_function_weights, model, finding("local::F/k", "local::G/l"), tmp_path)
    assert arguments(path) == {"F": ["ids", "k_2"], "G": ["ids", "k_2"]}
    for c in (True, False):
        feeds = {"ids": np.array([0, 3]), "c": np.array(c)}
        assert_same_outputs(tmp_path / "original.onnx", path, feeds)


def test_inputs_that_a_call_leaves_out_stay_out(tmp_path: Path) -> None:
    model = text_model(
        """g (float[n, 40] x) => (float[n, 16] y, float[n, 16] z) <float[16] b>
        { y = local.F(x) z = local.F(x, b) }
        <domain: "local", opset_import: ["" : 17]>
        F (x, b) => (y) { k = Constant() y = Gemm(x, k, b) }""",
        b=random((16,), 2),
    )
    path = rewrite(pass_function_weights, filled(model, k=K), finding("local::F/k"), tmp_path)
    calls = [list(node.input) for node in onnx.load(path).graph.node]
    assert calls == [["x", "", "k_2"], ["x", "b", "k_2"]]
    assert_same_outputs(tmp_path / "original.onnx", path, {"x": random((2, 40), 3)})


def test_a_weight_in_a_branch_of_a_function(tmp_path: Path) -> None:
    model = text_model(
        """g (int64[n] ids, bool c) => (float[n, 16] y) { y = local.F(ids, c) }
        <domain: "local", opset_import: ["" : 17]>
        F (ids, c) => (y) {
            y = If (c) <
                then_branch = a () => (float[n, 16] p) { k = Constant() p = Gather(k, ids) },
                else_branch = b () => (float[n, 16] q) { l = Constant() q = Gather(l, ids) }
            >
        }"""
    )
    model = filled(model, k=K, l=random((40, 16), 1))
    of = finding("local::F/If_0/then_branch/k", "local::F/If_0/else_branch/l")
    path = rewrite(pass_function_weights, model, of, tmp_path)
    assert len(arguments(path)["F"]) == 4
    for c in (True, False):
        feeds = {"ids": np.array([0, 3]), "c": np.array(c)}
        assert_same_outputs(tmp_path / "original.onnx", path, feeds)


def test_the_weight_is_found_by_its_old_name(tmp_path: Path) -> None:
    with open_model(saved(twice(), tmp_path)) as file:
        editor = ModelEditor(file)
        assert pass_function_weights.apply(editor, finding("local::F/k"))
        moved = editor.value("local::F/k")
        assert moved is not None
        assert moved.graph is editor.model.graph
        assert constant_tensor(moved) is not None


@pytest.mark.parametrize(
    ("original", "name", "reason"),
    [
        (twice(), "gone", "the weights were removed"),
        (twice(3), "local::F/k", "before version 4 of the IR"),
        (twice(k=random((4, 16))), "local::F/k", "or is smaller than 1 KiB"),
        (
            filled(
                text_model(
                    """g (int64[n] ids) => (float[n, 16] y) { k = Constant() y = Gather(k, ids) }
                    <domain: "local", opset_import: ["" : 17]>
                    F (ids) => (y) { k = Constant() y = Gather(k, ids) }""",
                    k=K,
                ),
                k=K,
            ),
            "local::F/k",
            "nothing calls the function",
        ),
        (
            text_model("g (int64[n] ids) => (float[n, 16] y) { k = Constant() y = Gather(k, ids) }",
                       k=K),
            "k",
            "it is no Constant of a function",
        ),
        (
            filled(
                text_model(
                    """g () => (float[40, 16] y) { y = local.F() }
                    <domain: "local", opset_import: ["" : 17]> F () => (k) { k = Constant() }"""
                ),
                k=K,
            ),
            "local::F/k",
            "it is an output of its graph",
        ),
    ],
    ids=["gone", "old", "small", "uncalled", "no function", "output"],
)  # fmt: skip
def test_near_misses_are_refused(
    tmp_path: Path, original: ModelProto, name: str, reason: str
) -> None:
    assert reason in refusal(pass_function_weights, original, finding(name), tmp_path)


@pytest.mark.slow
def test_the_memory_that_it_spares(tmp_path: Path) -> None:
    original = twice(k=random((1 << 18, 16)))  # 16 MiB
    path = rewrite(pass_function_weights, original, finding("local::F/k"), tmp_path)
    before, after = taken(tmp_path / "original.onnx"), taken(path)
    assert before.steady_bytes - after.steady_bytes == pytest.approx(16 * MIB, abs=3 * MIB)
    assert before.peak_bytes - after.peak_bytes > 40 * MIB
    assert runs_on("1.20.1", path)
