"""Combinations of options on a bench: what saves is told from what fails, lies or saves nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from memdiag.api.tuning.attempts import Attempts
from memdiag.remedies.option import Option
from memdiag.remedies.options import options
from memdiag.runner.job import Feed, Job, TimeLimitReached
from memdiag.units import MIB
from memdiag.verify.bench import Bench, Trial, Verdict
from memdiag.verify.outputs import Bound

SampleModel = Callable[..., Path]
BY_NAME = {one.name: one for one in options()}


@pytest.fixture
def model(sample_model: SampleModel) -> Path:
    return sample_model("plain_mlp", 16)


@pytest.fixture
def attempts(model: Path, tmp_path: Path) -> Iterator[Attempts]:
    width = onnx.load(model).graph.initializer[0].dims[0]
    file = tmp_path / "x.npy"
    np.save(file, np.ones((1, width), np.float32))
    trials = [Trial("one row", (Feed(name="x", files=(file,)),), True)]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    disk_bytes = model.stat().st_size
    with Bench(Job(model=model, runs=None), trials, scratch, disk_bytes) as bench:
        yield Attempts(
            bench=bench,
            bound=Bound.reordered(width),
            scratch=scratch,
            disk_bytes=disk_bytes,
            limit=100.0,
            budget={},
        )


def _time_is_over(*args: object, **how: object) -> Verdict:
    raise TimeLimitReached


def test_an_option_that_saves_is_weighed_judged_and_confirmed(attempts: Attempts) -> None:
    chosen = (BY_NAME["disable-prepacking"],)
    weighed = attempts.weigh(chosen)
    assert weighed.figures is not None
    assert attempts.before.peak_bytes - weighed.figures.peak_bytes > 8 * MIB
    assert (weighed.ratio, weighed.fits) == (None, False)
    judged = attempts.judge(weighed, chosen)
    assert judged.ratio is not None
    assert judged.fits
    started = attempts.session_count
    confirmed, stands = attempts.confirm(judged, chosen)
    assert stands
    assert attempts.session_count == started + 1 + 6
    # A time limit that passes while latency is compared exactly leaves the quick ratio.
    attempts.bench.judge = _time_is_over  # type: ignore[method-assign]
    kept, stands = attempts.confirm(judged, chosen)
    assert stands
    assert kept.ratio == judged.ratio
    assert attempts.verdict(confirmed) is not None
    assert confirmed.figures is not None
    assert confirmed.figures.disk_bytes == attempts.disk_bytes


def test_an_option_that_saves_nothing_is_not_confirmed(attempts: Attempts) -> None:
    chosen = (BY_NAME["denormal-as-zero"],)
    point, stands = attempts.confirm(attempts.weigh(chosen), chosen)
    assert not stands
    assert point.problem == ""


def test_what_the_runtime_refuses_is_a_problem_that_names_no_file_of_ours(
    attempts: Attempts, tmp_path: Path
) -> None:
    odd = Option(name="odd", does="x.", hurts="x.", session={"nonsense": "1"})
    point = attempts.weigh((odd,))
    assert point.figures is None
    assert "it does not run" in point.problem
    assert "no session option called nonsense" in point.problem
    assert str(tmp_path / "scratch") not in point.problem


def test_what_changes_the_outputs_cannot_be_used(
    attempts: Attempts, model: Path, tmp_path: Path
) -> None:
    proto = onnx.load(model)
    weight = proto.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 1.01, weight.name))
    other = tmp_path / "other.onnx"
    onnx.save(proto, other)
    chosen = (Option(name="other", does="x.", hurts="x.", model=other),)
    point = attempts.judge(attempts.weigh(chosen), chosen)
    assert point.problem.startswith("output y differs by")
    assert not point.fits
    same = (Option(name="same", does="x.", hurts="x.", model=model),)
    assert attempts.judge(attempts.weigh(same), same).problem == ""


@pytest.mark.slow
def test_within_a_budget_means_all_of_it(attempts: Attempts) -> None:
    chosen = (BY_NAME["disable-prepacking"],)
    attempts.budget = {"peak": 1 << 40, "anonymous": 1}
    assert not attempts.defaults().fits
    point = attempts.judge(attempts.weigh(chosen), chosen)
    assert not point.fits
    attempts.budget = {"peak": 1 << 40}
    assert attempts.judge(point, chosen).fits
    assert attempts.confirm(point, chosen)[1]


def test_what_is_not_needed_to_keep_within_a_budget_has_to_save_or_to_be_faster(
    attempts: Attempts,
) -> None:
    idle = (BY_NAME["denormal-as-zero"],)
    attempts.budget = {"peak": 1 << 40}
    assert attempts.defaults().fits
    point = attempts.weigh(idle)
    point, stands = attempts.confirm(point, idle)
    assert point.fits
    assert stands == (point.high is not None and point.high < 1)
