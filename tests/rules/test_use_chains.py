"""The path of a finding: the uses of its first weight."""

from pathlib import Path

import msgspec
import onnx
import pytest
from onnx import parser

from memdiag.model.graph_index import GraphIndex
from memdiag.model.model_file import open_model
from memdiag.rules import use_chains
from memdiag.rules.use_chains import findings_with_paths
from tests.reports.checks import finding

SHARED = "ids = Gather(w, i) t = Transpose<perm = [1, 0]>(w) y = MatMul(x, t)"
SCALED = "f = Cast<to = 1>(w) p = Mul(f, s) y = MatMul(x, p)"
THRICE = "a = MatMul(x, w) b = Add(a, w) c = MatMul(b, w) d = Relu(w) y = Add(c, d)"
IN_BRANCH = """y = If(c) <
    then_branch = then () => (float[2, 2] p) { p = MatMul(x, w) },
    else_branch = other () => (float[2, 2] q) { q = Identity(x) }>"""


def path_of(folder: Path, nodes: str, *, weights: tuple[str, ...] = ("w",), named: str = "") -> str:
    text = f"""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[2, 2] x, int64[1] i, bool c) => (float[2, 2] y)
        <float[2, 2] w = {{1, 2, 3, 4}}, float[1] s = {{2}}> {{ {nodes} }}
    """
    model = parser.parse_model(text)
    for node in model.graph.node:
        node.name = node.output[0]
    onnx.save(model, folder / "m.onnx")
    given = finding(weights=weights, nodes=(named,) if named else ())
    with open_model(folder / "m.onnx") as opened:
        (found,) = findings_with_paths((given,), opened, GraphIndex(opened))
    assert msgspec.structs.replace(found, path="") == given
    return found.path


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (SHARED, "Gather ← w → Transpose → MatMul"),
        # A node whose inputs are all constant is followed, others are not.
        (SCALED, "w → Cast → Mul → MatMul"),
        # Uses by the same operators are one; of others two are named.
        (THRICE, "MatMul ← w → Add, and 1 more use"),
        (IN_BRANCH, "w → MatMul"),
        ("y = Relu(x)", ""),
    ],
    ids=["shared", "scaled", "thrice", "in branch", "unused"],
)
def test_the_uses_of_a_weight_are_its_path(tmp_path: Path, nodes: str, expected: str) -> None:
    assert path_of(tmp_path, nodes) == expected


def test_uses_that_the_finding_names_come_first(tmp_path: Path) -> None:
    assert path_of(tmp_path, THRICE).startswith("MatMul ← w → Add, ")
    assert path_of(tmp_path, THRICE, named="d").startswith("Add ← Relu ← w → ")


@pytest.mark.parametrize(
    ("weights", "named", "expected"),
    [
        (("gone",), "f", ""),
        ((), "", ""),
        ((), "gone", ""),
        ((), "y", ""),  # it uses no weight itself
        ((), "f", "w → Cast → Mul → MatMul"),
    ],
)
def test_without_a_weight_the_nodes_of_a_finding_say_which(
    tmp_path: Path, weights: tuple[str, ...], named: str, expected: str
) -> None:
    assert path_of(tmp_path, SCALED, weights=weights, named=named) == expected


def test_long_names_lose_their_middle(tmp_path: Path) -> None:
    name = "n" * 100
    text = (
        f'<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y)'
        f" <float[2] {name} = {{1, 2}}> {{ y = Add(x, {name}) }}"
    )
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    with open_model(tmp_path / "m.onnx") as opened:
        (found,) = findings_with_paths((finding(weights=(name,)),), opened, GraphIndex(opened))
    weight, _, operator = found.path.partition(" → ")
    assert (len(weight), operator) == (use_chains.MAX_CHAIN_NAME_CHARACTERS, "Add")


def test_only_the_first_findings_have_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert path_of(tmp_path, SHARED)
    monkeypatch.setattr(use_chains, "MAX_DESCRIBED_FINDINGS", 1)
    with open_model(tmp_path / "m.onnx") as opened:
        given = (finding(weights=("w",)),) * 2
        first, second = findings_with_paths(given, opened, GraphIndex(opened))
    assert (bool(first.path), bool(second.path)) == (True, False)
