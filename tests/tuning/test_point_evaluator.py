"""Combinations of options: those that save are told from those that fail or save nothing."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from memdiag.records.fix import Point
from memdiag.runner.job import Feed, Job, SessionConfig, TimeLimitReached
from memdiag.tuning.point_evaluator import PointEvaluator
from memdiag.tuning.tuning_options import TuningOption, tuning_options
from memdiag.units import MIB
from memdiag.verify.latency import LatencyComparison
from memdiag.verify.latency_ratio import LatencyRatio
from memdiag.verify.model_evaluator import InputSet, ModelEvaluation, ModelEvaluator
from memdiag.verify.outputs import Bound

SampleModel = Callable[..., Path]
REFUSED = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[n, 4] x) => (float[n, 4] y) { y = Nonsense(x) }"""
BY_NAME = {one.name: one for one in tuning_options()}


@pytest.fixture(scope="module")
def model(sample_model: SampleModel) -> Path:
    return sample_model("plain_mlp", 8)


@pytest.fixture(scope="module")
def evaluator(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelEvaluator]:
    """An evaluator of the model loaded from bytes: its own session is measured once."""
    folder = tmp_path_factory.mktemp("evaluator")
    np.save(folder / "x.npy", np.ones((1, width(model)), np.float32))
    input_sets = [InputSet("one row", (Feed(name="x", files=(folder / "x.npy",)),), True)]
    # Malloc returns freed blocks at once: otherwise what it keeps depends on timing.
    pinned = {"MALLOC_MMAP_THRESHOLD_": "131072"}
    session = SessionConfig(load_from="bytes", environment=pinned)
    job = Job(model=model, session=session, runs=None)
    with ModelEvaluator(job, input_sets, folder, model.stat().st_size) as made:
        yield made


@pytest.fixture
def points(
    evaluator: ModelEvaluator, model: Path, tmp_path: Path, equal_latency: None
) -> PointEvaluator:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return PointEvaluator(
        model_evaluator=evaluator,
        bound=Bound.reordered(width(model)),
        scratch=scratch,
        max_slowdown=100.0,
        budget={},
    )


class _ByPath(TuningOption):
    """Loads the model by its path, and not its bytes."""

    def added_to(self, job: Job) -> Job:
        return replace(job, session=replace(job.session, load_from="path"))


BY_PATH = _ByPath(name="by-path", does="x.", hurts="x.")


def width(model: Path) -> int:
    return int(onnx.load(model).graph.initializer[0].dims[0])


def _time_is_over(*args: object, **how: object) -> ModelEvaluation:
    raise TimeLimitReached


