from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, parser

from memdiag.rules.match_measurement import match_attribution
from tests.rules.building import overridable, raw, values
from tests.rules.conftest import Agrees
from tests.rules.examining import findings
from tests.rules.measuring import NEWEST, above_baseline, xray

RULE = "weight-under-two-names"
SHAPE = (1536, 1024)
SIZE = 1536 * 1024 * 4
HEAD = "g (bool c, int64[n] ids, float[n, 1536] x) => (float[n, 1024] y)"


def model(text: str) -> ModelProto:
    made = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {HEAD} {{ {text} }}')
    made.graph.initializer.append(raw(values(SHAPE), "w"))
    return made


def branches(then: str, other: str, before: str = "v = Identity(w)") -> ModelProto:
    """Return an If whose branches make p and q, with nodes `before` it."""
    return model(
        f"""{before} y = If (c) <
            then_branch = a () => (float[n, 1024] p) {{ {then} }},
            else_branch = b () => (float[n, 1024] q) {{ {other} }}
        >"""
    )


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
COPIED = {
    "gathered": (branches(GATHER, GATHER_TOO), ("Identity_0",), 1),
    "a chain": (
        branches("p = Gather(v2, ids)", GATHER_TOO, "v = Identity(w) v2 = Identity(v)"),
        ("Identity_1",),
        1,
    ),
    "twice": (
        branches("p = Gather(v, ids)", "r = Gather(u, ids) q = Neg(r)",
                 "v = Identity(w) u = Identity(w)"),
        ("Identity_1",),
        1,
    ),
    "packed and gathered": (branches("p = MatMul(x, v)", GATHER_TOO), ("Identity_0",), 0),
    "a body": (model(LOOP), ("Identity_0",), 1),
    "in a branch": (branches(INSIDE, GATHER_TOO, ""), ("If_0/then_branch/Identity_0",), 1),
}  # fmt: skip


@pytest.mark.parametrize("case", COPIED)
def test_a_weight_under_two_names(tmp_path: Path, case: str) -> None:
    proto, nodes, copies = COPIED[case]
    (found,) = findings(RULE, proto, tmp_path)
    assert (found.rule, found.weights, found.nodes) == ("MD106", ("w",), nodes)
    assert (found.bytes, found.peak_bytes) == (copies * SIZE, SIZE)
    assert found.phase == "constant_fold"
    assert nodes[0] in found.message
    assert found.remedies == ("remove-identities",)
    assert bool(found.expected) == bool(copies)


def _output() -> ModelProto:
    made = branches(GATHER, GATHER_TOO)
    made.graph.output.append(helper.make_tensor_value_info("v", 1, SHAPE))
    return made


def _without_output() -> ModelProto:
    made = branches(GATHER, GATHER_TOO)
    made.graph.node.add(op_type="Identity", input=["w"])
    del made.graph.node[0]
    return made


def _small() -> ModelProto:
    made = branches(GATHER, GATHER_TOO)
    made.graph.initializer[0].CopyFrom(raw(np.ones((8, 1024), np.float32), "w"))
    return made


NEAR = {
    "one name": branches(GATHER, "r = Gather(v, ids) q = Neg(r)"),
    "two nodes": model(
        "v = Identity(w) z = Gather(w, ids) y = If (c) <"
        " then_branch = a () => (float[n, 1024] p) { p = Gather(v, ids) },"
        " else_branch = b () => (float[n, 1024] q) { q = Neg(z) }>"
    ),
    "the main graph": model("v = Identity(w) e = Gather(v, ids) f = Gather(w, ids) y = Add(e, f)"),
    "in the branch": branches("v = Identity(w) p = Gather(v, ids)", GATHER_TOO, ""),
    "further in": branches(
        GATHER,
        "q = If (c) < then_branch = aa () => (float[n, 1024] s) { s = Gather(w, ids) },"
        " else_branch = ab () => (float[n, 1024] t) { r = Gather(w, ids) t = Neg(r) }>",
    ),
    "both packed": branches("p = MatMul(x, v)", "r = MatMul(x, w) q = Neg(r)"),
    "an output": _output(),
    "overridable": overridable(branches(GATHER, GATHER_TOO)),
    "small": _small(),
    "an Identity without an output": _without_output(),
}


@pytest.mark.parametrize("case", NEAR)
def test_near_misses(tmp_path: Path, case: str) -> None:
    assert not findings(RULE, NEAR[case], tmp_path)


def test_of_a_mapped_weight_all_copies_are_too_many(tmp_path: Path) -> None:
    path = tmp_path / "external.onnx"
    packed, gathered = (deepcopy(COPIED[case][0]) for case in ("packed and gathered", "gathered"))
    onnx.save(packed, path, save_as_external_data=True)  # which changes what it saves
    assert findings(RULE, path, tmp_path)[0].bytes == 0
    onnx.save(gathered, path, save_as_external_data=True, location="other.data")
    (found,) = findings(RULE, path, tmp_path)
    assert (found.bytes, found.peak_bytes, found.expected) == (SIZE, SIZE, ())


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
    found = findings(RULE, proto, tmp_path, runtime=version)
    reported_bytes = found[0].bytes if found else 0
    seen = xray(tmp_path / "model.onnx", version)
    if found and found[0].expected:
        assert match_attribution(found[0], seen).evidence == "measured"
    without = tmp_path / "without.onnx"
    without.write_bytes(renamed(proto).SerializeToString())
    more = above_baseline(seen) - above_baseline(xray(without, version))
    if found:
        agrees(found[0], more, version, abs=SIZE // 3)
    assert more == pytest.approx(reported_bytes, abs=SIZE // 3)


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
