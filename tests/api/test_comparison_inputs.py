import time
from math import inf
from pathlib import Path

import numpy as np
import pytest

from memdiag.api.comparison_inputs import ComparisonInputs, find_comparison_inputs
from memdiag.model.model_file import open_model
from memdiag.runner.job import Deadline, InputConfig, Job, Limits
from memdiag.verify.model_evaluator import InputSet
from tests.api.small_models import save_model


def chosen(
    folder: Path,
    body: str,
    given: dict[str, np.ndarray] | None = None,
    *,
    dims: dict[str, int] | None = None,
    sizes: tuple[int, ...] | None = None,
    limits: Limits | None = None,
) -> ComparisonInputs:
    path = save_model(folder / "m.onnx", body)
    with open_model(path) as file:
        return find_comparison_inputs(
            file,
            Job(model=path, limits=limits or Limits()),
            folder / "in",
            InputConfig(dims=dims or {}, arrays=given or {}),
            sizes=sizes,
        )


def found(
    folder: Path, body: str, given: dict[str, np.ndarray] | None = None
) -> tuple[InputSet, ...]:
    return chosen(folder, body, given).sets


def arrays(trial: InputSet) -> list[np.ndarray]:
    return [np.load(feed.files[0]) for feed in trial.feeds]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("b, n, 3", {"b 1 × n 128": (1, 128, 3), "b 1 × n 1": (1, 1, 3), "b 1 × n 4": (1, 4, 3)}),
        ("b, 3", {"b 1": (1, 3), "b 4": (4, 3)}),
        ("2, 3", {"the inputs of the model": (2, 3)}),
    ],
)
def test_models_are_compared_at_realistic_sizes_and_small_ones(
    tmp_path: Path, shape: str, expected: dict[str, tuple[int, ...]]
) -> None:
    sets = found(tmp_path, f"g (float[{shape}] x) => (float[{shape}] y) {{ y = Abs(x) }}")
    assert {one.name: arrays(one)[0].shape for one in sets} == expected
    assert [one.timed for one in sets] == [True, False] * len(expected)
    first, second = arrays(sets[0])[0], arrays(sets[1])[0]
    assert not np.array_equal(first, second)


def test_images_keep_their_sides(tmp_path: Path) -> None:
    body = """g (float[b, 3, h, w] x, float[4, 3, 3, 3] k) => (float[b, 4, i, j] y)
        { y = Conv(x, k) }"""
    kernel = {"k": np.zeros((4, 3, 3, 3), np.float32)}
    shapes = {one.name: arrays(one)[0].shape for one in found(tmp_path, body, kernel)}
    assert shapes == {
        "b 1 × h 640 × w 640": (1, 3, 640, 640),
        "b 4 × h 640 × w 640": (4, 3, 640, 640),
    }


ROWS = "g (float[batch, n] x) => (float[batch, n] y) { y = Abs(x) }"


def test_where_a_size_was_given_no_other_is_added(tmp_path: Path) -> None:
    inputs = chosen(tmp_path, ROWS, dims={"n": 8})
    assert {each.name for each in inputs.sets} == {"batch 1 × n 8"}
    assert inputs.notes == ()
    inputs = chosen(tmp_path, ROWS, dims={"n": 8}, sizes=(4,))
    assert {each.name for each in inputs.sets} == {"batch 1 × n 8", "batch 4 × n 8"}


@pytest.mark.parametrize(
    ("seconds", "sizes", "count"), [(100, None, 1), (100, (4,), 2), (inf, None, 2)]
)
def test_slow_runs_are_tried_with_other_sizes_only_if_asked_for_or_if_there_is_time(
    seconds: float,
    sizes: tuple[int, ...] | None,
    count: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("memdiag.api.comparison_inputs._SHORT_TRIAL", 1e-9)
    limits = Limits(deadline=Deadline(time.monotonic() + seconds))
    body = "g (float[batch, 2] x) => (float[batch, 2] y) { y = Abs(x) }"
    inputs = chosen(tmp_path, body, sizes=sizes, limits=limits)
    assert len({each.name for each in inputs.sets}) == count
    told = "not compared with batch 4: runs are too slow for the time limit"
    assert inputs.notes == ((told,) if count == 1 else ())
    # The second set of values is left out, too.
    assert len(inputs.sets) == (1 if count == 1 else 4)


@pytest.mark.parametrize(("kind", "count"), [("bool", 2), ("float", 1)])
def test_slow_runs_are_tried_with_both_values_of_a_flag(
    kind: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memdiag.api.comparison_inputs._SHORT_TRIAL", 1e-9)
    limits = Limits(deadline=Deadline(time.monotonic() + 100))
    body = f"g ({kind} c) => ({kind} y) {{ y = Identity(c) }}"
    assert len(chosen(tmp_path, body, limits=limits).sets) == count


def test_sizes_that_do_not_run_are_told(tmp_path: Path) -> None:
    body = """g (float[batch] x) => (float[1] y)
        { shape = Constant <value = int64[1] {1}> () y = Reshape(x, shape) }"""
    inputs = chosen(tmp_path, body)
    assert {each.name for each in inputs.sets} == {"batch 1"}
    assert inputs.notes == ("not compared with batch 4: the model does not run",)


def test_flags_choose_both_branches(tmp_path: Path) -> None:
    sets = found(
        tmp_path,
        """g (bool c, float[3] x) => (float[3] y) {
            y = If (c) <then_branch = t () => (float[3] u) { u = Abs(x) },
                        else_branch = e () => (float[3] v) { v = Neg(x) }>
        }""",
    )
    assert sorted(bool(arrays(one)[0]) for one in sets) == [False, True]


def test_a_model_that_does_not_run_at_the_realistic_size_has_another(tmp_path: Path) -> None:
    body = """g (float[n] x) => (float[k] y) {
        s = Constant <value_ints = [4, 16]> ()
        r = Reshape(x, s)
        f = Constant <value_ints = [2]> ()
        y = Reshape(r, f)
    }"""
    (one, _) = found(tmp_path, body.replace("[2]", "[-1]"))[:2]
    assert arrays(one)[0].shape == (64,)


def test_given_arrays_are_used_once(tmp_path: Path) -> None:
    x = np.arange(3, dtype=np.float32)
    (one,) = found(tmp_path, "g (float[3] x) => (float[3] y) { y = Abs(x) }", {"x": x})
    assert arrays(one)[0].tolist() == [0, 1, 2]


def test_a_model_that_does_not_run_has_none(tmp_path: Path) -> None:
    assert found(tmp_path, "g (float[3] x) => (float[3] y) { y = Nonsense(x) }") == ()


def test_given_arrays_set_the_dimensions(tmp_path: Path) -> None:
    given = {"x": np.ones((2, 3), np.float32)}
    body = "g (float[n, 3] x, float[n, 3] z) => (float[n, 3] y) { y = Add(x, z) }"
    sets = found(tmp_path, body, given)
    assert sets
    for each in sets:
        assert [array.shape for array in arrays(each)] == [(2, 3), (2, 3)]


def test_sizes_with_which_the_model_fails_are_left_out(tmp_path: Path) -> None:
    # One row and six rows can be added to six rows.
    body = """g (float[n, 2] x) => (float[6, 2] y) {
        c = Constant <value = float[6, 2] {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}> ()
        y = Add(x, c)
    }"""
    sets = chosen(tmp_path, body, sizes=(4, 6)).sets
    assert [arrays(each)[0].shape[0] for each in sets] == [1, 1, 6, 6]
