from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from memdiag.rewrites.catalog import merge_transposed
from tests.rewrites.rewriting import (
    assert_same_outputs,
    finding,
    random,
    refusal,
    rewrite,
    saved,
)
from tests.rewrites.tied_models import (
    COLUMNS,
    ROWS,
    STORED,
    model,
    operators,
    stored_twice,
    tied_feeds,
    weight,
    weights,
)

SMALL = np.array([-1, 0, 5, -ROWS, 5])


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
    original = stored_twice(ids=ids)
    path = rewrite(merge_transposed, original, STORED, tmp_path)
    assert weights(path) == ["t"]
    assert operators(path) == ["Gather", "MatMul", *added]
    feeds = {**tied_feeds(3), "ids": values}
    assert_same_outputs(saved(original, tmp_path), path, feeds)


@pytest.mark.parametrize("axis", [-2, -1, 0, 1])
@pytest.mark.parametrize("ids", ["", "i", "i, j"])
def test_along_either_axis(tmp_path: Path, axis: int, ids: str) -> None:
    left, right = (ROWS, COLUMNS)
    names = [name.strip() for name in ids.split(",") if ids]
    out = [*names, right] if axis % 2 == 0 else [left, *names]
    original = model(
        f"g (float[n, {COLUMNS}] x, int64{f'[{ids}]' if ids else ''} ids)"
        f" => (float[n, {ROWS}] y, float[{', '.join(map(str, out))}] e)"
        f" {{ e = Gather <axis = {axis}> (w, ids) y = MatMul(x, t) }}",
        w=weight(),
        t=np.ascontiguousarray(weight().T),
    )
    path = rewrite(merge_transposed, original, STORED, tmp_path)
    assert weights(path) == ["t"]
    values = np.arange(2 ** len(names)).reshape((2,) * len(names))
    assert_same_outputs(saved(original, tmp_path), path, {**tied_feeds(3), "ids": values})


def test_gathers_in_branches(tmp_path: Path) -> None:
    original = model(
        f"""g (bool c, int64[n] ids, float[n, {COLUMNS}] x) => (float[n, m] y) {{
            y = If (c) <
                then_branch = a () => (float[n, m] e) {{ e = Gather(w, ids) }},
                else_branch = b () => (float[n, m] p) {{ p = MatMul(x, t) }}
            > }}""",
        t=np.ascontiguousarray(weight().T),
        w=weight(),
    )
    path = rewrite(merge_transposed, original, STORED, tmp_path)
    assert weights(path) == ["t"]
    runs = [
        {"c": np.array(flag), "ids": np.array([1, 9]), "x": random((2, COLUMNS))}
        for flag in (True, False)
    ]
    assert_same_outputs(saved(original, tmp_path), path, *runs)


def _output() -> ModelProto:
    both = stored_twice("e = Gather(w, ids) y = MatMul(x, t)")
    both.graph.output.append(onnx.helper.make_tensor_value_info("w", 1, [ROWS, COLUMNS]))
    return both


def _overridable() -> ModelProto:
    both = stored_twice()
    both.graph.input.append(onnx.helper.make_tensor_value_info("w", 1, [ROWS, COLUMNS]))
    return both


@pytest.mark.parametrize(
    ("original", "reason"),
    [
        (stored_twice("e = Gather(w, ids) s = Relu(w) y = MatMul(x, t)"), "Relu reads it as well"),
        (stored_twice("f = Relu(w) e = Gather(f, ids) y = MatMul(x, t)"), "MatMul reads it"),
        (stored_twice("e = GatherElements(w, ids) y = MatMul(x, t)"), "GatherElements reads it"),
        (_output(), "w is an output"),
        (_overridable(), "callers may set w"),
    ],
)
def test_near_misses_are_refused(tmp_path: Path, original: ModelProto, reason: str) -> None:
    assert reason in refusal(merge_transposed, original, STORED, tmp_path)


def test_another_rule_or_weight_is_refused(tmp_path: Path) -> None:
    expected = "the two weights are not both stored as matrices of one type"
    assert refusal(merge_transposed, stored_twice(), finding("w", "t"), tmp_path) == expected


def test_indices_of_unknown_rank_are_refused(tmp_path: Path) -> None:
    original = model(
        f"g (float[n, {COLUMNS}] x, int64[k] flat, int64[r] shape) => (float[n, {ROWS}] y,"
        " float[o] e) { ids = Reshape(flat, shape) f = Gather(w, ids)"
        " one = Constant <value = int64[1] {-1}> () e = Reshape(f, one) y = MatMul(x, t) }",
        w=weight(),
        t=np.ascontiguousarray(weight().T),
    )
    reason = refusal(merge_transposed, original, STORED, tmp_path)
    assert "the rank of the indices is not known" in reason
