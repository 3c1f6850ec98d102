from pathlib import Path

import numpy as np
import onnx

from memdiag.rewrites import store_folded_result
from tests.rewrites.rewriting import (
    assert_same_outputs,
    finding,
    random,
    refusal,
    rewrite,
    saved,
    text_model,
)

CHAIN = """g (float[2, 6] x) => (float[2, 6] y) <float[1, 6] row, int64[2] sizes> {
    axes = Constant <value_ints = [0]> ()
    big = Expand (row, sizes) curved = Exp (big)
    small = ReduceSum <keepdims = 0> (curved, axes) y = Add (x, small)
}"""


def test_the_small_result_is_stored_and_the_chain_goes(tmp_path: Path) -> None:
    model = text_model(CHAIN, row=random((1, 6)), sizes=np.array([50, 6]))
    found = finding(nodes=("Expand_1", "Exp_2"))
    path = rewrite(store_folded_result, model, found, tmp_path)
    made = onnx.load(path)
    assert [node.op_type for node in made.graph.node if node.op_type != "Constant"] == ["Add"]
    assert (6,) in {tuple(one.dims) for one in made.graph.initializer}
    assert_same_outputs(saved(model, tmp_path), path, {"x": random((2, 6))})


def test_what_a_run_computes_is_refused(tmp_path: Path) -> None:
    text = "g (float[2, 6] x) => (float[2, 6] y) { big = Exp (x) y = Erf (big) }"
    why = refusal(store_folded_result, text_model(text), finding(nodes=("Exp_0",)), tmp_path)
    assert why == "it is not computed from constants alone"
