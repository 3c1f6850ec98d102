"""What stays after the session was deleted, and which remedies are measured for it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import memdiag
from memdiag.api import session_release as module
from memdiag.api.session_release import measure_release_remedies
from memdiag.records.profile import Profile, ReleaseRemedy, SessionRelease
from memdiag.runner.job import Job, SessionConfig
from memdiag.tuning.options import tuning_options
from tests.reports import profiles

MB = 1_000_000
MIB = 1 << 20
WEIGHT_MB = 40  # above 32 MiB, malloc maps a block of its own and unmaps it when it is freed


# A program that keeps each session that it creates.
KEEPS_SESSIONS = """
import onnxruntime
create = onnxruntime.InferenceSession.__init__
kept = []
def create_and_keep(session, *arguments, **options):
    kept.append(session)
    create(session, *arguments, **options)
onnxruntime.InferenceSession.__init__ = create_and_keep
"""


@pytest.fixture(scope="module")
def large_weight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weight = np.random.default_rng(0).random((WEIGHT_MB * MB // 4000, 1000), np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["w", "x"], ["y"])],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    path = tmp_path_factory.mktemp("models") / "large.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def released(model: Path, **options: Any) -> SessionRelease:
    profile = memdiag.profile(model, runs=1, xray="none", release=True, **options)
    assert profile.outcome.status == "completed"
    assert profile.release is not None
    parts = (
        profile.release.in_use_bytes,
        profile.release.retained_bytes,
        profile.release.library_bytes,
        profile.release.file_bytes,
        profile.release.other_bytes,
    )
    assert sum(part or 0 for part in parts) == profile.release.kept_bytes
    return profile.release


def test_weights_are_not_in_use_after_a_release(large_weight: Path) -> None:
    # A fixed threshold, because malloc otherwise raises it when the runtime frees large blocks.
    found = released(large_weight, environment={"MALLOC_MMAP_THRESHOLD_": "131072"})
    assert found.in_use_bytes is not None
    assert found.in_use_bytes < 4 * MB
    assert found.kept_bytes - (found.library_bytes or 0) < 8 * MB


def test_weights_of_a_session_that_the_program_keeps_are_in_use(
    large_weight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(KEEPS_SESSIONS)
    monkeypatch.setattr(module, "REMEDIES", ())
    found = released(large_weight, environment={"PYTHONPATH": str(tmp_path)})
    assert found.in_use_bytes is not None
    assert WEIGHT_MB * MB <= found.in_use_bytes < (WEIGHT_MB + 8) * MB


def profile_that_keeps(kept_mib: int) -> Profile:
    """Return a profile with a peak of 1,533 MiB above the baseline."""
    return msgspec.structs.replace(
        profiles.tied_if(), release=SessionRelease(kept_bytes=kept_mib * MIB), notes=()
    )


class FakeRun:
    """A measured run after which a tenth stays with a pinned threshold; arena-off fails."""

    started: list[SessionConfig]

    def __init__(self, job: Job, **options: object) -> None:
        self.session = job.session
        self.started.append(job.session)

    def run(self) -> Any:
        pinned = "MALLOC_MMAP_THRESHOLD_" in self.session.environment
        fails = "enable_cpu_mem_arena" in self.session.options
        return SimpleNamespace(
            interrupted=False,
            baseline=SimpleNamespace(rss_bytes=50 * MIB),
            released=None if fails else SimpleNamespace(rss_bytes=(70 if pinned else 250) * MIB),
            outcome=SimpleNamespace(message="no memory"),
        )


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[SessionConfig]:
    monkeypatch.setattr(FakeRun, "started", [], raising=False)
    monkeypatch.setattr(module, "MeasuredRun", FakeRun)
    monkeypatch.setattr(module, "REMEDIES", ("malloc-arenas", "mmap-threshold", "arena-off"))
    return FakeRun.started


def test_remedies_are_measured_where_much_stays(started: list[SessionConfig]) -> None:
    job = Job(model=Path("m.onnx"), release=True)
    profile = measure_release_remedies(profile_that_keeps(200), job)
    assert profile.release is not None
    assert profile.release.remedies == (
        ReleaseRemedy(
            name="mmap-threshold", setting="MALLOC_MMAP_THRESHOLD_=131072", kept_bytes=20 * MIB
        ),
        ReleaseRemedy(name="malloc-arenas", setting="MALLOC_ARENA_MAX=1", kept_bytes=200 * MIB),
    )
    assert profile.notes == ("arena-off was not measured: no memory",)
    assert len(started) == 3


def test_a_setting_that_the_job_has_is_no_remedy(started: list[SessionConfig]) -> None:
    session = SessionConfig(environment={"MALLOC_MMAP_THRESHOLD_": "131072"})
    job = Job(model=Path("m.onnx"), session=session, release=True)
    profile = measure_release_remedies(profile_that_keeps(200), job)
    assert profile.release is not None
    assert [remedy.name for remedy in profile.release.remedies] == ["malloc-arenas"]


@pytest.mark.parametrize("kept_mib", [15, 150])  # below 16 MiB, and below a tenth of the peak
def test_no_remedy_is_measured_where_little_stays(
    started: list[SessionConfig], kept_mib: int
) -> None:
    profile = profile_that_keeps(kept_mib)
    assert measure_release_remedies(profile, Job(model=Path("m.onnx"), release=True)) == profile
    assert started == []


def test_every_remedy_is_an_option_of_tune() -> None:
    assert set(module.REMEDIES) <= {option.name for option in tuning_options()}
