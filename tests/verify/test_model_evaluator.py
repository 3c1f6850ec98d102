"""Models judged beside an original: right ones pass, and each way of being wrong is seen."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from memdiag.errors import MeasurementError
from memdiag.records.measured_change import Figures
from memdiag.runner.job import Deadline, Feed, Job, Limits
from memdiag.runner.session_server import SessionServer
from memdiag.verify.latency import MAX_COMPARISON_S, LatencyComparison
from memdiag.verify.latency_ratio import LatencyRatio
from memdiag.verify.memory import JobError, MeasuredProcess, measure_interleaved
from memdiag.verify.model_evaluator import InputSet, ModelEvaluator
from memdiag.verify.outputs import Bound

Write = Callable[..., Path]
ORIGINAL = "y = MatMul(x, w)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def write(folder: Path) -> Write:
    """A function that writes a model with a 2 MiB weight w and the nodes given."""

    def model(
        name: str,
        nodes: str = ORIGINAL,
        output: str = "y",
        weight_scale: float = 1,
        states_shape: bool = True,
    ) -> Path:
        text = f"""<ir_version: 9, opset_import: ["" : 17]>
            g (float[n, 512] x) => (float[n, 1024] {output}) {{ {nodes} }}"""
        proto = parser.parse_model(text)
        if not states_shape:
            proto.graph.output[0].type.tensor_type.ClearField("shape")
        values = np.random.default_rng(0).standard_normal((512, 1024), np.float32) * weight_scale
        proto.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), "w"))
        path = folder / f"{name}.onnx"
        onnx.save(proto, path)
        return path

    return model


@pytest.fixture(scope="module")
def bench(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ModelEvaluator]:
    """A function that returns the evaluator of an original, within limits if they are given."""

    def make(path: Path, limits: Limits | None = None) -> ModelEvaluator:
        trials = []
        for rows in (1, 4):
            file = folder / f"x{rows}.npy"
            values = np.random.default_rng(rows).standard_normal((rows, 512), np.float32)
            np.save(file, values)
            trials.append(InputSet(f"{rows} rows", (Feed(name="x", files=(file,)),), True))
        scratch = tmp_path_factory.mktemp("scratch")
        job = Job(model=path, limits=limits or Limits())
        return ModelEvaluator(job, trials, scratch, path.stat().st_size)

    return make


@pytest.fixture(scope="module")
def judge(write: Write, bench: Callable[[Path], ModelEvaluator]) -> Iterator[ModelEvaluator]:
    """The evaluator of the original, which is measured once."""
    with bench(write("original")) as evaluator:
        yield evaluator


@pytest.mark.usefixtures("equal_latency")
def test_the_same_model_passes(write: Write, judge: ModelEvaluator) -> None:
    assert judge.notes == ()
    evaluation = judge.evaluate(Job(model=write("same")), Bound.exact(), pairs=10)
    assert evaluation.problem is None
    assert evaluation.difference is not None
    assert evaluation.difference.relative == 0
    assert [name for name, _ in evaluation.comparisons] == ["1 rows", "4 rows"]


@pytest.mark.usefixtures("equal_latency")
def test_a_model_is_not_blamed_for_the_end_of_the_original(
    write: Write, bench: Callable[..., ModelEvaluator]
) -> None:
    with bench(write("killed")) as judge:
        os.kill(judge._server.pid, signal.SIGKILL)
        evaluation = judge.evaluate(Job(model=write("same")), Bound.exact(), pairs=8)
    assert evaluation.problem is None
    assert len(evaluation.comparisons) == 2


def test_a_model_is_not_blamed_if_the_original_ends_while_a_slowdown_is_confirmed(
    write: Write, bench: Callable[..., ModelEvaluator], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def compared(
        before: SessionServer, after: SessionServer, feeds: int, **how: object
    ) -> LatencyComparison:
        calls.append(before.pid)
        if len(calls) == 3:  # the first in new sessions
            os.kill(before.pid, signal.SIGKILL)
            before.run(0)
        median = 1.3 if len(calls) == 2 else 1.0
        return LatencyComparison(1.0, median, LatencyRatio(median, median, median, 15))

    monkeypatch.setattr("memdiag.verify.model_evaluator.compare_latency", compared)
    with bench(write("killed later")) as judge:
        evaluation = judge.evaluate(Job(model=write("same")), Bound.exact(), limit=1.05)
    assert evaluation.problem is None
    assert [each.ratio.median for _, each in evaluation.comparisons] == [1.0, 1.0]
    assert len(calls) == 5


REBUILT = "h = MatMul(x, w) r = Sin(h) s = Shape(r) y = Reshape(h, s)"
"""The same values as the original's; the runtime infers no size of them."""


