from pathlib import Path

import onnx
import pytest
from onnx import ModelProto

from memdiag.rewrites.catalog import remove_identities
from tests.model_text import random, text_model
from tests.rewrites.rewriting import operators, refusal, rewritten

CHAIN = """g (int64[n] ids) => (float[n, 16] y, float[40, 16] u) <float[40, 16] w> {
    v = Identity(w) u = Identity(v) y = Gather(v, ids) }"""
FUNCTION = """g (int64[n] ids) => (float[n, 16] y) { y = local.F(ids) }
    <domain: "local", opset_import: ["" : 17]>
    F (ids) => (y) { k = Constant() v = Identity(k) y = Gather(v, ids) }"""
OUTPUT = "g (int64[n] ids) => (float[40, 16] v) <float[40, 16] w> { v = Identity(w) }"
COMPUTED = """g (float[n, 16] x) => (float[n, 16] y) <float[16] w> {
    v = Neg(w) z = Identity(v) y = Add(x, z) }"""


def branches(then: str, other: str, before: str = "v = Identity(w)", rows: int = 40) -> ModelProto:
    """Return an If whose branches make p and q, with nodes `before` it."""
    return text_model(
        f"""g (bool c, int64[n] ids) => (float[n, m] y) <float[{rows}, 16] w> {{
            {before}
            y = If (c) <
                then_branch = a () => (float[n, m] p) {{ {then} }},
                else_branch = b () => (float[n, m] q) {{ {other} }}
            > }}"""
    )


@pytest.mark.parametrize(
    ("then", "other", "before"),
    [
        ("p = Gather(v, ids)", "q = Gather(w, ids)", "v = Identity(w)"),
        ("p = Gather(u, ids)", "q = Gather(v, ids)", "v = Identity(w) u = Identity(v)"),
        ("p = Gather(u, ids)", "q = Gather(v, ids)", "v = Identity(w) u = Identity(w)"),
        ("v = Identity(w) p = Gather(v, ids)", "q = Gather(w, ids)", ""),
        ("u = Identity(v) p = Gather(u, ids)", "q = Gather(w, ids)", "v = Identity(w)"),
    ],
    ids=["one", "a chain", "two", "in a branch", "across graphs"],
)
def test_what_reads_behind_identity_reads_the_weight(
    tmp_path: Path, then: str, other: str, before: str
) -> None:
    path = rewritten(remove_identities, branches(then, other, before), "w", tmp_path)
    assert operators(path) == ["Gather", "Gather", "If"]


def test_the_first_of_a_chain_goes_where_the_last_is_an_output(tmp_path: Path) -> None:
    path = rewritten(remove_identities, text_model(CHAIN), "w", tmp_path)
    assert operators(path) == ["Gather", "Identity"]


def test_a_constant_in_a_function(tmp_path: Path) -> None:
    model = text_model(FUNCTION, k=random((40, 16)))
    path = rewritten(remove_identities, model, "local::F/k", tmp_path)
    nodes = onnx.load(path).functions[0].node
    assert [node.op_type for node in nodes] == ["Constant", "Gather"]


def shadowed() -> ModelProto:
    """Return a model in whose branch another value is called like the weight."""
    made = branches("w2 = Neg(v) p = Gather(w2, ids)", "q = Gather(v, ids)")
    branch = next(one.g for one in made.graph.node[1].attribute if one.name == "then_branch")
    branch.node[0].output[0] = branch.node[1].input[0] = "w"
    return made


BRANCH_OUTPUT = branches("p = Identity(w)", "q = Gather(w, ids)", "")


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (text_model(OUTPUT), "the output of the Identity is an output of its graph"),
        (text_model(COMPUTED), "no Identity reads a weight"),
        (BRANCH_OUTPUT, "the output of the Identity is an output of its graph"),
        (shadowed(), "another value in a subgraph has the weight's name"),
    ],
    ids=["output", "computed", "a branch's output", "another of its name"],
)
def test_near_misses_are_refused(tmp_path: Path, model: ModelProto, reason: str) -> None:
    assert refusal(remove_identities, model, "w", tmp_path).startswith(reason)
