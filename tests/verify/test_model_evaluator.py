"""Models judged next to an original: right ones pass, and each way of being wrong is seen."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from memdiag.errors import MeasurementError
from memdiag.runner.job import Deadline, Feed, Job, Limits
from memdiag.runner.session_server import SessionServer
from memdiag.verify.latency import MAX_COMPARISON_S, LatencyComparison
from memdiag.verify.latency_ratio import LatencyRatio
from memdiag.verify.memory import JobError, MeasuredProcess, measure_interleaved
from memdiag.verify.model_evaluator import InputSet, ModelEvaluation, ModelEvaluator
from memdiag.verify.outputs import Bound

pytestmark = pytest.mark.usefixtures("equal_latency")

Write = Callable[..., Path]
Bench = Callable[..., ModelEvaluator]
ORIGINAL = "y = MatMul(x, w)"
COMPARE = "memdiag.verify.model_evaluator.compare_latency"
MEASURE = "memdiag.verify.model_evaluator.measure_interleaved"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def write(folder: Path) -> Write:
    """A function that writes a model with a 2 MiB weight w and these nodes."""

    def model(
        nodes: str = ORIGINAL, *, output: str = "y", scale: float = 1, states_shape: bool = True
    ) -> Path:
        text = f"""<ir_version: 9, opset_import: ["" : 17]>
            g (float[n, 512] x) => (float[n, 1024] {output}) {{ {nodes} }}"""
        proto = parser.parse_model(text)
        if not states_shape:
            proto.graph.output[0].type.tensor_type.ClearField("shape")
        values = np.random.default_rng(0).standard_normal((512, 1024), np.float32) * scale
        proto.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), "w"))
        path = folder / f"{len(list(folder.glob('*.onnx')))}.onnx"
        onnx.save(proto, path)
        return path

    return model


@pytest.fixture(scope="module")
def bench(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A function that returns the evaluator of an original, within limits if they are given."""

    def make(path: Path, limits: Limits | None = None) -> ModelEvaluator:
        trials = []
        for rows in (1, 4):
            file = folder / f"x{rows}.npy"
            np.save(file, np.random.default_rng(rows).standard_normal((rows, 512), np.float32))
            trials.append(InputSet(f"{rows} rows", (Feed(name="x", files=(file,)),), True))
        job = Job(model=path, limits=limits or Limits())
        scratch = tmp_path_factory.mktemp("scratch")
        return ModelEvaluator(job, trials, scratch, path.stat().st_size)

    return make


@pytest.fixture(scope="module")
def judge(write: Write, bench: Bench) -> Iterator[ModelEvaluator]:
    """The evaluator of the original, which is measured once."""
    with bench(write()) as evaluator:
        yield evaluator


