from collections.abc import Iterator
from pathlib import Path

import pytest

from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.runtime import Runtime
from tests.builders import build, saved
from tests.ort.executing import analysed

# `t` and `u` are the same, `p` and `q` are two results of one node, and the branches have one each.
GRAPH = """(float[4,2] x, bool c) => (float[4,4] y, float[2,2] z) <
  float[2,4] W = {1, 2, 3, 4, 5, 6, 7, 8}, float[4,2] V = {1, 2, 3, 4, 5, 6, 7, 9}
> {
  t = Transpose(W) u = Transpose(W) s = Add(t, V) p, q = Split <axis = 0> (s)
  m = MatMul(x, W) n = Mul(u, V) o = MatMul(n, W) y = Add(m, o)
  z = If(c) <
    then_branch = a () => (float[2,2] d) { b = Neg(p) d = Identity(b) },
    else_branch = e () => (float[2,2] f) { f = Sub(q, p) }
  >
}"""


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[AnalysisContext]:
    with analysed(saved(build(GRAPH), tmp_path), {}, Runtime(1, 31, 1)) as opened:
        yield opened


def test_all_that_folds_tell_agrees_with_what_they_are(ctx: AnalysisContext) -> None:
    folds = ctx.folds
    found = list(folds)
    assert {"t", "u", "s", "p", "q", "n"} <= {fold.output for fold in found}
    assert len(found) == len(folds)
    assert folds[-1] == found[-1]
    assert list(folds[1:4]) == found[1:4]
    for index, fold in enumerate(found):
        assert folds.index_of(fold.scope, fold.output) == index
        assert folds.is_folded(fold.scope, fold.node)
        assert fold.node in folds.nodes
        last = [one for one in found if one.node == fold.node][-1]
        assert folds.of_node(fold.node) == last
        merged = [one for one in found if one.merged_into == (fold.scope, fold.output)]
        assert list(folds.duplicates(fold)) == merged
    for weight in ctx.model_file.weights:
        assert list(folds.of_weight(weight)) == [one for one in found if weight in one.weights]


def test_like_nodes_are_merged_into_the_first(ctx: AnalysisContext) -> None:
    first, like = (next(one for one in ctx.folds if one.output == name) for name in "tu")
    assert like.merged_into == (first.scope, "t")
    assert [one.output for one in ctx.folds.duplicates(first)] == ["u"]
    assert first.merged_into is None


def test_what_is_not_folded_is_none_of_them(ctx: AnalysisContext) -> None:
    folds, (_, main) = ctx.folds, next(iter(ctx.graphs))
    product = main.producers["m"]
    assert not folds.is_folded(main, product)
    assert product not in folds.nodes
    assert folds.of_node(product) is None
    for name in ("m", "x", "W", "nothing"):
        assert folds.index_of(main, name) is None
