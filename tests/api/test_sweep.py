"""`memdiag.sweep` and the profiles that are added to a store."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset
import pytest

import memdiag
from memdiag.api.load import load_reported
from memdiag.api.sweep import SweepOutcome, SweepProgress, run_sweep
from memdiag.errors import RecordError, UsageError
from memdiag.records.codec import encode
from tests.sweeps import results
from tests.sweeps.test_model_sources import write_model

pytestmark = pytest.mark.usefixtures("jobs_in_this_process")


def test_a_job_without_a_record_says_why(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_bytes(encode(results.failed()))
    with pytest.raises(RecordError, match=r"no profile \(parse: not a model\)"):
        load_reported(path)
    with pytest.raises(RecordError, match=r"its schema is 'memdiag\.job/1'"):
        memdiag.load_profile(path)


def test_a_sweep_returns_the_answers_of_its_store(tmp_path: Path) -> None:
    for number in range(2):
        write_model(tmp_path / "zoo" / f"{number}.onnx", number)
    seen: list[SweepProgress] = []

    def sweep(*sizes: int) -> memdiag.Sweep:
        return memdiag.sweep(
            tmp_path / "zoo",
            store=tmp_path / "store",
            runs=1,
            dims={"batch": list(sizes)},
            place=[1 << 30],
            on_progress=seen.append,
        )

    answers = sweep(1, 4)
    assert [(each.model, each.dims) for each in answers.series] == [
        ("0.onnx", "batch=1"),
        ("0.onnx", "batch=4"),
        ("1.onnx", "batch=1"),
        ("1.onnx", "batch=4"),
    ]
    assert all(point.peak_bytes for point in answers.points)
    assert answers.placement is not None
    (machine,) = answers.placement.machines
    assert {each.model for each in machine.models} == {"0.onnx", "1.onnx"}
    largest = max(point.peak_bytes or 0 for point in answers.points)
    assert machine.models[0].peak_bytes > largest + (20 << 20)  # with the process before it
    assert (seen[-1].done, seen[-1].total, seen[-1].failed) == (4, 4, 0)
    seen.clear()
    assert len(sweep(4, 8).series) == 6
    assert (seen[-1].done, seen[-1].total) == (2, 2)
    rows = pyarrow.dataset.dataset(tmp_path / "store" / "profiles.parquet")
    assert rows.count_rows(filter=pyarrow.dataset.field("phase") == "all") == 6


def test_jobs_that_another_sweep_has_done_meanwhile_are_not_done_again(tmp_path: Path) -> None:
    for number in range(3):
        write_model(tmp_path / "zoo" / f"{number}.onnx", number)
    others: list[SweepOutcome] = []

    def sweep(on_progress: Callable[[SweepProgress], None]) -> SweepOutcome:
        return run_sweep(
            [tmp_path / "zoo"],
            store=tmp_path / "store",
            runs=1,
            processes=1,
            on_progress=on_progress,
        )

    def start_another(progress: SweepProgress) -> None:
        if progress.done == 1 and not others:
            others.append(sweep(lambda progress: None))

    outcome = sweep(start_another)
    assert len(outcome.new_keys) == 1
    assert len(others[0].new_keys) == 2
    assert sorted(outcome.keys) == sorted(others[0].keys)
    assert outcome.completed == others[0].completed == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on": "moon"}, "Write local, local-cluster, or dask://host:port"),
        ({"processes": 0}, "processes must be at least 1"),
        ({"dims": {"batch": (4, 1)}}, r"4\.\.1 is not a range"),
        ({"dims": {"batch": 1 << 63}}, "larger than any dimension"),
        ({"place": "x"}, "is not a size"),
        ({"timeout_s": float("inf")}, "timeout_s must be a number of seconds"),
        ({"memory_bytes": 0}, "memory_bytes must be greater than 0"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    tmp_path: Path, options: dict[str, object], message: str
) -> None:
    path = write_model(tmp_path / "a.onnx")
    with pytest.raises(UsageError, match=message):
        memdiag.sweep(path, store=tmp_path / "store", **options)  # type: ignore[arg-type] # wrong
    with pytest.raises(UsageError, match="no model was given"):
        memdiag.sweep(store=tmp_path / "store")


def test_a_path_that_was_wrong_is_no_answer_of_a_later_sweep(tmp_path: Path) -> None:
    path = write_model(tmp_path / "a.onnx")
    wrong = memdiag.sweep(path, tmp_path / "b.onnx", store=tmp_path / "store", runs=1)
    assert [series.model for series in wrong.series] == ["a.onnx", "b.onnx"]
    right = memdiag.sweep(path, store=tmp_path / "store", runs=1)
    assert [series.model for series in right.series] == ["a.onnx"]