def test_the_same_model_passes(write: Write, judge: ModelEvaluator) -> None:
    assert judge.notes == ()
    evaluation = judge.evaluate(Job(model=write()), Bound.exact(), pairs=10)
    assert evaluation.problem is None
    assert evaluation.difference is not None
    assert evaluation.difference.relative == 0
    assert [name for name, _ in evaluation.comparisons] == ["1 rows", "4 rows"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": 1.001}, "output y differs by"),
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
    evaluation = judge.evaluate(Job(model=write(**changes)), Bound.reordered(512))
    assert message in (evaluation.problem or "")


def test_what_is_random_is_not_compared(write: Write, bench: Bench) -> None:
    noisy = write("r = RandomNormalLike(x) y = MatMul(r, w)")
    with bench(noisy) as judge:
        assert judge.notes == ("outputs that are random are not compared: y",)
        assert judge.evaluate(Job(model=noisy), Bound.exact(), pairs=10).problem is None


def test_a_shape_that_the_model_does_not_state_is_not_compared(write: Write, bench: Bench) -> None:
    rebuilt = "h = MatMul(x, w) r = Sin(h) s = Shape(r) y = Reshape(h, s)"  # no size is inferred
    flat = "h = MatMul(x, w) c = Constant <value = int64[1] {-1}> () y = Reshape(h, c)"
    with bench(write(states_shape=False)) as judge:
        same, other = (
            judge.evaluate(Job(model=write(nodes, states_shape=False)), Bound.exact(), pairs=8)
            for nodes in (rebuilt, flat)
        )
    assert same.problem is None
    assert other.problem is not None
    assert other.problem.startswith("output 'y' changed from float32[n, 1024] to float32[")


def test_an_original_that_does_not_run_is_told(write: Write, bench: Bench) -> None:
    with pytest.raises(MeasurementError, match="Nonsense"):
        bench(write("y = Nonsense(x, w)"))


def scripted(
    monkeypatch: pytest.MonkeyPatch, *medians: float, kill_at: tuple[int, ...] = ()
) -> list[dict[str, Any]]:
    """Let comparisons have these ratios, one after the other; return their arguments.

    The original's session is killed in the comparisons `kill_at`.
    """
    asked: list[dict[str, Any]] = []

    def compared(
        before: SessionServer, after: SessionServer, feeds: int, **how: object
    ) -> LatencyComparison:
        asked.append({**how, "before": before.pid, "after": after.pid, "feeds": feeds})
        if len(asked) - 1 in kill_at:
            os.kill(before.pid, signal.SIGKILL)
            before.run(0)
        median = medians[len(asked) - 1]
        return LatencyComparison(1.0, median, LatencyRatio(median, median, median, 15))

    monkeypatch.setattr(COMPARE, compared)
    return asked


def ratios(evaluation: ModelEvaluation) -> list[float]:
    return [comparison.ratio.median for _, comparison in evaluation.comparisons]


@pytest.mark.parametrize("moment", ["before", "confirming"])
def test_a_model_is_not_blamed_for_the_end_of_the_original(
    moment: str, write: Write, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench(write()) as judge:
        if moment == "before":
            asked = scripted(monkeypatch, 1.0, 1.0)
            os.kill(judge._server.pid, signal.SIGKILL)
        else:  # in the first comparison of new sessions
            asked = scripted(monkeypatch, 1.0, 1.3, 1.0, 1.0, 1.0, kill_at=(2,))
        evaluation = judge.evaluate(Job(model=write()), Bound.exact(), limit=1.05)
    assert evaluation.problem is None
    assert ratios(evaluation) == [1.0, 1.0]
    assert len(asked) == (2 if moment == "before" else 5)


def test_an_original_that_ends_twice_cannot_be_compared_with(
    write: Write, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, kill_at=(0, 1))
    with bench(write()) as judge:
        evaluation = judge.evaluate(Job(model=write()), Bound.exact())
    assert (evaluation.problem or "").startswith("it cannot be compared: ")


THREAD = {"intra_op_num_threads": "1"}


@pytest.mark.parametrize(
    ("medians", "options", "counted", "clocks", "feeds"),
    [
        # Not slower: nothing is compared again.
        ((1.0, 1.04), {}, [1.0, 1.04], ["wall", "wall"], [0, 1]),
        # New sessions confirm by CPU time that a model is slower.
        ((1.0, 1.3, 1.2), {}, [1.0, 1.2], ["wall", "cpu"], [0, 1, 1]),
        # The wall clock decides if it shows twice what CPU time does not.
        ((1.0, 1.3, 1.0, 1.2), {}, [1.0, 1.2], ["wall", "wall"], [0, 1, 1, 1]),
        ((1.0, 1.3, 1.0, 1.0), {}, [1.0, 1.0], ["wall", "cpu"], [0, 1, 1, 1]),
        # One confirmed slowdown is enough: the second inputs are not compared.
        ((2.0, 1.9), {}, [1.9], ["cpu"], [0, 0]),
        # Of another number of threads CPU time says nothing.
        ((2.0, 1.9), THREAD, [1.9], ["wall"], [0, 0]),
        # After a slowdown that is not confirmed the other inputs are compared.
        ((2.0, 1.0, 1.0, 1.01), {}, [1.0, 1.01], ["cpu", "wall"], [0, 0, 0, 1]),
        ((2.0, 1.0, 1.0, 2.0, 1.9), {}, [1.0, 1.9], ["cpu", "cpu"], [0, 0, 0, 1, 1]),
    ],
)
def test_new_sessions_confirm_that_a_model_is_slower(
    medians: tuple[float, ...],
    options: dict[str, str],
    counted: list[float],
    clocks: list[str],
    feeds: list[int],
    judge: ModelEvaluator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = scripted(monkeypatch, *medians)
    job = replace(judge.job, session=replace(judge.job.session, options=options))
    evaluation = judge.evaluate(job, Bound.reordered(512), limit=1.05)
    assert ratios(evaluation) == counted
    assert [comparison.clock for _, comparison in evaluation.comparisons] == clocks
    assert [call["feeds"] for call in asked] == feeds


def test_a_confirmation_has_sessions_of_its_own(
    judge: ModelEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whatever another test left: after this the original's session is a good one.
    judge.evaluate(judge.job, Bound.exact())
    asked = scripted(monkeypatch, 1.0, 1.3, 1.0, 1.2)
    started = judge.session_count
    judge.evaluate(judge.job, Bound.exact(), limit=1.05)
    assert judge.session_count == started + 1 + 2 + 2
    assert asked[0]["before"] == asked[1]["before"]
    assert len({call["before"] for call in asked}) == 3
    assert len({call["after"] for call in asked}) == 3


def test_without_a_limit_nothing_is_confirmed(
    judge: ModelEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = scripted(monkeypatch, 2.0, 2.0)
    assert ratios(judge.evaluate(judge.job, Bound.exact(), pairs=9)) == [2.0, 2.0]
    assert [call["pairs"] for call in asked] == [9, 9]


def test_the_original_gets_another_session_on_request(
    judge: ModelEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = scripted(monkeypatch, *(1.0,) * 6)
    for _ in range(2):
        judge.evaluate(judge.job, Bound.exact())
    judge.renew_original()
    judge.evaluate(judge.job, Bound.exact())
    first, second, third = (asked[index]["before"] for index in (0, 2, 4))
    assert first == second != third


def test_comparisons_share_the_time_that_is_left(
    judge: ModelEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = scripted(monkeypatch, *[1.0] * 4)
    judge.evaluate(judge.job, Bound.exact(), limit=1.05)
    monkeypatch.setattr(judge.job.limits.deadline, "at", time.monotonic() + 60)
    judge.evaluate(judge.job, Bound.exact(), limit=1.05)
    budgets = [call["max_s"] for call in asked]
    assert budgets[:2] == [MAX_COMPARISON_S, MAX_COMPARISON_S]
    # The second and a confirmation may follow the first.
    assert 5 < budgets[2] <= 60 / 3
    assert budgets[2] < budgets[3] <= 60 / 2


@pytest.mark.parametrize(("share", "count"), [(0, 1), (1, 3)])
def test_the_original_is_measured_in_fewer_processes_where_the_time_is_short(
    share: float, count: int, write: Write, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memdiag.verify.model_evaluator._MAX_PROCESS_SHARE", share)
    deadline = Deadline(time.monotonic() + 300)
    with bench(write(), Limits(deadline=deadline)) as evaluator:
        assert evaluator.session_count == 1 + count  # and the session of the comparisons
        assert evaluator.before.steady_bytes > 2 << 20


def test_two_models_are_measured_in_turn(write: Write, judge: ModelEvaluator) -> None:
    larger = Job(model=write("z = MatMul(x, w) y = Relu(z)"))
    before, after = judge.measure_both(larger, 1, before_bytes=1, after_bytes=2, before=larger)
    assert (before.disk_bytes, after.disk_bytes) == (1, 2)
    assert abs(before.steady_bytes - after.steady_bytes) < 4 << 20


@pytest.mark.parametrize("is_original", [True, False])
def test_an_original_that_no_longer_runs_is_no_fault_of_the_other_model(
    is_original: bool, judge: ModelEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(jobs: Sequence[Job], times: int) -> list[list[MeasuredProcess]]:
        if len(jobs) == 1:
            return measure_interleaved(jobs, times)
        raise JobError(jobs[0 if is_original else 1], "killed", "")

    monkeypatch.setattr(MEASURE, killed)
    if is_original:
        before, after = judge.measure_both(judge.job, 1, before_bytes=1, after_bytes=2)
        assert (before, after.disk_bytes) == (judge.before, 2)
    else:
        with pytest.raises(JobError):
            judge.measure_both(judge.job, 1, before_bytes=1, after_bytes=2)


def test_with_options_of_runs_memory_is_that_after_all_inputs_twice(
    judge: ModelEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int | None] = []

    def measured(jobs: Sequence[Job], times: int) -> list[list[MeasuredProcess]]:
        runs.extend(job.runs for job in jobs)
        return measure_interleaved(jobs, times)

    monkeypatch.setattr(MEASURE, measured)
    shrinking = {"memory.enable_memory_arena_shrinkage": "cpu:0"}
    session = replace(judge.job.session, run_options=shrinking)
    judge.measure_both(replace(judge.job, session=session), 1, before_bytes=1, after_bytes=1)
    before, after = runs
    assert before is not None
    assert after == 2 * before


def test_a_session_can_return_the_cpu_time_of_its_runs(judge: ModelEvaluator) -> None:
    feeds = [trial.feeds for trial in judge._input_sets]
    with SessionServer(replace(judge.job, runs=None), feeds, cpu_time=True) as server:
        started = time.monotonic()
        seconds = server.run(0, 3)
        assert 0 < sum(seconds) < 64 * (time.monotonic() - started)