@pytest.mark.usefixtures("equal_latency")
def test_a_shape_that_the_model_does_not_state_is_not_compared(
    write: Write, bench: Callable[..., ModelEvaluator]
) -> None:
    with bench(write("shapeless", states_shape=False)) as judge:
        job = Job(model=write("rebuilt", REBUILT, states_shape=False))
        evaluation = judge.evaluate(job, Bound.exact(), pairs=8)
        assert evaluation.problem is None
        flat = "h = MatMul(x, w) c = Constant <value = int64[1] {-1}> () y = Reshape(h, c)"
        job = Job(model=write("flat", flat, states_shape=False))
        evaluation = judge.evaluate(job, Bound.exact(), pairs=8)
    assert evaluation.problem is not None
    assert evaluation.problem.startswith("output 'y' changed from float32[n, 1024] to float32[")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight_scale": 1.001}, "output y differs by"),
        ({"nodes": "z = MatMul(x, w) y = Neg(z)"}, "output y differs by"),
        ({"nodes": "z = MatMul(x, w) y = Log(z)"}, "output y"),
        ({"nodes": "z = MatMul(x, w)", "output": "z"}, "output 'y' is missing"),
        ({"nodes": "y = Nonsense(x, w)"}, "it does not run: "),
    ],
    ids=["a weight", "a sign", "NaN", "a name", "an operator"],
)
def test_a_wrong_model_is_refused(
    write: Write, judge: ModelEvaluator, changes: dict[str, object], message: str
) -> None:
    evaluation = judge.evaluate(Job(model=write("wrong", **changes)), Bound.reordered(512))
    assert evaluation.problem is not None
    assert message in evaluation.problem


@pytest.mark.usefixtures("equal_latency")
def test_what_is_random_is_not_compared(write: Write, bench: Callable[..., ModelEvaluator]) -> None:
    noisy = write("noisy", "r = RandomNormalLike(x) y = MatMul(r, w)")
    with bench(noisy) as judge:
        assert judge.notes == ("outputs that are random are not compared: y",)
        assert judge.evaluate(Job(model=noisy), Bound.exact(), pairs=10).problem is None


def test_an_original_that_does_not_run_is_told(
    write: Write, bench: Callable[..., ModelEvaluator]
) -> None:
    with pytest.raises(MeasurementError, match="Nonsense"):
        bench(write("broken", "y = Nonsense(x, w)"))


def scripted(monkeypatch: pytest.MonkeyPatch, *medians: float) -> list[dict[str, object]]:
    """Let comparisons have these ratios, one after the other; return their arguments."""
    asked: list[dict[str, object]] = []
    left = iter(medians)

    def compared(
        before: SessionServer, after: SessionServer, feeds: int, **how: object
    ) -> LatencyComparison:
        asked.append({**how, "before": before.pid, "after": after.pid, "feeds": feeds})
        median = next(left)
        return LatencyComparison(1.0, median, LatencyRatio(median, median, median, 15))

    monkeypatch.setattr("memdiag.verify.model_evaluator.compare_latency", compared)
    return asked


