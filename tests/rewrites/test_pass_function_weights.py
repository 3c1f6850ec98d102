from pathlib import Path

import onnx
import pytest
from onnx import ModelProto

from memdiag.model.model_file import open_model
from memdiag.rewrites.catalog import pass_function_weights
from memdiag.rewrites.edited_weights import constant_tensor
from memdiag.rewrites.model_editor import ModelEditor
from tests.model_text import random, text_model
from tests.rewrites.rewriting import finding, refusal, rewritten, saved, weights

K = random((40, 16))
TWICE = """g (int64[n] ids) => (float[n, 16] y, float[n, 16] z)
    { y = local.F(ids) z = local.F(ids) }
    <domain: "local", opset_import: ["" : 17]>
    F (ids) => (y) { k = Constant() y = Gather(k, ids) }"""
NESTED = """g (int64[n] ids, bool c) => (float[n, 16] y, float[n, 16] z) {
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
        l = Constant() e = local.F(ids) f = local.F(ids) s = Add(e, f) y = Add(s, l) }"""
LEFT_OUT = """g (float[n, 40] x) => (float[n, 16] y, float[n, 16] z) <float[16] b>
    { y = local.F(x) z = local.F(x, b) }
    <domain: "local", opset_import: ["" : 17]>
    F (x, b) => (y) { k = Constant() y = Gemm(x, k, b) }"""
BRANCH = """g (int64[n] ids, bool c) => (float[n, 16] y) { y = local.F(ids, c) }
    <domain: "local", opset_import: ["" : 17]>
    F (ids, c) => (y) {
        y = If (c) <
            then_branch = a () => (float[n, 16] p) { k = Constant() p = Gather(k, ids) },
            else_branch = b () => (float[n, 16] q) { l = Constant() q = Gather(l, ids) }
        > }"""
UNCALLED = """g (int64[n] ids) => (float[n, 16] y) { k = Constant() y = Gather(k, ids) }
    <domain: "local", opset_import: ["" : 17]>
    F (ids) => (y) { k = Constant() y = Gather(k, ids) }"""
OUTPUT = """g () => (float[40, 16] y) { y = local.F() }
    <domain: "local", opset_import: ["" : 17]> F () => (k) { k = Constant() }"""


def arguments(path: Path) -> dict[str, list[str]]:
    return {one.name: list(one.input) for one in onnx.load(path).functions}


def calls(path: Path) -> list[list[str]]:
    return [list(node.input) for node in onnx.load(path).graph.node]


def test_all_calls_are_given_one_initializer(tmp_path: Path) -> None:
    path = rewritten(pass_function_weights, text_model(TWICE, k=K), "local::F/k", tmp_path)
    assert weights(path) == ["k_2"]
    assert calls(path) == [["ids", "k_2"]] * 2
    assert arguments(path) == {"F": ["ids", "k_2"]}


def test_functions_that_call_it_hand_the_weight_on(tmp_path: Path) -> None:
    model = text_model(NESTED, k=K, l=random((16,), 1))
    path = rewritten(pass_function_weights, model, "local::F/k local::G/l", tmp_path)
    assert arguments(path) == {"F": ["ids", "k_2"], "G": ["ids", "k_2"]}


def test_inputs_that_a_call_leaves_out_stay_out(tmp_path: Path) -> None:
    path = rewritten(pass_function_weights, text_model(LEFT_OUT, k=K), "local::F/k", tmp_path)
    assert calls(path) == [["x", "", "k_2"], ["x", "b", "k_2"]]


def test_a_weight_in_a_branch_of_a_function(tmp_path: Path) -> None:
    model = text_model(BRANCH, k=K, l=random((40, 16), 1))
    names = "local::F/If_0/then_branch/k local::F/If_0/else_branch/l"
    path = rewritten(pass_function_weights, model, names, tmp_path)
    assert len(arguments(path)["F"]) == 4


def test_the_weight_is_found_by_its_old_name(tmp_path: Path) -> None:
    with open_model(saved(text_model(TWICE, k=K), tmp_path)) as file:
        editor = ModelEditor(file)
        assert pass_function_weights.apply(editor, finding("local::F/k"))
        moved = editor.value("local::F/k")
        assert moved is not None
        assert moved.graph is editor.model.graph
        assert constant_tensor(moved) is not None


@pytest.mark.parametrize(
    ("original", "name", "reason"),
    [
        (text_model(TWICE, k=K), "gone", "the weights were removed"),
        (text_model(TWICE, 3, k=K), "local::F/k", "before version 4 of the IR"),
        (text_model(TWICE, k=random((4, 16))), "local::F/k", "or is smaller than 1 KiB"),
        (text_model(UNCALLED, k=K), "local::F/k", "nothing calls the function"),
        (text_model(UNCALLED, k=K), "k", "it is no Constant of a function"),
        (text_model(OUTPUT, k=K), "local::F/k", "it is an output of its graph"),
    ],
    ids=["gone", "old", "small", "uncalled", "no function", "output"],
)
def test_near_misses_are_refused(
    tmp_path: Path, original: ModelProto, name: str, reason: str
) -> None:
    assert reason in refusal(pass_function_weights, original, name, tmp_path)