@pytest.mark.usefixtures("one_process_each")
def test_an_option_that_saves_is_measured_compared_and_confirmed(
    points: PointEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python keeps the bytes of the model, 8 MB, for as long as the session.
    chosen = (BY_PATH,)
    measured = points.measure(chosen)
    assert measured.figures is not None
    assert points.before.steady_bytes - measured.figures.steady_bytes > 6 * MIB
    assert (measured.ratio, measured.fits) == (None, False)
    compared = points.compare(measured, chosen)
    assert compared.ratio is not None
    assert compared.fits
    started = points.session_count
    confirmed, stands = points.confirm(compared, chosen)
    assert stands
    assert points.session_count == started + 2 + 2  # both sessions that are compared are new
    # A time limit that passes while latency is compared exactly leaves the quick ratio.
    monkeypatch.setattr(points.model_evaluator, "evaluate", _time_is_over)
    kept, stands = points.confirm(compared, chosen)
    assert stands
    assert kept.ratio == compared.ratio
    assert points.evaluation(confirmed) is not None
    assert confirmed.figures is not None
    assert confirmed.figures.disk_bytes == points.before.disk_bytes


def test_files_that_a_program_loads_and_those_it_writes_once_are_counted(
    points: PointEvaluator, model: Path, tmp_path: Path
) -> None:
    original_bytes = model.stat().st_size
    saved = points.measure((BY_NAME["save-prepacked"],))
    assert saved.figures is not None
    # The original stays: the runtime writes its own model from it at the first start.
    assert saved.figures.disk_bytes > 1.5 * original_bytes
    other = tmp_path / "other.onnx"
    other.write_bytes(model.read_bytes())
    loaded = points.measure((TuningOption(name="other", does="x.", hurts="x.", model=other),))
    assert loaded.figures is not None
    assert loaded.figures.disk_bytes == original_bytes


@pytest.fixture
def same_memory(evaluator: ModelEvaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every option take as much memory as the defaults."""
    both = (evaluator.before, evaluator.before)
    monkeypatch.setattr(evaluator, "measure_both", lambda *arguments, **options: both)


@pytest.mark.usefixtures("same_memory")
def test_an_option_that_saves_nothing_is_not_confirmed(points: PointEvaluator) -> None:
    chosen = (BY_NAME["denormal-as-zero"],)
    point, stands = points.confirm(points.measure(chosen), chosen)
    assert not stands
    assert point.problem == ""


def test_a_smaller_steady_memory_at_a_larger_peak_is_not_confirmed_and_the_reason_is_a_problem(
    points: PointEvaluator, evaluator: ModelEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = evaluator.before
    after = msgspec.structs.replace(
        before, peak_bytes=before.peak_bytes + (9 << 20), steady_bytes=before.steady_bytes // 2
    )
    monkeypatch.setattr(evaluator, "measure_both", lambda *arguments, **options: (before, after))
    monkeypatch.setattr(points, "max_slowdown", 20.0)
    chosen = (BY_NAME["patterns-off"],)
    point, stands = points.confirm(points.measure(chosen), chosen)
    assert not stands
    assert point.problem == "the steady memory falls, but the peak grows"


def test_another_model_that_does_not_run_gives_no_advice_for_the_users_model(
    points: PointEvaluator, tmp_path: Path
) -> None:
    refused = tmp_path / "scratch" / "optimizers" / "other.onnx"
    refused.parent.mkdir()
    onnx.save(parser.parse_model(REFUSED), refused)
    point = points.measure((TuningOption(name="other", does="", hurts="", model=refused),))
    assert point.problem.startswith("it does not run: failed in ")
    assert "memdiag profile" not in point.problem
    assert "other.onnx" not in point.problem


def test_what_the_runtime_refuses_is_a_problem_that_names_no_file_of_ours(
    points: PointEvaluator, tmp_path: Path
) -> None:
    odd = TuningOption(name="odd", does="x.", hurts="x.", session_options={"nonsense": "1"})
    point = points.measure((odd,))
    assert point.figures is None
    assert "it does not run" in point.problem
    assert "no session option called nonsense" in point.problem
    assert str(tmp_path / "scratch") not in point.problem


def test_what_changes_the_outputs_cannot_be_used(
    points: PointEvaluator, model: Path, tmp_path: Path
) -> None:
    proto = onnx.load(model)
    weight = proto.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 1.01, weight.name))
    other = tmp_path / "other.onnx"
    onnx.save(proto, other)
    chosen = (TuningOption(name="other", does="x.", hurts="x.", model=other),)
    point = points.compare(points.measure(chosen), chosen)
    assert point.problem.startswith("output y differs by")
    assert not point.fits
    same = (TuningOption(name="same", does="x.", hurts="x.", model=model),)
    assert points.compare(points.measure(same), same).problem == ""


@pytest.mark.slow
def test_within_a_budget_means_all_of_it(points: PointEvaluator) -> None:
    chosen = (BY_PATH,)
    points.budget = {"peak": 1 << 40, "anonymous": 1}
    assert not points.defaults().fits
    point = points.compare(points.measure(chosen), chosen)
    assert not point.fits
    points.budget = {"peak": 1 << 40}
    assert points.compare(point, chosen).fits
    assert points.confirm(point, chosen)[1]


Compared = Callable[..., Point]


@pytest.fixture
def compared(
    points: PointEvaluator, same_memory: None, monkeypatch: pytest.MonkeyPatch
) -> Compared:
    """A function that compares an option of the given ratio of latencies, of `pairs` of runs."""

    def compare(name: str, ratio: float, low: float, high: float, pairs: int = 4) -> Point:
        found = LatencyComparison(1.0, ratio, LatencyRatio(ratio, low, high, pairs))
        monkeypatch.setattr(
            "memdiag.verify.model_evaluator.compare_latency", lambda *arguments, **options: found
        )
        monkeypatch.setattr(points, "max_slowdown", 1.05)
        chosen = (BY_NAME[name],)
        return points.compare(points.measure(chosen), chosen)

    return compare


@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_what_is_not_needed_to_keep_within_a_budget_has_to_save_or_to_be_faster(
    points: PointEvaluator, compared: Compared, ratio: float
) -> None:
    points.budget = {"peak": 1 << 40}
    assert points.defaults().fits
    point = compared("denormal-as-zero", ratio, ratio, ratio, 15)
    point, stands = points.confirm(point, (BY_NAME["denormal-as-zero"],))
    assert point.fits
    assert stands == (ratio < 1)


@pytest.mark.parametrize(
    ("name", "low", "undecided"),
    [("patterns-off", 1.1, True), ("patterns-off", 1.4, False), ("disable-prepacking", 1.1, False)],
)
def test_a_few_slow_pairs_are_believed_of_options_that_usually_cost_time(
    compared: Compared, name: str, low: float, undecided: bool
) -> None:
    assert compared(name, 1.5, low, 1.6).undecided == undecided


@pytest.mark.parametrize(
    ("name", "ratio", "fits"),
    [("patterns-off", 1.09, True), ("patterns-off", 1.2, True), ("one-thread", 1.09, False)],
)
def test_what_is_probably_fast_enough_fits(
    compared: Compared, name: str, ratio: float, fits: bool
) -> None:
    assert compared(name, ratio, 0.9, 1.3).fits == fits


@pytest.mark.parametrize(
    ("name", "low", "counted"),
    [
        ("patterns-off", 1.02, 1.0),  # noise: nothing but allocations changed
        ("patterns-off", 1.1, 1.2),
        ("disable-prepacking", 1.02, 1.2),
    ],
)
def test_an_uncertain_latency_of_the_same_kernels_is_noise(
    compared: Compared, name: str, low: float, counted: float
) -> None:
    point = compared(name, 1.2, low, 1.3, 32)
    assert (point.counted_ratio, point.ratio) == (counted, 1.2)
    assert (counted == 1.0) == (point.same_kernels and not point.undecided and point.fits)


@pytest.mark.usefixtures("same_memory")
def test_an_interval_is_that_of_the_slowest_inputs_and_a_median_within_the_bound_decides(
    points: PointEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ModelEvaluation(
        problem=None,
        comparisons=(
            ("small", LatencyComparison(1.0, 0.98, LatencyRatio(0.98, 0.94, 0.99, 32))),
            ("large", LatencyComparison(1.0, 0.97, LatencyRatio(0.97, 0.9, 1.12, 32))),
        ),
    )
    monkeypatch.setattr(ModelEvaluator, "evaluate", lambda *arguments, **options: found)
    monkeypatch.setattr(points, "max_slowdown", 1.05)
    chosen = (BY_NAME["patterns-off"],)
    point = points.compare(points.measure(chosen), chosen)
    assert (point.ratio, point.low, point.high, point.slowest_with) == (0.98, 0.94, 0.99, "small")
    assert point.largest_high == 1.12
    assert not point.undecided
