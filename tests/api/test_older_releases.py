"""Releases before 1.24: what memdiag measures of them, and that it predicts nothing for them."""

from collections.abc import Callable
from pathlib import Path

import pytest

import memdiag
from benchmarks.environments import ProvisionError
from benchmarks.runtimes import runtime
from memdiag.api.check import RuleSelection, check_models
from memdiag.api.sweep_job import estimated_job_bytes
from memdiag.errors import UsageError
from memdiag.ort import releases
from memdiag.ort.runtime import Runtime
from memdiag.sweeps.job_process import JobRequest
from tests.api.small_models import save_model
from tests.sweeps.results import job

NAME_ANOTHER = "Name a newer release with --for-onnxruntime."
CALLS: dict[str, tuple[Callable[[Path], object], str]] = {
    "check": (lambda path: memdiag.check(path), NAME_ANOTHER),
    "check for it": (lambda path: memdiag.check(path, for_onnxruntime="1.22.1"), NAME_ANOTHER),
    "check of several": (
        lambda path: check_models([path], selection=RuleSelection()),
        NAME_ANOTHER,
    ),
    "estimate": (lambda path: memdiag.estimate(path), NAME_ANOTHER),
    "estimate for it": (
        lambda path: memdiag.estimate(path, for_onnxruntime="1.22.1"),
        NAME_ANOTHER,
    ),
    "fix": (lambda path: memdiag.fix(path), "Run memdiag in an environment with a newer release."),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model.onnx", "g (float[8, 8] x) => (y) { y = Abs(x) }")


@pytest.mark.parametrize("name", CALLS)
def test_predictions_are_refused_in_one_sentence(
    path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runtime, "installed", lambda: Runtime(1, 22, 1))
    call, action = CALLS[name]
    with pytest.raises(UsageError) as refused:
        call(path)
    assert str(refused.value) == (
        f"onnxruntime 1.22.1: memdiag predicts for 1.24 and newer. {action}"
    )
    assert list(path.parent.iterdir()) == [path]


def test_the_first_release_is_predicted(path: Path) -> None:
    assert memdiag.check(path, for_onnxruntime="1.24") == ()
    assert memdiag.estimate(path, for_onnxruntime="1.24").onnxruntime == "1.24.0"


@pytest.mark.parametrize(("release", "is_estimated"), [("1.23.2", False), ("1.24.4", True)])
def test_a_sweep_plans_its_jobs_without_an_estimate(
    path: Path, release: str, is_estimated: bool
) -> None:
    request = JobRequest(job=job(onnxruntime=release), work="estimate", path=str(path))
    assert (estimated_job_bytes(request) is not None) == is_estimated


def test_a_profile_has_one_note_in_place_of_predictions(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "OLDEST_PREDICTED_RELEASE", Runtime(99, 0))
    profile = memdiag.profile(path, runs=1, xray="none", run_peak=True)
    assert (profile.outcome.status, profile.estimate, profile.findings) == ("completed", None, ())
    assert sum("no estimate and no findings" in note for note in profile.notes) == 1


@pytest.mark.slow
def test_a_real_one_is_measured(sample_model: Callable[..., Path]) -> None:
    try:
        python = runtime("1.22.1")
    except ProvisionError as error:
        pytest.skip(str(error))
    profile = memdiag.profile(sample_model("tied_if", 8), python=python, runs=1, run_peak=True)
    assert (profile.outcome.status, profile.estimate, profile.findings) == ("completed", None, ())
    assert profile.attribution is not None
    assert profile.attribution.copies
    assert "does not write the memory of nodes" in profile.run_peak_failure
    assert profile.notes[-1] == (
        "onnxruntime 1.22.1: no estimate and no findings, as memdiag predicts for 1.24 and newer"
    )
