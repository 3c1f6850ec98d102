from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, ModelProto, numpy_helper

from memdiag.rewrites.catalog import remove_identities
from tests.rewrites.rewriting import (
    Feeds,
    assert_same_outputs,
    finding,
    random,
    refusal,
    rewrite,
    runs_on,
    taken,
    text_model,
)
from tests.rewrites.tied_models import operators

W = finding("w")
MIB = 1 << 20


def branches(then: str, other: str, before: str = "v = Identity(w)", rows: int = 40) -> ModelProto:
    """Return an If whose branches make p and q, with nodes `before` it."""
    return text_model(
        f"""g (bool c, int64[n] ids) => (float[n, m] y) <float[{rows}, 16] w> {{
            {before}
            y = If (c) <
                then_branch = a () => (float[n, m] p) {{ {then} }},
                else_branch = b () => (float[n, m] q) {{ {other} }}
            > }}""",
        w=random((rows, 16)),
    )


def feeds() -> list[Feeds]:
    return [{"c": np.array(c), "ids": np.array([0, 3])} for c in (True, False)]


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
    path = rewrite(remove_identities, branches(then, other, before), W, tmp_path)
    assert operators(path) == ["Gather", "Gather", "If"]
    assert_same_outputs(tmp_path / "original.onnx", path, *feeds())


def test_the_first_of_a_chain_goes_where_the_last_is_an_output(tmp_path: Path) -> None:
    original = text_model(
        "g (int64[n] ids) => (float[n, 16] y, float[40, 16] u) <float[40, 16] w>"
        " { v = Identity(w) u = Identity(v) y = Gather(v, ids) }",
        w=random((40, 16)),
    )
    path = rewrite(remove_identities, original, W, tmp_path)
    assert operators(path) == ["Gather", "Identity"]
    assert_same_outputs(tmp_path / "original.onnx", path, {"ids": np.array([1])})


def test_a_constant_in_a_function(tmp_path: Path) -> None:
    original = text_model(
        """g (int64[n] ids) => (float[n, 16] y) { y = local.F(ids) }
        <domain: "local", opset_import: ["" : 17]>
        F (ids) => (y) { k = Constant() v = Identity(k) y = Gather(v, ids) }"""
    )
    value = original.functions[0].node[0].attribute.add(name="value", type=AttributeProto.TENSOR)
    value.t.CopyFrom(numpy_helper.from_array(random((40, 16))))
    path = rewrite(remove_identities, original, finding("local::F/k"), tmp_path)
    nodes = onnx.load(path).functions[0].node
    assert [node.op_type for node in nodes] == ["Constant", "Gather"]
    assert_same_outputs(tmp_path / "original.onnx", path, {"ids": np.array([1, 5])})


def shadowed() -> ModelProto:
    """Return a model in whose branch another value is called like the weight."""
    made = branches("w2 = Neg(v) p = Gather(w2, ids)", "q = Gather(v, ids)")
    branch = next(one.g for one in made.graph.node[1].attribute if one.name == "then_branch")
    branch.node[0].output[0] = branch.node[1].input[0] = "w"
    return made


@pytest.mark.parametrize(
    ("original", "reason"),
    [
        (
            text_model(
                "g (int64[n] ids) => (float[40, 16] v) <float[40, 16] w> { v = Identity(w) }",
                w=random((40, 16)),
            ),
            "the output of the Identity is an output of its graph",
        ),
        (
            text_model(
                "g (float[n, 16] x) => (float[n, 16] y) <float[16] w> { v = Neg(w) z = Identity(v)"
                " y = Add(x, z) }",
                w=random((16,)),
            ),
            "no Identity reads a weight",
        ),
        (
            branches("p = Identity(w)", "q = Gather(w, ids)", ""),
            "the output of the Identity is an output of its graph",
        ),
        (shadowed(), "another value in a subgraph has the weight's name"),
    ],
    ids=["output", "computed", "a branch's output", "another of its name"],
)
def test_near_misses_are_refused(tmp_path: Path, original: ModelProto, reason: str) -> None:
    assert refusal(remove_identities, original, W, tmp_path).startswith(reason)


@pytest.mark.slow
def test_the_memory_that_it_spares(tmp_path: Path) -> None:
    rows = 1 << 18  # 16 MiB
    original = branches("p = Gather(v, ids)", "q = Gather(w, ids)", rows=rows)
    path = rewrite(remove_identities, original, W, tmp_path)
    before, after = taken(tmp_path / "original.onnx"), taken(path)
    assert before.steady_bytes - after.steady_bytes == pytest.approx(16 * MIB, abs=3 * MIB)
    assert before.peak_bytes - after.peak_bytes > 12 * MIB
    assert runs_on("1.20.1", path)
