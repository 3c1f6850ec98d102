from pathlib import Path

import pytest
from onnx import ModelProto

from memdiag.rules.match_measurement import match_attribution
from tests.model_text import random, with_weights
from tests.rules.building import overridable
from tests.rules.conftest import Agrees
from tests.rules.examining import external, findings, found
from tests.rules.measuring import NEWEST, above_baseline, xray

RULE = "weight-under-two-names"
SHAPE = (1536, 1024)
SIZE = 1536 * 1024 * 4


def model(body: str, outputs: str = "", shape: tuple[int, int] = SHAPE) -> ModelProto:
    head = f"g (bool c, int64[n] ids, float[n, 1536] x) => (float[n, 1024] y{outputs})"
    return with_weights(f"{head} {{ {body} }}", 8, 17, w=random(shape))


def body(then: str, other: str, before: str = "v = Identity(w)") -> str:
    """Return an If whose branches make p and q, with nodes `before` it."""
    return f"""{before} y = If (c) <
        then_branch = a () => (float[n, 1024] p) {{ {then} }},
        else_branch = b () => (float[n, 1024] q) {{ {other} }}
    >"""


def branches(then: str, other: str, before: str = "v = Identity(w)") -> ModelProto:
    return model(body(then, other, before))


GATHER = "p = Gather(v, ids)"
GATHER_TOO = "r = Gather(w, ids) q = Neg(r)"
LOOP = """v = Identity(w) m = Constant <value = int64 {3}> () zero = Gather(w, ids)
    y = Loop (m, c, zero) <
        body = b (int64 i, bool before, float[n, 1024] s) => (bool after, float[n, 1024] r) {
            after = Identity(before) e = Gather(w, i) f = Gather(v, i) g = Add(e, f)
            r = Add(s, g)
        }
    >"""
INSIDE = """v = Identity(w) p = If (c) <
    then_branch = aa () => (float[n, 1024] pp) { pp = Gather(v, ids) },
    else_branch = ab () => (float[n, 1024] pq) { t = Gather(w, ids) pq = Neg(t) }
>"""
CHAIN = branches("p = Gather(v2, ids)", GATHER_TOO, "v = Identity(w) v2 = Identity(v)")
TWICE = branches(GATHER, "r = Gather(u, ids) q = Neg(r)", "v = Identity(w) u = Identity(w)")
COPIED = {
    "gathered": (branches(GATHER, GATHER_TOO), "Identity_0", 1),
    "a chain": (CHAIN, "Identity_1", 1),
    "twice": (TWICE, "Identity_1", 1),
    "packed and gathered": (branches("p = MatMul(x, v)", GATHER_TOO), "Identity_0", 0),
    "a body": (model(LOOP), "Identity_0", 1),
    "in a branch": (branches(INSIDE, GATHER_TOO, ""), "If_0/then_branch/Identity_0", 1),
}


@pytest.mark.parametrize("case", COPIED)
def test_a_weight_under_two_names(tmp_path: Path, case: str) -> None:
    proto, node, copies = COPIED[case]
    fields = {"rule": "MD106", "phase": "constant_fold", "remedies": ("remove-identities",)}
    sizes = {"bytes": copies * SIZE, "peak_bytes": SIZE}
    finding = found(RULE, proto, tmp_path, weights=("w",), nodes=(node,), **fields, **sizes)
    assert node in finding.message
    assert bool(finding.expected) == bool(copies)


def without_output() -> ModelProto:
    """Return a model with an Identity that makes nothing."""
    made = branches(GATHER, GATHER_TOO)
    made.graph.node.add(op_type="Identity", input=["w"])
    del made.graph.node[0]
    return made


FURTHER_IN = """q = If (c) <
    then_branch = aa () => (float[n, 1024] s) { s = Gather(w, ids) },
    else_branch = ab () => (float[n, 1024] t) { r = Gather(w, ids) t = Neg(r) }>"""
NEAR = {
    "one name": branches(GATHER, "r = Gather(v, ids) q = Neg(r)"),
    "two nodes": branches(GATHER, "q = Neg(z)", "v = Identity(w) z = Gather(w, ids)"),
    "the main graph": model("v = Identity(w) e = Gather(v, ids) f = Gather(w, ids) y = Add(e, f)"),
    "in the branch": branches("v = Identity(w) p = Gather(v, ids)", GATHER_TOO, ""),
    "further in": branches(GATHER, FURTHER_IN),
    "both packed": branches("p = MatMul(x, v)", "r = MatMul(x, w) q = Neg(r)"),
    "an output": model(body(GATHER, GATHER_TOO), ", float[1536, 1024] v"),
    "overridable": overridable(branches(GATHER, GATHER_TOO)),
    "small": model(body(GATHER, GATHER_TOO), shape=(8, 1024)),
    "an Identity without an output": without_output(),
}


@pytest.mark.parametrize("case", NEAR)
def test_near_misses(tmp_path: Path, case: str) -> None:
    assert not findings(RULE, NEAR[case], tmp_path)


def test_of_a_mapped_weight_all_copies_are_too_many(tmp_path: Path) -> None:
    found(RULE, external(COPIED["packed and gathered"][0], tmp_path), tmp_path, bytes=0)
    gathered = external(COPIED["gathered"][0], tmp_path)
    found(RULE, gathered, tmp_path, bytes=SIZE, peak_bytes=SIZE, expected=())


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("case", "version"),
    [
        *((case, NEWEST) for case in (*COPIED, "both packed", "further in", "in the branch")),
        *((case, "1.24.4") for case in ("gathered", "both packed")),
    ],
)
def test_what_a_session_takes(tmp_path: Path, case: str, version: str, agrees: Agrees) -> None:
    """The bytes that are said are those that a session takes more than one without Identity."""
    proto = COPIED[case][0] if case in COPIED else NEAR[case]
    reported = findings(RULE, proto, tmp_path, runtime=version)
    seen = xray(tmp_path / "model.onnx", version)
    if reported and reported[0].expected:
        assert match_attribution(reported[0], seen).evidence == "measured"
    without = tmp_path / "without.onnx"
    without.write_bytes(renamed(proto).SerializeToString())
    more = above_baseline(seen) - above_baseline(xray(without, version))
    if reported:
        agrees(reported[0], more, version, abs=SIZE // 3)
    nbytes = reported[0].bytes if reported else 0
    assert more == pytest.approx(nbytes, abs=SIZE // 3)


def renamed(proto: ModelProto) -> ModelProto:
    """Return the model with w in the place of all that Identity makes of it."""
    made = ModelProto()
    made.CopyFrom(proto)
    pending = [made.graph]
    while pending:
        graph = pending.pop()
        for node in [one for one in graph.node if one.op_type == "Identity"]:
            if node.output[0] in ("v", "v2", "u"):
                graph.node.remove(node)
        for node in graph.node:
            node.input[:] = ["w" if name in ("v", "v2", "u") else name for name in node.input]
            pending += [one.g for one in node.attribute if one.HasField("g")]
    return made
