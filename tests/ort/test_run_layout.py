"""The blocks that a run takes from the arena, as they are drawn."""

from itertools import combinations
from pathlib import Path

import onnx
import pytest
from onnx import parser

from memdiag.model.model_file import open_model
from memdiag.ort import run_layout as module
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.arena import Arena, Request
from memdiag.ort.run_layout import run_layout
from memdiag.ort.runtime import Runtime
from memdiag.records.estimate import RunBlock, RunLayout

TEXT = """
<ir_version: 9, opset_import: ["" : 17]>
g (float[64, 1024] x, bool[1, 1024] c, float[1] z) => (float[64, 1024] y) {
    a = Exp (x) b = Sin (a) d = Where (c, b, z) e = Cos (d) y = Add (a, e)
}
"""
ROW = 64 * 1024 * 4


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    path = tmp_path / "model.onnx"
    onnx.save(parser.parse_model(TEXT), path)
    with open_model(path) as model:
        ctx = AnalysisContext(model, Runtime(1, 32), reads_weights=False)
        return run_layout(ctx.graphs, ctx.run({}))


def in_use(layout: RunLayout, step: int) -> int:
    return sum(each.bytes for each in layout.blocks if each.first <= step <= each.last)


def test_each_value_has_a_block_from_its_node_to_its_last_use(layout: RunLayout) -> None:
    assert layout.steps == 5
    values = {each.name: each for each in layout.blocks if each.kind == "value"}
    assert (values["a"].first, values["a"].last) == (0, 4)
    assert values["a"].bytes == ROW
    scratch = [each for each in layout.blocks if each.kind == "scratch"]
    assert {each.name for each in scratch} == {scratch[0].first_node}
    assert [(each.first, each.last) for each in scratch] == [(2, 2)] * 2


def test_the_peak_is_where_most_is_in_use(layout: RunLayout) -> None:
    totals = [in_use(layout, step) for step in range(layout.steps)]
    assert layout.peak_step == totals.index(max(totals)) == 2


def test_no_two_blocks_have_the_same_bytes_at_one_time(layout: RunLayout) -> None:
    def overlap(a: RunBlock, b: RunBlock) -> bool:
        apart = a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset
        return not apart and a.first <= b.last and b.first <= a.last

    # A buffer that ends with a node may be taken again by working memory of the next one only.
    assert not [pair for pair in combinations(layout.blocks, 2) if overlap(*pair)]
    assert all(each.offset + each.bytes <= sum(layout.region_bytes) for each in layout.blocks)


def test_only_the_largest_blocks_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: RunLayout
) -> None:
    monkeypatch.setattr(module, "MAX_BLOCKS", 2)
    with open_model(tmp_path / "model.onnx") as model:
        ctx = AnalysisContext(model, Runtime(1, 32), reads_weights=False)
        fewer = run_layout(ctx.graphs, ctx.run({}))
    assert len(fewer.blocks) == 2
    assert fewer.unlisted == len(layout.blocks) - 2 > 0
    assert fewer.peak_step == layout.peak_step


def test_lifetimes_take_the_arena_as_serving_does() -> None:
    requests = [Request(1, 3000, step=0), Request(2, 5000, step=1), Request(1, 0, step=1)]
    requests += [Request(3, 2000, step=2), Request(2, 0, step=2), Request(3, 0, step=3)]
    served, drawn = Arena(), Arena()
    served.serve(requests)
    found = drawn.lifetimes(requests)
    assert drawn.resident_bytes == served.resident_bytes
    assert [(each.request.key, each.request.step, each.until) for each in found] == [
        *((1, 0, 1), (2, 1, 2), (3, 2, 3))
    ]
    # The third value is where the first one was.
    assert found[2].start == found[0].start