def test_new_sessions_confirm_that_a_model_is_slower(
    judge: ModelEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whatever another test left: after this the original's session is a good one.
    scripted(monkeypatch, 1.0, 1.0)
    judge.evaluate(judge.job, Bound.exact())
    asked = scripted(monkeypatch, 1.0, 1.3, 1.2)
    started = judge.session_count
    evaluation = judge.evaluate(judge.job, Bound.exact(), limit=1.05)
    assert judge.session_count == started + 1 + 2
    assert [found.ratio.median for _, found in evaluation.comparisons] == [1.0, 1.2]
    assert [found.clock for _, found in evaluation.comparisons] == ["wall", "cpu"]
    assert [one["feeds"] for one in asked] == [0, 1, 1]
    assert {asked[0]["before"], asked[0]["after"]}.isdisjoint(
        {asked[2]["before"], asked[2]["after"]}
    )
    assert asked[0]["before"] == asked[1]["before"]


@pytest.mark.parametrize(
    ("ratios", "counted", "clock"),
    [
        ((1.0, 1.3, 1.0, 1.2), 1.2, "wall"),
        ((1.0, 1.3, 1.0, 1.0), 1.0, "cpu"),
    ],
    ids=["confirmed", "not confirmed"],
)
def test_the_wall_clock_decides_if_it_shows_twice_what_cpu_time_does_not(
    judge: ModelEvaluator,
    monkeypatch: pytest.MonkeyPatch,
    ratios: tuple[float, ...],
    counted: float,
    clock: str,
) -> None:
    asked = scripted(monkeypatch, *ratios)
    evaluation = judge.evaluate(judge.job, Bound.exact(), limit=1.05)
    _, last = evaluation.comparisons[-1]
    assert (last.ratio.median, last.clock) == (counted, clock)
    assert len({one["after"] for one in asked}) == 3


def test_the_original_gets_another_session_on_request(
    judge: ModelEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = scripted(monkeypatch, *(1.0,) * 6)
    judge.evaluate(judge.job, Bound.exact())
    judge.evaluate(judge.job, Bound.exact())
    judge.renew_original()
    judge.evaluate(judge.job, Bound.exact())
    first, second, third = (asked[index]["before"] for index in (0, 2, 4))
    assert first == second
    assert third != second


def test_one_confirmed_slowdown_is_enough(
    judge: ModelEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first inputs decide: the second are not compared, and new sessions confirm the first.
    asked = scripted(monkeypatch, 2.0, 1.9)
    evaluation = judge.evaluate(judge.job, Bound.exact(), limit=1.05)
    assert [found.ratio.median for _, found in evaluation.comparisons] == [1.9]
    assert [one["feeds"] for one in asked] == [0, 0]


def test_after_a_slowdown_that_is_not_confirmed_the_other_inputs_are_compared(
    judge: ModelEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = scripted(monkeypatch, 2.0, 1.0, 1.0, 1.01)
    evaluation = judge.evaluate(judge.job, Bound.exact(), limit=1.05)
    assert [found.ratio.median for _, found in evaluation.comparisons] == [1.0, 1.01]
    assert [one["feeds"] for one in asked] == [0, 0, 0, 1]
    asked = scripted(monkeypatch, 2.0, 1.0, 1.0, 2.0, 1.9)
    evaluation = judge.evaluate(judge.job, Bound.exact(), limit=1.05)
    assert [found.ratio.median for _, found in evaluation.comparisons] == [1.0, 1.9]


def test_comparisons_share_the_time_that_is_left(
    judge: ModelEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline = judge.job.limits.deadline
    asked = scripted(monkeypatch, *[1.0] * 4)
    judge.evaluate(judge.job, Bound.exact(), limit=1.05)
    monkeypatch.setattr(deadline, "at", time.monotonic() + 60)
    judge.evaluate(judge.job, Bound.exact(), limit=1.05)
    budgets = [cast(float, one["max_s"]) for one in asked]
    assert budgets[:2] == [MAX_COMPARISON_S, MAX_COMPARISON_S]
    # The second and a confirmation may follow the first.
    assert 5 < budgets[2] <= 60 / 3
    assert budgets[2] < budgets[3] <= 60 / 2


@pytest.mark.parametrize(("share", "count"), [(0, 1), (1, 3)])
def test_the_original_is_measured_in_fewer_processes_where_the_time_is_short(
    share: float,
    count: int,
    write: Write,
    bench: Callable[..., ModelEvaluator],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("memdiag.verify.model_evaluator._MAX_PROCESS_SHARE", share)
    deadline = Deadline(time.monotonic() + 300)
    with bench(write("original"), Limits(deadline=deadline)) as evaluator:
        assert evaluator.session_count == 1 + count  # and the session of the comparisons
        assert evaluator.before.steady_bytes > 2 << 20


def test_what_is_not_slower_is_not_compared_again(
    judge: ModelEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = scripted(monkeypatch, 1.0, 1.04, 2.0, 2.0)
    for limit in (1.05, None):
        judge.evaluate(judge.job, Bound.exact(), limit=limit, pairs=9)
    assert len(asked) == 4
    assert {one["pairs"] for one in asked} == {9}


def test_two_models_are_measured_in_turn(write: Write, judge: ModelEvaluator) -> None:
    larger = write("larger", "z = MatMul(x, w) y = Relu(z)")
    one, other = judge.measure_both(
        Job(model=larger), 1, before_bytes=1, after_bytes=2, before=Job(model=larger)
    )
    assert (one.disk_bytes, other.disk_bytes) == (1, 2)
    assert abs(one.steady_bytes - other.steady_bytes) < 4 << 20


@pytest.mark.parametrize("is_original", [True, False])
def test_an_original_that_no_longer_runs_is_no_fault_of_the_other_model(
    is_original: bool, judge: ModelEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(jobs: Sequence[Job], times: int) -> list[list[MeasuredProcess]]:
        if len(jobs) == 1:
            return measure_interleaved(jobs, times)
        raise JobError(jobs[0 if is_original else 1], "killed", "")

    monkeypatch.setattr("memdiag.verify.model_evaluator.measure_interleaved", killed)

    def both() -> tuple[Figures, Figures]:
        return judge.measure_both(judge.job, 1, before_bytes=1, after_bytes=2)

    if is_original:
        before, after = both()
        assert (before, after.disk_bytes) == (judge.before, 2)
    else:
        with pytest.raises(JobError):
            both()


def test_with_options_of_runs_memory_is_that_after_all_inputs_twice(
    judge: ModelEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int | None] = []

    def measured(jobs: Sequence[Job], times: int) -> list[list[MeasuredProcess]]:
        runs.extend(job.runs for job in jobs)
        return measure_interleaved(jobs, times)

    monkeypatch.setattr("memdiag.verify.model_evaluator.measure_interleaved", measured)
    shrinking = {"memory.enable_memory_arena_shrinkage": "cpu:0"}
    session = replace(judge.job.session, run_options=shrinking)
    judge.measure_both(replace(judge.job, session=session), 1, before_bytes=1, after_bytes=1)
    before, after = runs
    assert before is not None
    assert after == 2 * before


def test_with_another_number_of_threads_a_slowdown_is_confirmed_by_the_wall_clock(
    judge: ModelEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, 2.0, 1.9)
    one_thread = replace(judge.job.session, options={"intra_op_num_threads": "1"})
    evaluation = judge.evaluate(
        replace(judge.job, session=one_thread), Bound.reordered(512), limit=1.05
    )
    assert [found.clock for _, found in evaluation.comparisons] == ["wall"]


def test_a_session_can_return_the_cpu_time_of_its_runs(judge: ModelEvaluator) -> None:
    feeds = [each.feeds for each in judge._input_sets]
    with SessionServer(replace(judge.job, runs=None), feeds, cpu_time=True) as server:
        started = time.monotonic()
        seconds = server.run(0, 3)
        assert 0 < sum(seconds) < 64 * (time.monotonic() - started)
