from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, helper

from memdiag.records.finding import Finding
from memdiag.rewrites.catalog import merge_transposed
from tests.rewrites.rewriting import finding, operators, refusal, rewritten, weights
from tests.rewrites.tied_models import COLUMNS, ROWS, STORED, model, stored_twice, tied_feeds
from tests.rewrites.tied_models import weight as matrix

SMALL = np.array([-1, 0, 5, -ROWS, 5])
BRANCHES = f"""g (bool c, int64[n] ids, float[n, {COLUMNS}] x) => (float[n, m] y) {{
    y = If (c) <
        then_branch = a () => (float[n, m] e) {{ e = Gather(w, ids) }},
        else_branch = b () => (float[n, m] p) {{ p = MatMul(x, t) }}
    > }}"""
UNKNOWN_RANK = f"""g (float[n, {COLUMNS}] x, int64[k] flat, int64[r] shape)
    => (float[n, {ROWS}] y, float[o] e) {{
    ids = Reshape(flat, shape) f = Gather(w, ids)
    one = Constant <value = int64[1] {{-1}}> () e = Reshape(f, one) y = MatMul(x, t) }}"""


def pair(text: str) -> ModelProto:
    """Return the model of `text` with a matrix w and its transpose t."""
    return model(text, w=matrix(), t=np.ascontiguousarray(matrix().T))


@pytest.mark.parametrize(
    ("ids", "values", "added"),
    [
        ("", np.array(3), []),
        ("i", SMALL, ["Transpose"]),
        ("i", SMALL[:0], ["Transpose"]),
        ("i, j", SMALL.reshape(5, 1), ["Transpose"]),
        ("2, j, 1", SMALL[:4].reshape(2, 2, 1), ["Transpose"]),
    ],
)
def test_rows_are_gathered_from_the_columns_of_the_transpose(
    tmp_path: Path, ids: str, values: np.ndarray, added: list[str]
) -> None:
    feeds = {**tied_feeds(3), "ids": values}
    path = rewritten(merge_transposed, stored_twice(ids=ids), STORED, tmp_path, feeds)
    assert weights(path) == ["t"]
    assert operators(path) == ["Gather", "MatMul", *added]


@pytest.mark.parametrize("axis", [-2, -1, 0, 1])
@pytest.mark.parametrize("ids", [[], ["i"], ["i", "j"]])
def test_along_either_axis(tmp_path: Path, axis: int, ids: list[str]) -> None:
    out = [*ids, COLUMNS] if axis % 2 == 0 else [ROWS, *ids]
    sizes = f"[{', '.join(ids)}]" if ids else ""
    original = pair(
        f"g (float[n, {COLUMNS}] x, int64{sizes} ids)"
        f" => (float[n, {ROWS}] y, float[{', '.join(map(str, out))}] e)"
        f" {{ e = Gather <axis = {axis}> (w, ids) y = MatMul(x, t) }}"
    )
    assert weights(rewritten(merge_transposed, original, STORED, tmp_path)) == ["t"]


def test_gathers_in_branches(tmp_path: Path) -> None:
    path = rewritten(merge_transposed, pair(BRANCHES), STORED, tmp_path)
    assert weights(path) == ["t"]


def shown(kind: str) -> ModelProto:
    """Return a model whose `input` or `output` w is."""
    both = stored_twice()
    value = helper.make_tensor_value_info("w", 1, [ROWS, COLUMNS])
    getattr(both.graph, kind).append(value)
    return both


@pytest.mark.parametrize(
    ("original", "of", "reason"),
    [
        (stored_twice("e = Gather(w, ids) s = Relu(w) y = MatMul(x, t)"), STORED, "Relu reads it"),
        (stored_twice("f = Relu(w) e = Gather(f, ids) y = MatMul(x, t)"), STORED, "MatMul reads"),
        (stored_twice("e = GatherElements(w, ids) y = MatMul(x, t)"), STORED, "GatherElements rea"),
        (shown("output"), STORED, "w is an output"),
        (shown("input"), STORED, "callers may set w"),
        (
            stored_twice(),
            finding("w", "t"),  # of another rule
            "the two weights are not both stored as matrices of one type",
        ),
        (pair(UNKNOWN_RANK), STORED, "the rank of the indices is not known"),
    ],
)
def test_near_misses_are_refused(
    tmp_path: Path, original: ModelProto, of: Finding, reason: str
) -> None:
    assert reason in refusal(merge_transposed, original, of, tmp_path)
