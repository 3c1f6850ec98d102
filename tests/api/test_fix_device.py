"""The search for less memory on a GPU, with scripted children: they take what was measured."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest

import memdiag
from memdiag.api.comparison_inputs import ComparisonInputs
from memdiag.defaults import CPU_PROVIDER, CUDA_PROVIDER
from memdiag.errors import MeasurementError, UsageError
from memdiag.records.codec import decode, encode
from memdiag.records.fix import Fix
from memdiag.reports.fix.sentences import fix_answer, idle_options_sentence
from memdiag.runner.job import Feed, Job
from memdiag.tuning.tuning_options import tuning_options
from memdiag.units import MIB
from memdiag.verify.model_evaluator import InputSet
from tests.device.recorded_models import recorded_model
from tests.device.remedies import (
    DEVICE_NAME,
    measured_remedies,
    readings_of,
    scripted_child,
    settings_of,
)

BEST = {
    "device-same-as-requested",
    "device-weights-apart",
    "cublas-small-workspace",
    "patterns-off",
}
FOLK_ADVICE = {"cudnn-small-workspace", "cudnn-heuristic"}
MUST_HOLD = {"dense": 690, "conv": 790, "resnet50": 830}
"""The most MiB that may be left, as issues ask for it."""

Fixed = Callable[..., Fix]


class ScriptedServer:
    """Stands for `SessionServer`: all models have the same output."""

    onnxruntime = "1.31.1"
    signature: ClassVar[dict[str, Any]] = {"inputs": [], "outputs": [], "metadata": {}}
    has_ended = False
    open_servers: ClassVar[list["ScriptedServer"]] = []

    def __init__(self, job: Job, feed_sets: Any, *, cpu_time: bool = False) -> None:
        assert not cpu_time
        self.open_servers.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self in self.open_servers:
            self.open_servers.remove(self)

    def save(self, feeds: int, folder: Path) -> dict[str, tuple[Path, ...]]:
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "y.npy", np.ones(3, np.float32))
        return {"y": (folder / "y.npy",)}


@pytest.fixture
def measured_jobs() -> list[Job]:
    """The jobs of all children that were started."""
    return []


@pytest.fixture
def fixed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    measured_jobs: list[Job],
    equal_latency: None,
) -> Fixed:
    """A function that fixes a recorded model on a scripted GPU."""
    feeds = (Feed(name="x", files=(tmp_path / "x.npy",)),)
    inputs = ComparisonInputs((InputSet("the inputs of the model", feeds, True),))
    monkeypatch.setattr("memdiag.api.fix.require_cuda", lambda: None)
    monkeypatch.setattr(
        "memdiag.api.original_model.find_comparison_inputs", lambda *words, **options: inputs
    )
    monkeypatch.setattr("memdiag.verify.model_evaluator.SessionServer", ScriptedServer)
    monkeypatch.setattr(ScriptedServer, "open_servers", [])

    def start(job: Job) -> None:
        # What is in use on a GPU is read of all processes: no other session may be there.
        assert ScriptedServer.open_servers == []
        measured_jobs.append(job)

    def fix(name: str, child: Any = None, **options: Any) -> Fix:
        child = child or scripted_child(lambda job: readings_of(name, job), before=start)
        monkeypatch.setattr("memdiag.verify.memory.MeasuredChild", child)
        model = recorded_model(name, tmp_path)
        arguments = {"providers": [CUDA_PROVIDER], "only": ["options"], **options}
        return memdiag.fix(model, **arguments)

    return fix


def tried(fix: Fix) -> set[str]:
    return {name for point in fix.points for name in point.option_names}


@pytest.mark.parametrize("name", MUST_HOLD)
def test_the_search_ends_with_the_best_of_what_was_measured(name: str, fixed: Fixed) -> None:
    fix = fixed(name)
    assert {*fix.chosen} == BEST
    defaults, best = (
        next(remedy for remedy in measured_remedies(name) if remedy.words == frozenset()),
        min(measured_remedies(name), key=lambda remedy: remedy.cost),
    )
    assert fix.before is not None
    assert fix.after is not None
    assert fix.before.peak_bytes == max(defaults.readings) * MIB
    assert fix.before.steady_bytes == defaults.readings[-1] * MIB
    assert fix.after.peak_bytes == max(best.readings) * MIB
    assert fix.after.steady_bytes == best.readings[-1] * MIB
    assert fix.after.steady_bytes <= MUST_HOLD[name] * MIB
    assert fix.device is not None
    assert fix.device.name == DEVICE_NAME
    assert not fix.measured_once
    assert decode(encode(fix), Fix) == fix


def test_options_of_the_cpu_are_not_tried(fixed: Fixed) -> None:
    names = {option.name for option in tuning_options()}
    on_device = tried(fixed("dense"))
    assert on_device <= names
    assert on_device.isdisjoint(
        {"arena-off", "arena-shrinkage", "mmap-threshold", "same-as-requested", "save-prepacked"}
    )
    # A model without a convolution has no use for cuDNN's options.
    assert on_device.isdisjoint(FOLK_ADVICE | {"device-nhwc"})
    assert tried(fixed("conv")) >= FOLK_ADVICE | {"device-nhwc", "device-shrinkage"}


def test_advice_that_does_nothing_is_said_to_do_nothing(fixed: Fixed) -> None:
    fix = fixed("conv")
    said = idle_options_sentence(fix)
    assert said.endswith("saved nothing alone: the defaults take 1.17 GiB after the runs.")
    for name in FOLK_ADVICE:
        assert f"{name} (1.17 GiB)" in said
    assert "patterns-off" not in said


def test_the_answer_and_the_program_are_those_of_the_gpu(fixed: Fixed) -> None:
    fix = fixed("conv")
    assert "GPU peak 1.17 GiB → 751 MiB" in fix_answer(fix)
    assert "GPU steady 1.17 GiB → 751 MiB" in fix_answer(fix)
    assert "'CUDAExecutionProvider'," in fix.program
    assert "'arena_extend_strategy': 'kSameAsRequested'," in fix.program
    assert "# Before Python starts: export CUBLAS_WORKSPACE_CONFIG=:16:8" in fix.program
    assert "options.enable_mem_pattern = False" in fix.program
    assert "providers=providers" in fix.program


def test_the_options_of_the_user_stay(fixed: Fixed, measured_jobs: list[Job]) -> None:
    given = {CUDA_PROVIDER: {"device_id": "0", "arena_extend_strategy": "kSameAsRequested"}}
    fixed("dense", provider_options=given)
    assert all(
        job.session.provider_options[CUDA_PROVIDER].items() >= given[CUDA_PROVIDER].items()
        for job in measured_jobs
    )
    assert settings_of(measured_jobs[0]) == {"arena_extend_strategy=kSameAsRequested"}


def test_outputs_may_differ_by_the_rounding_of_a_gpu(fixed: Fixed) -> None:
    rounded = fixed("dense")
    assert rounded.bound == pytest.approx(2 * 2.0**-10)
    assert "TF32" in rounded.bound_reason
    exact = fixed("dense", provider_options={CUDA_PROVIDER: {"use_tf32": "0"}})
    assert exact.bound == pytest.approx(2048 * 2.0**-23)
    given = fixed("dense", max_difference=1e-5)
    assert given.bound == 1e-5


def test_without_cupti_the_peak_is_the_largest_reading(fixed: Fixed) -> None:
    child = scripted_child(lambda job: (600, 900, 700, 700), has_cupti=False)
    fix = fixed("dense", child)
    assert fix.before is not None
    assert (fix.before.peak_bytes, fix.before.steady_bytes) == (900 * MIB, 700 * MIB)
    assert any(note.startswith("Without CUPTI the peak on the GPU") for note in fix.notes)
    with_cupti = fixed("dense", scripted_child(lambda job: (600, 900, 700, 700)))
    assert not any(note.startswith("Without CUPTI") for note in with_cupti.notes)
    assert any("12 to 16 MiB" in note for note in with_cupti.notes)


@pytest.mark.parametrize(
    ("child", "message"),
    [
        (
            scripted_child(lambda job: (600, 700), providers=(CPU_PROVIDER,)),
            "onnxruntime created the session without CUDAExecutionProvider",
        ),
        (scripted_child(lambda job: None), "the memory in use on the GPU was not read"),
    ],
)
def test_what_did_not_run_on_the_gpu_is_not_judged(fixed: Fixed, child: Any, message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        fixed("dense", child)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"providers": ["OpenVINOExecutionProvider"]}, "memory is judged of a session on the CPU"),
        ({"providers": [CPU_PROVIDER, CUDA_PROVIDER]}, "as the preferred provider"),
        ({"budget": {"anonymous": MIB}}, "not divided into anonymous and mapped memory"),
        ({"only": ["arena-off"]}, "makes no difference to the memory on a GPU"),
        ({"only": ["cudnn-heuristic"]}, "it needs a session on CUDA, and a Conv node"),
    ],
)
def test_what_is_not_for_a_gpu_is_refused(
    fixed: Fixed, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        fixed("dense", **options)


def test_a_budget_of_the_gpu_is_kept(fixed: Fixed) -> None:
    fix = fixed("resnet50", budget={"steady": 940 * MIB})
    assert fix.chosen_point is not None
    assert fix.chosen_point.fits
    assert fix.after is not None
    assert fix.after.steady_bytes <= 940 * MIB


def test_without_a_gpu_it_ends_at_once(tmp_path: Path) -> None:
    steps: list[str] = []
    with pytest.raises(UsageError, match="CUDAExecutionProvider is not there"):
        memdiag.fix(
            recorded_model("dense", tmp_path), providers=[CUDA_PROVIDER], on_progress=steps.append
        )
    assert steps == []
