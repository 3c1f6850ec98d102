"""When another child is measured for the memory that malloc retains."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from memdiag.api import malloc_threshold as module
from memdiag.api.malloc_threshold import measure_malloc_threshold
from memdiag.records.profile import Profile
from memdiag.runner.job import Job, SessionConfig
from memdiag.units import MIB
from tests.reports import tied_xray

BASELINE = 46 * MIB


class FakeRun:
    """A child whose steady memory is 100 MiB above its baseline."""

    jobs: list[Job]
    interrupted = False
    steady: Any = SimpleNamespace(rss_bytes=130 * MIB)

    def __init__(self, job: Job, on_progress: object = None) -> None:
        FakeRun.jobs.append(job)

    def run(self) -> Any:
        baseline = SimpleNamespace(rss_bytes=30 * MIB)
        return SimpleNamespace(interrupted=self.interrupted, steady=self.steady, baseline=baseline)


@pytest.fixture(autouse=True)
def fake_run(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeRun.jobs = []
    monkeypatch.setattr(module, "MeasuredChild", FakeRun)


def retaining(retained: int, steady: int = 200, allocator: str | None = "glibc") -> Profile:
    """A profile with so many MiB above its baseline, of which malloc retains a part."""
    profile = tied_xray.with_attribution()
    assert profile.attribution is not None
    return msgspec.structs.replace(
        profile,
        steady_rss_bytes=profile.baseline_rss_bytes + steady * MIB,
        allocator_retained_bytes=retained * MIB,
        attribution=msgspec.structs.replace(profile.attribution, allocator=allocator),
    )


def measured(profile: Profile, **environment: str) -> int | None:
    job = Job(model=Path("m.onnx"), session=SessionConfig(environment=environment))
    return measure_malloc_threshold(profile, job).threshold_saved_bytes


def test_the_saving_is_above_the_baseline_of_each_process() -> None:
    assert measured(retaining(80)) == 100 * MIB
    (job,) = FakeRun.jobs
    assert job.session.environment == {"MALLOC_MMAP_THRESHOLD_": "131072"}


@pytest.mark.parametrize(
    "profile",
    [
        retaining(49),
        retaining(15, steady=20),
        retaining(80, allocator="jemalloc"),
        msgspec.structs.replace(retaining(80), attribution=None),
    ],
    ids=["a small share", "little", "another allocator", "no X-ray"],
)
def test_nothing_is_measured_where_it_would_not_be_advised(profile: Profile) -> None:
    assert measured(profile) is None
    assert not FakeRun.jobs


def test_a_threshold_that_is_set_is_not_measured_again() -> None:
    assert measured(retaining(80), MALLOC_MMAP_THRESHOLD_="131072") is None
    assert not FakeRun.jobs


def test_a_child_that_fails_leaves_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeRun, "steady", None)
    assert measured(retaining(80)) is None


def test_an_interrupted_child_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeRun, "interrupted", True)
    with pytest.raises(KeyboardInterrupt):
        measured(retaining(80))
